import HTTPCodec
import HTTPServer
import JSON

/// An error of the endpoints that only the duckduckgo profile has. The raw value is the `error` of the response.
enum AccountError: String, Error {
    /// A parameter of the authorization request is missing or wrong.
    case invalidAuthorizationRequest = "invalid_authorization_request"
    /// The code challenge was used before.
    case authorizeFailed = "authorize_failed"
    /// At account creation: the session cookie is missing or unknown, or its session was used.
    case invalidRequest = "invalid_request"
    case invalidEmailAddress = "invalid_email_address"
    /// At a login: the session cookie is missing or unknown, or its session was used.
    case invalidSessionID = "invalid_session_id"
    case suspendedAccount = "suspended_account"
    case invalidLoginCredentials = "invalid_login_credentials"
    case unknownAccount = "unknown_account"
    case unverifiedAccount = "unverified_account"
    /// The Bearer token is missing or unknown, or was logged out.
    case invalidToken = "invalid_token"
    case expiredToken = "expired_token"

    var status: Status {
        switch self {
        case .invalidToken, .expiredToken: .unauthorized
        default: .badRequest
        }
    }

    var result: EndpointResult {
        var response = Response.json(status) { writer in writer.member("error", rawValue) }
        // RFC 6750 §3.
        if status == .unauthorized { response.fields.set("WWW-Authenticate", "Bearer error=\"invalid_token\"") }
        return EndpointResult(response, error: rawValue)
    }
}
