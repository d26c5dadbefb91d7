internal import HTTPCodec
internal import HTTPServer
internal import JSON

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
        var status = Status.badRequest
        switch error.kind {
        case .invalidClient where configuration.profile != .authgear, .unauthenticated: status = .unauthorized
        case .rateLimited: status = .tooManyRequests
        case .invalidRefreshToken where configuration.profile == .tidal:
            status = Status(configuration.deadRefreshTokenStatus)
        default: break
        }
        var response: Response
        switch configuration.profile {
        case .tidal:
            response = .json(status) { writer in
                writer.member("status", status.code)
                writer.member("error", error.error)
                writer.member("sub_status", error.subStatus)
                writer.member("error_description", error.description)
            }
        case .authgear:
            response = .json(status) { writer in
                writer.member("error", error.error)
                writer.member("error_description", error.description)
            }
        case .rfc:
            response = .json(status) { writer in
                writer.member("error", error.error)
                writer.member("error_description", error.description)
            }
            Self.announceNonce(after: error, configuration, in: &response)
            // RFC 6749 §5.2 requires this field if the client used the Authorization field; otherwise it is allowed,
            // and RFC 9110 §15.5.2 asks for it.
            if error.kind == .invalidClient {
                response.fields.set("WWW-Authenticate", #"Basic realm="token-broker-provider""#)
            }
        case .duckduckgo:
            // Every refusal of its token endpoint has one name, but for that of an account that is gone.
            let name = error.kind == .unknownAccount ? error.error : "invalid_token_request"
            response = .json(.badRequest) { writer in
                writer.member("error", name)
                if error.kind != .unknownAccount { writer.member("error_code", error.tokenStatus.rawValue) }
            }
            self.init(response, error: name)
            return
        }
        self.init(response, error: error.error)
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
