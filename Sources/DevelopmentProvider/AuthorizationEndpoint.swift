import ExternalText
import HTTPCodec
import HTTPServer
import OAuth

/// The authorization endpoint (RFC 6749 §3.1): GET returns the login page, and its form posts the user's decision.
enum AuthorizationEndpoint {
    /// The fields that the form adds to the parameters of the authorization request.
    private static let formNames: Set<WireText> = ["user", "decision"]

    static func respond(
        _ request: Request, received: ReceivedParameters, issuer: inout TokenIssuer, now: Int64
    ) -> EndpointResult {
        let configuration = issuer.configuration
        let isForm = request.method == .post
        guard let pairs = isForm ? received.form : received.query else {
            return EndpointResult(Page.failure(.badRequest, "The application's request cannot be read."))
        }
        let sent = Parameters(
            pairs.filter { !formNames.contains($0.name) },
            toleratesEqual: configuration.behaviour.toleratesEqualParameters)
        guard
            let parameters = PushedAuthorizationEndpoint.resolve(sent, opens: !isForm, issuer: &issuer, now: now)
        else {
            return EndpointResult(
                Page.failure(
                    .badRequest, "The application's request was not pushed, has expired, or was opened before."))
        }
        let form = Parameters(isForm ? pairs.filter { formNames.contains($0.name) } : [], toleratesEqual: false)
        do throws(ReceivedAuthorizationRequest.Refusal) {
            let authorization = try ReceivedAuthorizationRequest(parameters, configuration)
            func page(_ status: Status, complaint: String?) -> EndpointResult {
                EndpointResult(
                    Page.login(
                        status, client: authorization.client, scope: authorization.scope,
                        user: form["user"] ?? parameters["email"] ?? parameters["login_hint"],
                        hidden: sent.all,
                        action: configuration.baseURL.path + (configuration.path(of: .authorize) ?? ""),
                        complaint: complaint))
            }
            guard isForm else { return page(.ok, complaint: nil) }
            switch form["decision"] {
            case "approve":
                guard let user = Self.user(form) else {
                    return page(.badRequest, complaint: "Enter a user name of at most 100 characters.")
                }
                let code = issuer.issueCode(
                    TokenIssuer.AuthorizationCode(
                        clientID: authorization.client.id, redirectURI: authorization.redirectURI,
                        redirectURIWasSent: authorization.redirectURIWasSent, challenge: authorization.challenge,
                        scope: authorization.scope, user: user, nonce: parameters["nonce"]?.text,
                        userScope: authorization.userScope, keyThumbprint: parameters["dpop_jkt"]?.text,
                        issuedAt: now,
                        expiresAt: TokenIssuer.time(now, configuration.authorizationCodeLifetime)))
                let name = configuration.translation?.profile.shape.codeName ?? "code"
                return redirect(
                    to: authorization.redirectURI,
                    with: [FormEncoding.Pair(name, WireText(code))] + (configuration.translation?.callbackPairs ?? []),
                    state: authorization.state,
                    parameters: parameters, configuration: configuration)
            case "deny":
                throw ReceivedAuthorizationRequest.Refusal.redirect(
                    to: authorization.redirectURI, state: authorization.state, error: "access_denied",
                    description: "The user has denied the request")
            default:
                return page(.badRequest, complaint: "Choose Approve or Deny.")
            }
        } catch {
            switch error {
            case .redirect(let uri, let state, let code, let description):
                var result = redirect(
                    to: uri,
                    with: [FormEncoding.Pair("error", code), FormEncoding.Pair("error_description", description)],
                    state: state, parameters: parameters, configuration: configuration)
                result.error = code
                return result
            case .page(let text):
                return EndpointResult(Page.failure(.badRequest, text))
            }
        }
    }

    /// The user that a form names; nil for an empty name and for one of more than 100 Unicode scalars.
    static func user(_ form: Parameters) -> ProviderUser? {
        guard !form.repeated.contains("user"), let text = form["user"] else { return nil }
        let scalars = text.text.unicodeScalars
        guard let first = scalars.firstIndex(where: { !$0.properties.isWhitespace }),
            let last = scalars.lastIndex(where: { !$0.properties.isWhitespace })
        else { return nil }
        let name = scalars[first...last]
        return name.count <= 100 ? ProviderUser(String(name)) : nil
    }

    private static func redirect(
        to uri: String, with result: [FormEncoding.Pair], state: WireText?, parameters: Parameters,
        configuration: ProviderConfiguration
    ) -> EndpointResult {
        var pairs = result
        if let state { pairs.append(FormEncoding.Pair("state", state)) }
        switch configuration.responseIssuer {
        case .issuer: pairs.append(FormEncoding.Pair("iss", configuration.baseURL.description))
        case .other(let issuer): pairs.append(FormEncoding.Pair("iss", issuer))
        case .absent: break
        }
        for (name, usual) in configuration.behaviour.repeatedParameters {
            pairs.append(FormEncoding.Pair(name, parameters[name] ?? usual))
        }
        // A query in the redirect URI is kept (RFC 6749 §3.1.2).
        let target = WireText(uri)
        let joint = target.contains("?") ? (target.ends(with: "?") || target.ends(with: "&") ? "" : "&") : "?"
        return EndpointResult(
            Response(
                .found,
                fields: [
                    "Location": uri + joint + FormEncoding.encode(pairs), "Cache-Control": "no-store",
                    "Referrer-Policy": "no-referrer",
                ]))
    }
}
