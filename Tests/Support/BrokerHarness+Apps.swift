import BrokerCore
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
package import JSON
package import OAuth
package import Reactor
import Testing

/// Apps that log in through the broker.
extension BrokerHarness {
    /// An app's PKCE verifier, whose challenge all logins of this file use.
    package static let appVerifier = "app-verifier-0123456789-0123456789-0123456789"
    package static var appChallenge: String { Base64URL.encode(SHA256.digest(Array(appVerifier.utf8))) }
    package static let appRedirect = "https://app.example/cb"

    /// Registers an app. Fails the test when it cannot.
    package func makeClient(
        _ id: String = "app", of tenant: String = "t1",
        _ body: String = #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "default"}"#
    ) async {
        let answer = await call(.put, "/tenants/\(tenant)/clients/\(id)", body: body)
        #expect(answer.status == 201 || answer.status == 200, "client refused: \(answer.text)")
    }

    /// An app's POST of a form.
    package func app(
        _ path: String, _ pairs: [(String, String)], authorization: String? = nil,
        source: NetworkSource = .unknown, waited: Duration = .zero
    ) async -> Answer {
        var fields: Fields = ["Content-Type": "application/x-www-form-urlencoded"]
        if let authorization { fields.append("Authorization", authorization) }
        return await call(
            .post, path, key: nil, body: FormEncoding.encode(pairs.map { .init($0.0, $0.1) }), fields: fields,
            source: source, waited: waited)
    }

    /// The query of an authorization request.
    package static func authorization(
        client: String = "app", _ changes: [String: String?] = [:]
    ) -> String {
        var parameters: [String: String?] = [
            "response_type": "code", "client_id": client, "redirect_uri": appRedirect, "state": "s-1",
            "code_challenge": appChallenge, "code_challenge_method": "S256",
        ]
        for (name, value) in changes { parameters.updateValue(value, forKey: name) }
        let pairs = parameters.sorted { $0.key < $1.key }.compactMap { name, value in
            value.map { FormEncoding.Pair(name, $0) }
        }
        return "/oauth2/authorize?" + FormEncoding.encode(pairs)
    }

    /// A browser that opens an authorization request.
    package func authorize(_ target: String, cookie: String? = nil) async -> Answer {
        var fields: Fields = ["Accept": Self.browserAccept]
        if let cookie { fields.append("Cookie", cookie) }
        return await call(.get, target, key: nil, fields: fields)
    }

    /// An app's login that has begun: what the provider has got, and the browser's cookie.
    package struct AppLogin: Sendable {
        package let uri: String
        package let cookie: String

        package var state: String { BrokerHarness.parameters(of: uri)["state"] ?? "" }
        /// The value of the cookie.
        package var value: String { String(cookie.split(separator: "=", maxSplits: 1)[1]) }
        /// The name of the cookie.
        package var name: String { String(cookie.split(separator: "=", maxSplits: 1)[0]) }
        package var id: String { String(name.suffix(22)) }
    }

    /// Begins an app's login in a browser; fails loudly when it cannot.
    package func beginAppLogin(_ target: String = authorization(), cookie: String? = nil) async -> AppLogin {
        let begun = await authorize(target, cookie: cookie)
        guard let login = Self.appLogin(begun) else { preconditionFailure("no login: \(begun.status) \(begun.text)") }
        return login
    }

    /// The login that an answer begins; nil for an answer that begins none.
    package static func appLogin(_ begun: Answer) -> AppLogin? {
        guard begun.status == 303, let cookie = cookie(begun), let uri = begun.fields["Location"]?.text else {
            return nil
        }
        return AppLogin(uri: uri, cookie: cookie)
    }

    /// What a browser shows that brings a response for the login.
    package func bring(
        _ response: String = "code=c-1", for login: AppLogin, cookie: String? = nil, accept: String? = browserAccept,
        source: NetworkSource = .unknown
    ) async -> Answer {
        var fields: Fields = ["Cookie": cookie ?? login.cookie]
        if let accept { fields.append("Accept", accept) }
        return await call(
            .get, "/login/callback?\(response)&state=\(login.state)", key: nil, fields: fields, source: source)
    }

    /// The login of an app by a browser, up to the redirect to the app.
    /// - Parameters:
    ///   - token: the provider's answer to the code; nil where the login does not come that far.
    ///   - response: the query that the provider's redirect has beside the state.
    ///   - decision: what the user answers where the broker asks.
    /// - Returns: the parameters that the app gets, or the answer that was not a redirect to it.
    package func logIn(
        app target: String, token: String?, response: String = "code=c-1", decision: String = "continue"
    ) async -> (parameters: [String: String], answer: Answer) {
        let begun = await authorize(target)
        guard let login = Self.appLogin(begun) else {
            return (Self.parameters(of: begun.fields["Location"]?.text ?? ""), begun)
        }
        if let token { transport.enqueue(.json(200, token)) }
        let answer = await bring(response, for: login)
        guard let asked = answer.fields["Location"]?.text, asked.contains("/login/confirm/") else {
            return (Self.parameters(of: answer.fields["Location"]?.text ?? ""), answer)
        }
        return await confirm(answer, login, decision)
    }

    /// The user of the browser that was asked presses a button.
    /// - Parameter asked: the answer that leads to the question.
    /// - Returns: the parameters that the app gets, and the answer.
    package func confirm(
        _ asked: Answer, _ login: AppLogin, _ decision: String = "continue"
    ) async -> (parameters: [String: String], answer: Answer) {
        let both = [login.cookie, Self.cookie(asked)].compactMap(\.self).joined(separator: "; ")
        let answer = await press(decision, at: Self.path(of: asked.fields["Location"]?.text ?? "///"), cookie: both)
        // A page that leads on, since Chromium holds redirects of forms against the page's policy.
        let leads = answer.text.split(separator: "href=\"").dropFirst().first?.split(separator: "\"").first
        return (Self.parameters(of: leads.map { String($0).replacing("&amp;", with: "&") } ?? ""), answer)
    }

    /// A code of a whole login. Fails the test when there is none.
    package func appCode(
        client: String = "app", token: String = token("access-1", refresh: "refresh-1", scope: "r_usr", userID: 42)
    ) async -> String {
        let (parameters, answer) = await logIn(app: Self.authorization(client: client), token: token)
        if parameters["code"] == nil { Issue.record("no code: \(answer.text) \(parameters)") }
        return parameters["code"] ?? ""
    }

    /// Exchanges a code.
    package func exchange(
        _ code: String, client: String = "app", _ changes: [String: String?] = [:], waited: Duration = .zero
    ) async -> Answer {
        var parameters: [String: String?] = [
            "grant_type": "authorization_code", "client_id": client, "code": code, "redirect_uri": Self.appRedirect,
            "code_verifier": Self.appVerifier,
        ]
        for (name, value) in changes { parameters.updateValue(value, forKey: name) }
        return await app(
            "/oauth2/token", parameters.compactMap { name, value in value.map { (name, $0) } }, waited: waited)
    }

    /// Refreshes.
    package func refresh(_ token: String, client: String = "app", waited: Duration = .zero) async -> Answer {
        await app(
            "/oauth2/token", [("grant_type", "refresh_token"), ("client_id", client), ("refresh_token", token)],
            waited: waited)
    }

    /// The refresh token of a whole login of an app. Fails the test when there is none.
    package func appSession(client: String = "app") async -> String {
        let answer = await exchange(await appCode(client: client), client: client)
        let token = answer.json["refresh_token"]?.text
        if token == nil { Issue.record("no session: \(answer.text)") }
        return token ?? ""
    }

    /// The sessions as operators see them.
    package func sessions(of tenant: String = "t1", query: String = "") async -> [JSONValue] {
        await call(.get, "/tenants/\(tenant)/sessions\(query)").json["sessions"]?.array ?? []
    }

    /// The names and data of the events that the log has.
    package func events(named name: String, of tenant: TenantName) async throws -> [JSONValue] {
        try await vault.entries(after: 0, tenant: tenant, limit: 10_000).flatMap { entry in
            BrokerEvent.events(in: entry.entry.content?.revealedBytes ?? []).compactMap { event in
                event.flatMap { $0.kind.rawValue == name ? try? JSONValue(parsing: $0.data) : nil }
            }
        }
    }
}
