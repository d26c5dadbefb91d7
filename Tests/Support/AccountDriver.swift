package import DevelopmentProvider
import ExternalText
package import HTTPCodec
package import HTTPServer
import JSON

/// An application at a development provider of the duckduckgo profile, without sockets.
package struct AccountDriver: Sendable {
    /// What DuckDuckGo's applications send: 128 bytes in base64url, longer than RFC 7636 permits.
    package static let verifier =
        String(repeating: "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk", count: 3)
        + String(
            repeating: "Z", count: 42)

    package let provider: DevelopmentProvider
    package var clientID = "app"
    package var redirectURI = "com.duckduckgo:/authcb"

    package init(_ provider: DevelopmentProvider) { self.provider = provider }

    // MARK: Requests

    package func get(_ path: String, _ query: [FormEncoding.Pair], fields: Fields = [:]) async -> Response {
        await provider.respond(
            to: Request(
                method: .get, path: "/api/auth/v2" + path, query: query.isEmpty ? nil : FormEncoding.encode(query),
                fields: fields))
    }

    package func post(
        _ path: String, query: String? = nil, cookie: String? = nil, bearer: String? = nil, json: String? = nil
    ) async -> Response {
        var fields: Fields = [:]
        if let cookie { fields.append("Cookie", cookie) }
        if let bearer { fields.append("Authorization", "Bearer " + bearer) }
        if json != nil { fields.append("Content-Type", "application/json") }
        return await provider.respond(
            to: Request(
                method: .post, path: "/api/auth/v2" + path, query: query, fields: fields, body: Array((json ?? "").utf8)
            ))
    }

    /// The parameters of an authorization request in the order of DuckDuckGo's applications, with `changes`. An empty
    /// value leaves one out.
    package func authorize(challenge: String, _ changes: [FormEncoding.Pair] = []) async -> Response {
        let usual: [FormEncoding.Pair] = [
            .init("response_type", "code"), .init("code_challenge", challenge), .init("code_challenge_method", "S256"),
            .init("client_id", clientID), .init("redirect_uri", redirectURI), .init("scope", "privacypro"),
        ]
        let pairs = usual.map { pair in changes.first { $0.name == pair.name } ?? pair }.filter { $0.value != "" }
        return await get("/authorize", pairs)
    }

    /// The cookie of a new session; nil when it failed.
    package func session(challenge: String) async -> String? {
        let response = await authorize(challenge: challenge)
        guard let cookie = response.fields["Set-Cookie"], response.status.code == 302 else { return nil }
        return cookie.split(at: ";", limit: 2)[0].text
    }

    package func logIn(_ cookie: String, signature: String) async -> Response {
        let body = JSONWriter.object { writer in
            writer.member("method", "signature")
            writer.member("signature", signature)
            writer.member("source", "apple_app_store")
        }
        return await post("/login", cookie: cookie, json: String(decoding: body, as: UTF8.self))
    }

    package func redeem(_ code: String, verifier: String) async -> Response {
        await get(
            "/token",
            [
                .init("grant_type", "authorization_code"), .init("client_id", clientID),
                .init("code_verifier", verifier), .init("code", code), .init("redirect_uri", redirectURI),
            ])
    }

    package func refresh(_ token: String) async -> Response {
        await get(
            "/token",
            [
                .init("grant_type", "refresh_token"), .init("client_id", clientID), .init("refresh_token", token),
            ])
    }
}
