package import DevelopmentProvider
import ExternalText
package import HTTPCodec
package import HTTPServer
package import JSON

/// A client and a browser of a development provider, without sockets.
package struct ProviderDriver: Sendable {
    /// RFC 7636 appendix B.
    package static let verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
    package static let challenge = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"

    package let provider: DevelopmentProvider
    package var clientID: String
    package var redirectURI = "https://broker.test/login/callback"

    package init(_ provider: DevelopmentProvider, clientID: String = "app") {
        self.provider = provider
        self.clientID = clientID
    }

    private var isTIDAL: Bool { provider.configuration.profile == .tidal }
    private var isAuthgear: Bool { provider.configuration.profile == .authgear }
    package var tokenPath: String { isTIDAL ? "/v1/oauth2/token" : isAuthgear ? "/oauth2/token" : "/token" }
    package var devicePath: String { isTIDAL ? "/v1/oauth2/device_authorization" : "/device_authorization" }

    // MARK: Requests

    package func get(_ path: String, _ query: [FormEncoding.Pair] = []) async -> Response {
        let query = query.isEmpty ? nil : FormEncoding.encode(query)
        return await provider.respond(to: Request(method: .get, path: path, query: query))
    }

    package func post(
        _ path: String, _ form: [FormEncoding.Pair], query: String? = nil, fields: Fields = [:]
    ) async -> Response {
        await post(path, body: FormEncoding.encode(form), query: query, fields: fields)
    }

    package func post(
        _ path: String, body: String, query: String? = nil, fields: Fields = [:]
    ) async -> Response {
        var all: Fields = ["Content-Type": "application/x-www-form-urlencoded"]
        for field in fields.all { all.set(field.name.text, field.value.text) }
        return await provider.respond(
            to: Request(method: .post, path: path, query: query, fields: all, body: Array(body.utf8)))
    }

    /// A call of the control interface; the body is JSON.
    package func control(_ method: Method, _ path: String, _ body: String = "") async -> Response {
        await provider.respond(
            to: Request(
                method: method, path: "/_control" + path, fields: ["Content-Type": "application/json"],
                body: Array(body.utf8)))
    }

    /// A token request of this client.
    package func token(_ grant: GrantType, _ form: [FormEncoding.Pair]) async -> Response {
        await post(tokenPath, [.init("grant_type", grant.rawValue), .init("client_id", clientID)] + form)
    }

    // MARK: Flows

    /// The parameters of an authorization request, those of `changes` in place of the usual ones; an empty value
    /// leaves one out.
    package func authorizationRequest(_ changes: [FormEncoding.Pair] = []) -> [FormEncoding.Pair] {
        let usual: [FormEncoding.Pair] = [
            .init("response_type", "code"), .init("client_id", clientID), .init("redirect_uri", redirectURI),
            .init("state", "xyz"), .init("code_challenge", Self.challenge), .init("code_challenge_method", "S256"),
        ]
        return usual.filter { pair in !changes.contains { $0.name == pair.name } } + changes.filter { $0.value != "" }
    }

    /// Fetches the login page and submits its form: the answer to the submission.
    package func decide(
        _ decision: String = "approve", user: String = "alice", _ changes: [FormEncoding.Pair] = []
    ) async -> Response {
        let page = await get(isAuthgear ? "/oauth2/authorize" : "/authorize", authorizationRequest(changes))
        guard let form = ProviderForm(html: page.text) else { return page }
        return await post(
            form.action, body: form.submission([.init("user", user), .init("decision", decision)]))
    }

    /// The authorization code of a login; nil when it failed.
    package func login(user: String = "alice", _ changes: [FormEncoding.Pair] = []) async -> String? {
        await decide(user: user, changes).redirectParameters?["code"]
    }

    package func redeem(_ code: String, _ changes: [FormEncoding.Pair] = []) async -> Response {
        let usual: [FormEncoding.Pair] = [
            .init("code", code), .init("redirect_uri", redirectURI), .init("code_verifier", Self.verifier),
        ]
        return await token(
            .authorizationCode,
            usual.filter { pair in !changes.contains { $0.name == pair.name } } + changes.filter { $0.value != "" })
    }

    package func refresh(_ token: String, scope: String = "") async -> Response {
        await self.token(.refreshToken, [.init("refresh_token", token), .init("scope", scope)])
    }

    /// A whole login: the token response's members; nil when it failed.
    package func session(user: String = "alice", scope: String = "r_usr w_usr") async -> JSONValue? {
        guard let code = await login(user: user, [.init("scope", scope)]) else { return nil }
        let response = await redeem(code)
        return response.status == .ok ? response.json : nil
    }
}

extension Response {
    package var text: String { String(decoding: body, as: UTF8.self) }

    /// The content as JSON; nil when it is none.
    package var json: JSONValue? { try? JSONValue(parsing: body) }

    /// The query of `Location` by name; nil without one or when a name is repeated.
    package var redirectParameters: [String: String]? {
        guard let location = fields["Location"]?.text, let mark = location.firstIndex(of: "?"),
            let pairs = try? FormEncoding.decode(String(location[location.index(after: mark)...])),
            Set(pairs.map(\.name)).count == pairs.count
        else { return nil }
        return Dictionary(uniqueKeysWithValues: pairs.map { ($0.name.text, $0.value.text) })
    }
}
