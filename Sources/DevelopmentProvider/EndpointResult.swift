import HTTPCodec
import HTTPServer
import JSON

/// The result of a request: the response, and details for the log.
struct EndpointResult: Sendable {
    var response: Response
    var error: String?
    var refresh: RefreshTrace?

    init(_ response: Response, error: String? = nil) {
        self.response = response
        self.error = error
    }

    /// An error response in the form of the profile.
    init(_ error: OAuthError, _ configuration: ProviderConfiguration) {
        if let translation = configuration.translation {
            var response = translation.response(to: error)
            Self.announceNonce(after: error, configuration, in: &response)
            self.init(response, error: error.error)
            return
        }
        let shape = configuration.behaviour.errors
        var status = shape.statuses[error.kind] ?? .badRequest
        if shape.hasConfiguredStatus, error.kind == .invalidRefreshToken {
            status = Status(configuration.deadRefreshTokenStatus)
        }
        let isUnknownAccount = error.kind == .unknownAccount
        let name = (isUnknownAccount ? nil : shape.commonName) ?? error.error
        var response = Response.json(status) { writer in
            for member in shape.members {
                switch member {
                case .status: writer.member(member.rawValue, status.code)
                case .error: writer.member(member.rawValue, name)
                case .number: writer.member(member.rawValue, shape.numbers[error.kind] ?? shape.otherNumber)
                case .description: writer.member(member.rawValue, error.description)
                case .detail where isUnknownAccount: break
                case .detail: writer.memberIfPresent(member.rawValue, shape.details[error.tokenStatus])
                }
            }
        }
        Self.announceNonce(after: error, configuration, in: &response)
        if shape.asksForCredentials, error.kind == .invalidClient {
            response.fields.set("WWW-Authenticate", #"Basic realm="token-broker-provider""#)
        }
        self.init(response, error: name)
    }

    /// Tells the nonce that the next proof needs (RFC 9449 §8).
    private static func announceNonce(
        after error: OAuthError, _ configuration: ProviderConfiguration, in response: inout Response
    ) {
        guard let nonce = configuration.proofNonce, error.kind == .nonceWanted else { return }
        response.fields.set("DPoP-Nonce", nonce)
    }
}

extension Response {
    /// A JSON response that caches must not store (RFC 6749 §5.1).
    static func json(_ status: Status, _ members: (inout JSONWriter) -> Void) -> Response {
        json(status, JSONWriter.object(members))
    }

    static func json(_ status: Status, _ body: [UInt8]) -> Response {
        Response(
            status,
            fields: ["Content-Type": "application/json", "Cache-Control": "no-store", "Pragma": "no-cache"],
            body: body)
    }

    static func methodNotAllowed(_ allowed: String) -> Response {
        var response = Response.problem(.methodNotAllowed, "This path accepts only \(allowed).")
        response.fields.set("Allow", allowed)
        return response
    }

    /// An error response of RFC 9457, for requests outside the OAuth endpoints.
    static func problem(_ status: Status, _ detail: String) -> Response {
        var response = Response.json(status) { writer in
            writer.member("title", "\(status.reason)")
            writer.member("status", status.code)
            writer.member("detail", detail)
        }
        response.fields.set("Content-Type", "application/problem+json")
        return response
    }
}
