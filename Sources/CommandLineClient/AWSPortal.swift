import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import Reactor

/// The portal of AWS IAM Identity Center, which gives a role's keys for a token.
struct AWSPortal: Sendable {
    private let base: String
    private let client: HTTPSClient

    /// - Parameter environment: `AWS_ENDPOINT_URL_SSO` names another address than the region's.
    /// - Throws: `usage` for what is no region, `configuration` for what is no address.
    init(region: String, environment: [String: String]) throws(CommandError) {
        guard !region.isEmpty, region.utf8.count <= 32,
            region.utf8.allSatisfy({ (0x61...0x7a).contains($0) || (0x30...0x39).contains($0) || $0 == 0x2d })
        else { throw CommandError(.usage, "\(region) is no region of AWS, such as eu-central-1") }
        let address =
            environment.text("AWS_ENDPOINT_URL_SSO") ?? "https://portal.sso.\(region).\(Self.domain(of: region))"
        let base = address.trimmingSlash
        guard URLTarget(base + "/") != nil else {
            throw CommandError(.configuration, "AWS_ENDPOINT_URL_SSO is no http or https address")
        }
        self.base = base
        do {
            var configuration = HTTPSClientConfiguration()
            configuration.targets = .everything
            client = try HTTPSClient(
                configuration: configuration, loop: try EventLoop(name: "portal"), resolver: try NameResolver())
        } catch {
            throw CommandError(.failed, "the client cannot start: \(error)")
        }
    }

    private static func domain(of region: String) -> String {
        region.hasPrefix("cn-") ? "amazonaws.com.cn" : "amazonaws.com"
    }

    /// `GetRoleCredentials`.
    /// - Throws: `notLoggedIn` for a token that the portal refuses, `forbidden` for a role that the user has not, `tryLater`,
    ///   `unreachable`.
    func keys(token: String, account: String, role: String) async throws(CommandError) -> AWSCredentials {
        let query = "account_id=\(FormEncoding.percentEncode(account))&role_name=\(FormEncoding.percentEncode(role))"
        guard let target = URLTarget("\(base)/federation/credentials?\(query)") else {
            throw CommandError(.usage, "--account and --role are too long")
        }
        let response: ClientResponse
        do throws(TransportError) {
            response = try await client.send(
                ClientRequest(
                    method: .get, url: target, fields: ["x-amz-sso_bearer_token": token, "Accept": "application/json"],
                    timeLimit: .seconds(30)))
        } catch {
            throw CommandError(.unreachable, "AWS cannot be reached: \(error.clause(roots: "SSL_CERT_FILE"))")
        }
        let value = (try? JSONValue(parsing: response.body)) ?? .null
        switch response.status.code {
        case 200:
            if let keys = AWSCredentials(roleCredentials: value) { return keys }
            throw CommandError(.failed, "the answer of AWS has no keys")
        case 401: throw CommandError(.notLoggedIn, "AWS refuses the token\(Self.words(value))")
        case 403, 404:
            throw CommandError(.forbidden, "the user has no role \(role) in the account \(account)\(Self.words(value))")
        case 429, 500...: throw CommandError(.tryLater, "AWS answers \(response.status)\(Self.words(value))")
        default: throw CommandError(.refused, "AWS answers \(response.status)\(Self.words(value))")
        }
    }

    private static func words(_ value: JSONValue) -> String {
        value["message"]?.string.map { ": " + TextTable.shown($0.text) } ?? ""
    }
}
