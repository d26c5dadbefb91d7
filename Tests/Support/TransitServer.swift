import Cryptography
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import Reactor
import Synchronization
import TLS

/// A stand-in for the two calls of Vault's HTTP API that a program needs to have keys decrypted: the login of a workload and the
/// decryption of a batch, and the end of a token. It answers as Vault and OpenBao do, refuses what is not documented, and has one
/// transit key.
package final class TransitServer: Sendable {
    package enum Access: Sendable {
        case token(String)
        /// The role and the token that it may log in with.
        case workload(role: String, proof: String)
    }

    private struct State {
        /// What it answers every request with, in place of what is asked for.
        var outage: Int?
        var decryptions = 0
        var logins = 0
        /// The tokens that a login gave.
        var tokens: Set<WireText> = []
    }

    private let access: Access
    private let namespace: String?
    private let key: SecretBytes
    private let state = Mutex(State())
    private let server = Mutex<Server?>(nil)
    /// The path of its decryption.
    private static let path = "/v1/transit/decrypt/broker"

    package init(_ access: Access, namespace: String? = nil) throws {
        self.access = access
        self.namespace = namespace
        (refused, refuse) = AsyncStream.makeStream()
        key = SecretBytes(try SecureRandom.bytes(AES256GCM.keyCount))
        let certificates = TLSTestCertificates.shared
        var configuration = ServerConfiguration(
            address: SocketAddress(ip: .v4([127, 0, 0, 1]), port: 0), loopCount: 1)
        configuration.tls = try TLSServerContext(
            certificateFile: certificates.chain(.good), keyFile: certificates.key(.good))
        let started = try Server(
            configuration: configuration,
            handler: HTTPClosureHandler { [weak self] in self?.respond($0) ?? Self.refusal(500) })
        server.withLock { $0 = started }
    }

    /// `https://localhost:` and the port.
    package var origin: String { server.withLock { "https://localhost:\($0?.address.port ?? 0)" } }
    package var decryption: String { origin + Self.path }

    /// How many keys it has decrypted, and how many logins it has let in.
    package var counts: (decryptions: Int, logins: Int) { state.withLock { ($0.decryptions, $0.logins) } }
    /// Has an element for each caller that it has refused.
    package let refused: AsyncStream<Void>
    private let refuse: AsyncStream<Void>.Continuation

    /// Answers all requests with that status from now on: 503 as a sealed engine, 307 as a standby; nil as usual.
    package func setOutage(_ status: Int?) { state.withLock { $0.outage = status } }
    /// How many tokens of logins have not been ended.
    package var tokensLeft: Int { state.withLock { $0.tokens.count } }

    /// A key of 32 bytes in Base 64, as the engine has it encrypted.
    package func encrypt(_ plaintext: String) throws -> String {
        let nonce = try SecureRandom.bytes(AES256GCM.nonceCount)
        let sealed = try AES256GCM.seal(Array(plaintext.utf8), key: key, nonce: nonce, associatedData: [])
        return "vault:v1:" + Base64.encode(nonce + sealed)
    }

    package func close() async { await server.withLock { $0 }?.close() }

    // MARK: Answers

    private static func refusal(_ code: Int, _ reason: String = "internal error") -> Response {
        let body = JSONWriter.object { $0.member("errors", [reason]) }
        return Response(Status(code), fields: ["Content-Type": "application/json"], body: body)
    }

    private func respond(_ request: Request) -> Response {
        let response = answer(request)
        if response.status != .ok { refuse.yield() }
        return response
    }

    private func answer(_ request: Request) -> Response {
        if let outage = state.withLock({ $0.outage }) { return Self.refusal(outage, "Vault is sealed") }
        guard request.fields["X-Vault-Request"] == "true" else { return Self.refusal(412, "missing header") }
        guard request.fields["X-Vault-Namespace"] == namespace.map({ WireText($0) }) else {
            return Self.refusal(404, "no handler for route")
        }
        guard request.method == .post else { return Self.refusal(405, "unsupported operation") }
        let json = (try? JSONValue(parsing: request.body)) ?? .null
        if !request.body.isEmpty, json.object == nil { return Self.refusal(400, "failed to parse JSON input") }
        switch request.path {
        case "/v1/auth/token/revoke-self":
            let wasThere = state.withLock { $0.tokens.remove(request.fields["X-Vault-Token"] ?? "") != nil }
            return wasThere ? Response(.noContent) : Self.refusal(403, "permission denied")
        case "/v1/auth/kubernetes/login": return logIn(json, hasToken: request.fields["X-Vault-Token"] != nil)
        case Self.path: return decrypt(json, request.fields["X-Vault-Token"])
        case let path where path.starts(with: "/v1/transit/decrypt/"):
            return Self.refusal(400, "encryption key not found")
        default: return Self.refusal(404, "no handler for route")
        }
    }

    private func logIn(_ json: JSONValue, hasToken: Bool) -> Response {
        guard case .workload(let role, let proof) = access, !hasToken, json["role"]?.string == WireText(role) else {
            return Self.refusal(400, "invalid role name")
        }
        guard json["jwt"]?.string == WireText(proof) else { return Self.refusal(403, "permission denied") }
        let token = state.withLock { state in
            state.logins += 1
            let token = "hvs.login-\(state.logins)"
            state.tokens.insert(WireText(token))
            return token
        }
        return .json(
            JSONWriter.object { json in
                json.name("auth")
                json.object { json in
                    json.member("client_token", token)
                    json.member("lease_duration", 3600)
                }
            })
    }

    private func decrypt(_ json: JSONValue, _ token: WireText?) -> Response {
        let isLetIn =
            switch access {
            case .token(let expected): token == WireText(expected)
            case .workload: token.map { token in state.withLock { $0.tokens.contains(token) } } ?? false
            }
        guard isLetIn else { return Self.refusal(403, "permission denied") }
        guard let batch = json["batch_input"]?.array, !batch.isEmpty else {
            return Self.refusal(400, "missing batch input to process")
        }
        let plaintexts = batch.map { $0["ciphertext"]?.string.flatMap(plaintext) }
        state.withLock { $0.decryptions += plaintexts.compactMap(\.self).count }
        let body = JSONWriter.object { json in
            json.name("data")
            json.object { json in
                json.name("batch_results")
                json.array { json in
                    for plaintext in plaintexts {
                        json.object { json in
                            // The engine leaves out neither of the first two members.
                            json.member("plaintext", plaintext ?? "")
                            json.member("reference", "")
                            if plaintext == nil { json.member("error", "invalid ciphertext: unable to decrypt") }
                        }
                    }
                }
            }
        }
        return .json(body, plaintexts.allSatisfy { $0 != nil } ? .ok : .badRequest)
    }

    private func plaintext(_ ciphertext: WireText) -> String? {
        guard ciphertext.starts(with: "vault:v1:"), let bytes = Base64.decode(ciphertext.dropping(9).text),
            bytes.count > AES256GCM.nonceCount
        else { return nil }
        let opened = try? AES256GCM.open(
            Array(bytes.dropFirst(AES256GCM.nonceCount)), key: key,
            nonce: Array(bytes.prefix(AES256GCM.nonceCount)), associatedData: [])
        return opened?.revealedText
    }
}

extension Response {
    fileprivate static func json(_ body: [UInt8], _ status: Status = .ok) -> Response {
        Response(status, fields: ["Content-Type": "application/json"], body: body)
    }
}
