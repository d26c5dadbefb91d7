import ExternalText
import HTTPCodec
import HTTPServer

/// The page on which the user enters the device's code (RFC 8628 §3.3): `/link`, and `/link/{user_code}` with the code
/// filled in.
enum VerificationEndpoint {
    static func respond(
        _ request: Request, userCode: WireText?, issuer: inout TokenIssuer, now: Int64
    ) -> Response {
        let action = issuer.configuration.baseURL.path + "/link"
        switch request.method {
        case .get:
            return Page.device(.ok, userCode: userCode, user: nil, action: action, complaint: nil)
        case .post:
            guard let pairs = ReceivedParameters(request).form else {
                return Page.failure(.badRequest, "The form cannot be read.")
            }
            let form = Parameters(pairs, toleratesEqual: false)
            let entered = form["user_code"] ?? userCode
            func again(_ complaint: String) -> Response {
                Page.device(.badRequest, userCode: entered, user: form["user"], action: action, complaint: complaint)
            }
            guard form.repeated.isEmpty, let entered else { return again("Enter the code that the device shows.") }
            let decision: DeviceAuthorizations.Decision
            switch form["decision"] {
            case "approve":
                guard let user = AuthorizationEndpoint.user(form) else {
                    return again("Enter a user name of at most 100 characters.")
                }
                decision = .approved(user)
            case "deny": decision = .denied
            default: return again("Choose Approve or Deny.")
            }
            guard issuer.decide(userCode: entered, decision, now: now) else {
                return again("No device waits with this code. It may have expired.")
            }
            return decision == .denied
                ? Page.message("Denied", "The device gets no access. You can close this page.")
                : Page.message("Connected", "The device can be used now. You can close this page.")
        default:
            return .methodNotAllowed("GET, POST")
        }
    }
}
