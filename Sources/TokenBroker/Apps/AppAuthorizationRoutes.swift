import BrokerCore
import ExternalText
import HTTPCodec
import HTTPServer
import OAuth

/// `/oauth2/authorize`: an app sends its user's browser here to log in (RFC 6749 §4.1.1).
struct AppAuthorizationRoutes {
    private let broker: Broker

    init(_ broker: Broker) {
        self.broker = broker
    }

    var all: [Route] { [Route(.get, "/oauth2/authorize", .open, allowsHead: false, authorize)] }

    private static let code: WireText = "code"
    private static let query: WireText = "query"
    /// The longest values that a login gets of a request, in bytes.
    private static let longestLocale = 100
    private static let longestHint = 320

    private func authorize(_ call: Call) async throws(BrokerError) -> Response {
        let form: AppForm
        let client: AppClient
        let redirectURI: String
        do throws(AppError) {
            do throws(BrokerError) {
                try call.refusePrefetch()
            } catch {
                throw AppError(error)
            }
            try await broker.core.apps.limits.admit(call.request.source, for: .authorization)
            form = try AppForm((call.request.query ?? "").utf8.span)
            (client, redirectURI) = try await destination(form)
        } catch {
            // A redirect to an address that is not the client's would make the broker an open redirector (RFC 9700 §4.11).
            var page = LoginPage.refusedApp(error.description, LoginPage.Context(nil, call))
            if error.status == .serviceUnavailable || error.status == .internalServerError
                || error.status == .tooManyRequests
            {
                page.status = error.status
            }
            page.fields.set("Retry-After", error.retryAfter.map { String($0) })
            return page
        }
        do throws(AppError) {
            return try await begin(form, client, redirectURI, call)
        } catch {
            return LoginPage.redirect(
                to: AppLogin.Return.uri(
                    redirectURI, error: error, state: form.repeated.contains("state") ? nil : form["state"],
                    issuer: broker.logins.publicBaseURL))
        }
    }

    /// The client, and where the browser goes in the end.
    private func destination(_ form: AppForm) async throws(AppError) -> (AppClient, redirectURI: String) {
        for name in ["client_id", "redirect_uri"] as [WireText] where form.repeated.contains(name) {
            throw AppError(.invalidRequest, "\(name.text) occurs more than once")
        }
        guard let clientID = form["client_id"] else { throw AppError(.invalidRequest, "client_id is required") }
        let client: AppClient?
        do throws(BrokerError) {
            client = try await broker.core.apps.clients.client(clientID)
        } catch {
            throw AppError(error)
        }
        guard let client else { throw AppError(.invalidClient, "The client_id is not known.", status: .badRequest) }
        guard let uri = client.redirectURI(form["redirect_uri"]) else {
            throw AppError(.invalidRequest, "The redirect_uri is not one of the client's.")
        }
        return (client, uri)
    }

    /// Begins a login in this browser, which goes on to the login service.
    private func begin(
        _ form: AppForm, _ client: AppClient, _ redirectURI: String, _ call: Call
    ) async throws(AppError) -> Response {
        try form.refuseRepeated()
        guard let type = form["response_type"] else { throw AppError(.invalidRequest, "response_type is required") }
        guard type == Self.code else { throw AppError(.unsupportedResponseType, "response_type must be code") }
        if let mode = form["response_mode"], mode != Self.query {
            throw AppError(.invalidRequest, "response_mode must be query")
        }
        let challenge: WireText
        do throws(CodeChallenge.Fault) {
            challenge = try CodeChallenge.read(form["code_challenge"], method: form["code_challenge_method"])
        } catch {
            let text =
                switch error {
                case .missing: "code_challenge is required (RFC 7636)"
                case .otherMethod: "code_challenge_method must be S256"
                case .malformed: "code_challenge must be the base64url of a SHA-256 digest"
                }
            throw AppError(.invalidRequest, text)
        }
        let locale = form["ui_locales"].map { $0.split(at: " ", limit: 2)[0] }
        let hint = form["login_hint"]
        if (locale?.count ?? 0) > Self.longestLocale || (hint?.count ?? 0) > Self.longestHint {
            throw AppError(.invalidRequest, "ui_locales or login_hint is too long")
        }
        do throws(BrokerError) {
            guard let tenant = try await broker.tenants.tenant(client.tenant) else { throw BrokerError.noSuchTenant }
            let parameters = LoginFlow.AppParameters(
                for: client, redirectURI: redirectURI, namedRedirectURI: form["redirect_uri"] != nil,
                state: form["state"], codeChallenge: challenge, language: locale, email: hint)
            let begun = try await broker.logins.authorize(parameters, of: tenant)
            let cookies = LoginCookies(broker.logins)
            var response = cookies.setting(begun.cookie, LoginPage.redirect(to: begun.loginURI))
            for name in broker.logins.givenUp(for: begun.cookie, of: call.cookiesInOrder) {
                response = cookies.removing(name, response)
            }
            return response
        } catch {
            switch error.code {
            case .illegalConfiguration, .notFound, .unexpectedError, .tokenResponseError, .providerUntrusted:
                throw AppError(.serverError, "The login cannot begin (\(error.code.rawValue)).")
            default: throw AppError(error)
            }
        }
    }
}
