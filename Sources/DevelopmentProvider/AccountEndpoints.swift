import ExternalText
import HTTPCodec
import HTTPServer
import JSON

/// The endpoints of the duckduckgo profile that the other profiles do not have, and its authorization endpoint. An
/// application calls them in place of a browser, and a cookie connects the calls of one login.
enum AccountEndpoints {
    private static let cookieName = "ddg_auth_session_id"
    /// The longest email address (RFC 5321 §4.5.3.1.3).
    private static let longestEmail = 254
    /// The longest signature that a platform's store makes.
    private static let longestSignature = 65_536

    /// The answer of an endpoint that is part of this flow; nil for another one.
    static func respond(
        _ request: Request, at endpoint: Endpoint, received: ReceivedParameters, issuer: inout TokenIssuer, now: Int64
    ) -> EndpointResult? {
        switch endpoint {
        case .authorize: authorize(received: received, issuer: &issuer, now: now)
        case .createAccount: createAccount(request, issuer: &issuer, now: now)
        case .sendPassword: sendPassword(request, received: received, issuer: &issuer, now: now)
        case .login: login(request, issuer: &issuer, now: now)
        case .logout: logout(request, issuer: &issuer, now: now)
        default: nil
        }
    }

    // MARK: Authorization

    /// Opens a session and returns it as a cookie. The redirect has no meaning to the client.
    private static func authorize(
        received: ReceivedParameters, issuer: inout TokenIssuer, now: Int64
    ) -> EndpointResult {
        let configuration = issuer.configuration
        let scope = configuration.behaviour.usualScopes
        let parameters = Parameters(received.query ?? [], toleratesEqual: false)
        guard received.query != nil, parameters.repeated.isEmpty, parameters["response_type"] == "code",
            let challenge = parameters["code_challenge"], parameters["code_challenge_method"] == "S256",
            challenge.count == 43, challenge.utf8.allSatisfy({ $0.isUnreserved && $0 != 0x2e && $0 != 0x7e }),
            let client = parameters["client_id"].flatMap(configuration.client),
            let redirectURI = parameters["redirect_uri"], redirectURI.contains(":"),
            client.allows(redirectURI),
            parameters["scope"] == WireText(scope.joined(separator: " "))
        else { return AccountError.invalidAuthorizationRequest.result }
        let session = AccountDirectory.Session(
            client: client, redirectURI: redirectURI.text, challenge: challenge.text, scope: scope,
            expiresAt: TokenIssuer.time(now, configuration.authorizationCodeLifetime))
        guard let cookie = issuer.accounts.open(session) else { return AccountError.authorizeFailed.result }
        let attributes = configuration.baseURL.scheme == "https" ? "; Secure" : ""
        return EndpointResult(
            Response(
                .found,
                fields: [
                    "Location": configuration.baseURL.description + (configuration.path(of: .login) ?? ""),
                    "Set-Cookie": "\(cookieName)=\(cookie); Path=/; HttpOnly; SameSite=Strict\(attributes)",
                    "Cache-Control": "no-store",
                ]))
    }

    // MARK: Accounts

    private static func createAccount(_ request: Request, issuer: inout TokenIssuer, now: Int64) -> EndpointResult {
        guard let cookie = cookie(request), let session = issuer.accounts.session(cookie, now: now),
            session.codeDigest == nil
        else { return AccountError.invalidRequest.result }
        return redirect(session, cookie: cookie, user: issuer.accounts.create(), issuer: &issuer, now: now)
    }

    /// Accepts an address and sends nothing: the password is the one of the configuration.
    private static func sendPassword(
        _ request: Request, received: ReceivedParameters, issuer: inout TokenIssuer, now: Int64
    ) -> EndpointResult {
        guard let cookie = cookie(request), let session = issuer.accounts.session(cookie, now: now),
            session.codeDigest == nil
        else { return AccountError.invalidSessionID.result }
        let parameters = Parameters(received.query ?? [], toleratesEqual: false)
        guard parameters.repeated.isEmpty, let email = parameters["email"], isEmail(email) else {
            return AccountError.invalidEmailAddress.result
        }
        if issuer.accounts.state(of: ProviderUser(email.text)) == .suspended {
            return AccountError.suspendedAccount.result
        }
        issuer.accounts.noteEmail(email.text, in: cookie)
        return EndpointResult(Response(.ok, fields: ["Cache-Control": "no-store"]))
    }

    /// Logs in with the signature of a platform's store, which in this provider is the name of the account, or with a
    /// password for one use.
    private static func login(_ request: Request, issuer: inout TokenIssuer, now: Int64) -> EndpointResult {
        do throws(AccountError) {
            guard let cookie = cookie(request), let session = issuer.accounts.session(cookie, now: now) else {
                throw .invalidSessionID
            }
            if let code = session.codeDigest {
                issuer.noteSessionReuse(codeDigest: code, now: now)
                throw .invalidSessionID
            }
            let user = try user(request, session, issuer.configuration)
            switch issuer.accounts.state(of: user) {
            case .active: break
            case .suspended: throw .suspendedAccount
            case .unverified: throw .unverifiedAccount
            case .removed: throw .unknownAccount
            }
            return redirect(session, cookie: cookie, user: user, issuer: &issuer, now: now)
        } catch {
            return error.result
        }
    }

    /// The user that the body of a login names.
    private static func user(
        _ request: Request, _ session: AccountDirectory.Session, _ configuration: ProviderConfiguration
    ) throws(AccountError) -> ProviderUser {
        guard MediaType(request.fields["Content-Type"] ?? "").name == "application/json",
            let body = try? JSONValue(parsing: request.body)
        else { throw .invalidLoginCredentials }
        switch body["method"]?.string {
        case "signature":
            guard let signature = body["signature"]?.string, (1...longestSignature).contains(signature.count),
                let source = body["source"]?.string, !source.isEmpty
            else { throw .invalidLoginCredentials }
            return ProviderUser(signature.text)
        case "otp":
            guard let email = body["email"]?.string, let password = body["otp"]?.string,
                session.email.map({ WireText($0) == email }) == true,
                password == WireText(configuration.oneTimePassword)
            else { throw .invalidLoginCredentials }
            return ProviderUser(email.text)
        default: throw .invalidLoginCredentials
        }
    }

    /// The redirect of a login, which carries the code.
    private static func redirect(
        _ session: AccountDirectory.Session, cookie: WireText, user: ProviderUser, issuer: inout TokenIssuer, now: Int64
    ) -> EndpointResult {
        let code = issuer.issueCode(
            TokenIssuer.AuthorizationCode(
                clientID: session.client.id, redirectURI: session.redirectURI, redirectURIWasSent: true,
                challenge: session.challenge, scope: session.scope, user: user, nonce: nil, issuedAt: now,
                expiresAt: TokenIssuer.time(now, issuer.configuration.authorizationCodeLifetime)))
        issuer.accounts.noteCode(Secrets.digest(code), in: cookie)
        return EndpointResult(
            Response(
                .found,
                fields: [
                    "Location": session.redirectURI + "?" + FormEncoding.encode([.init("code", code)]),
                    "Cache-Control": "no-store",
                ]))
    }

    // MARK: Logout

    /// Ends the session of a Bearer token (RFC 6750 §2.1).
    private static func logout(_ request: Request, issuer: inout TokenIssuer, now: Int64) -> EndpointResult {
        let credentials = (request.fields["Authorization"] ?? "").split(at: " ", limit: 2)
        guard credentials.count == 2, credentials[0].equalsIgnoringCase("Bearer"),
            let token = issuer.record(ofAccessToken: credentials[1].text), let family = token.family,
            issuer.isAlive(family: family)
        else { return AccountError.invalidToken.result }
        guard now < token.expiresAt else { return AccountError.expiredToken.result }
        issuer.logOut(family: family, now: now)
        return EndpointResult(.json(.ok) { writer in writer.member("status", "logged_out") })
    }

    // MARK: Values

    /// The session cookie (RFC 6265 §4.2.1); nil without one or with two.
    private static func cookie(_ request: Request) -> WireText? {
        let values = request.fields.values("Cookie").flatMap { $0.split(at: ";", limit: 64) }.map(\.trimmed).filter {
            $0.starts(with: WireText(cookieName + "="))
        }
        guard values.count == 1 else { return nil }
        return values[0].dropping(cookieName.utf8.count + 1)
    }

    private static func isEmail(_ text: WireText) -> Bool {
        let halves = text.split(at: "@", limit: 3)
        return halves.count == 2 && halves.allSatisfy { !$0.isEmpty } && text.count <= longestEmail
            && text.utf8.allSatisfy { $0 > 0x20 && $0 < 0x7f }
    }
}
