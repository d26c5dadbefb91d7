import BrokerTesting
import Cryptography
import ExternalText
import HTTPCodec
import JSON
import Testing

/// What the tests of the broker rely on when they log in at a server from outside this project.
@Suite(.timeLimit(.minutes(4)))
struct `Glewlwyd server` {
    private static let redirectURI = "http://127.0.0.1:9/login/callback"
    /// The example of RFC 7636, appendix B.
    private static let codeVerifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"

    @Test func `a code of its login buys tokens once and only with the verifier`() async throws {
        let server = try await GlewlwydServer.start(.init(redirectURIs: [Self.redirectURI]))
        let redirect = try await logIn(at: server)
        #expect(redirect["state"] == "kept as it was")
        #expect(redirect["iss"] == server.issuer)
        let code = try #require(redirect["code"])

        let refused = try await redeem(code, codeVerifier: String(repeating: "x", count: 43), at: server)
        #expect(refused.status == 403)
        #expect(refused.body?["error"]?.string == "invalid_code")

        let granted = try await redeem(code, at: server)
        #expect(granted.status == 200)
        #expect(granted.body?["token_type"]?.string == "bearer")
        #expect(granted.body?["expires_in"]?.integer == 3600)
        #expect(granted.body?["scope"]?.string == "music")
        #expect(granted.body?["access_token"]?.string != nil)
        let refreshToken = try #require(granted.body?["refresh_token"]?.text)

        let repeated = try await redeem(code, at: server)
        #expect(repeated.status == 403)
        // A code that is used twice was stolen: what it bought is void (RFC 6749 section 4.1.2).
        #expect(try await refresh(refreshToken, at: server).status == 400)
        await server.stop()
    }

    @Test func `a refresh keeps the refresh token, and a withdrawn one is refused without a body`() async throws {
        let server = try await GlewlwydServer.start(.init(redirectURIs: [Self.redirectURI]))
        let refreshToken = try await refreshTokenOfLogin(at: server)

        let refreshed = try await refresh(refreshToken, at: server)
        #expect(refreshed.status == 200)
        #expect(refreshed.body?["access_token"]?.string != nil)
        #expect(refreshed.body?["refresh_token"] == nil)

        #expect(try await server.revokeRefreshTokens() == 1)
        let dead = try await refresh(refreshToken, at: server)
        #expect(dead.status == 400)
        #expect(dead.body == nil)
        await server.stop()
    }

    @Test func `a rotated refresh token dies, and its second use takes its successor along`() async throws {
        var options = GlewlwydServer.Options(redirectURIs: [Self.redirectURI])
        options.rotatesRefreshTokens = true
        options.sendsIssuer = false
        let server = try await GlewlwydServer.start(options)
        #expect(try await logIn(at: server)["iss"] == nil)
        let first = try await refreshTokenOfLogin(at: server)

        let second = try #require(try await refresh(first, at: server).body?["refresh_token"]?.text)
        #expect(second != first)
        let third = try #require(try await refresh(second, at: server).body?["refresh_token"]?.text)
        #expect(try await refresh(second, at: server).status == 400)
        #expect(try await refresh(third, at: server).status == 400)
        await server.stop()
    }

    @Test func `a revoked refresh token is refused`() async throws {
        let server = try await GlewlwydServer.start(.init(redirectURIs: [Self.redirectURI]))
        let refreshToken = try await refreshTokenOfLogin(at: server)
        let revocation = try await post(["token": refreshToken], as: server, to: server.revocationEndpoint)
        #expect(revocation.status == 200)
        #expect(try await refresh(refreshToken, at: server).status == 400)
        await server.stop()
    }

    @Test func `the client gets a token of its own`() async throws {
        let server = try await GlewlwydServer.start(.init(redirectURIs: [Self.redirectURI]))
        let form = ["grant_type": "client_credentials", "scope": "music"]
        let granted = try await post(form, as: server, to: server.tokenEndpoint)
        #expect(granted.status == 200)
        #expect(granted.body?["access_token"]?.string != nil)
        #expect(granted.body?["refresh_token"] == nil)
        await server.stop()
    }

    @Test func `a device login is pending until the user approves it`() async throws {
        var options = GlewlwydServer.Options(redirectURIs: [Self.redirectURI])
        options.deviceInterval = 7
        let server = try await GlewlwydServer.start(options)
        let waiting = try await startDeviceLogin(at: server)
        let pending = try await poll(waiting.deviceCode, at: server)
        #expect(pending.status == 400)
        #expect(pending.body?["error"]?.string == "authorization_pending")
        #expect(try await poll(waiting.deviceCode, at: server).body?["error"]?.string == "slow_down")

        let approved = try await startDeviceLogin(at: server)
        await #expect(throws: ServerFailure.self) { try await server.approveDevice(userCode: "AAAA-AAAA") }
        try await server.approveDevice(userCode: approved.userCode)
        let granted = try await poll(approved.deviceCode, at: server)
        #expect(granted.status == 200)
        #expect(granted.body?["refresh_token"]?.string != nil)
        await server.stop()
    }

    @Test func `an unregistered redirect URI leads nowhere, an unknown scope back with an error`() async throws {
        let server = try await GlewlwydServer.start(.init(redirectURIs: [Self.redirectURI]))
        await #expect(throws: ServerFailure.self) { try await logIn(at: server, redirectURI: "http://127.0.0.1:9/") }
        #expect(try await logIn(at: server, scope: "unheard-of")["error"] == "invalid_scope")
        await server.stop()
    }

    @Test func `it speaks TLS with a certificate of its own authority`() async throws {
        var options = GlewlwydServer.Options(redirectURIs: [Self.redirectURI])
        options.speaksTLS = true
        let server = try await GlewlwydServer.start(options)
        #expect(server.issuer.hasPrefix("https://127.0.0.1:"))
        #expect(server.certificateAuthorityFile.hasSuffix(".pem"))
        #expect(try await logIn(at: server)["code"] != nil)
        await server.stop()
    }

    // MARK: A client by hand

    private func logIn(
        at server: GlewlwydServer, scope: String = "music", redirectURI: String = redirectURI
    ) async throws -> [String: String] {
        let challenge = Base64URL.encode(SHA256.digest(Array(Self.codeVerifier.utf8)))
        let query = FormEncoding.encode([
            .init("response_type", "code"), .init("client_id", server.clientID), .init("redirect_uri", redirectURI),
            .init("scope", scope), .init("state", "kept as it was"), .init("code_challenge", challenge),
            .init("code_challenge_method", "S256"),
        ])
        let redirect = try await server.logIn(authorizeURL: "\(server.authorizationEndpoint)?\(query)")
        let question = try #require(redirect.firstIndex(of: "?"))
        #expect(redirect[..<question] == redirectURI)
        let fields = try FormEncoding.decode(String(redirect[redirect.index(after: question)...]))
        return Dictionary(fields.map { ($0.name.text, $0.value.text) }) { _, last in last }
    }

    private func redeem(
        _ code: String, codeVerifier: String = codeVerifier, at server: GlewlwydServer
    ) async throws -> (status: Int, body: JSONValue?) {
        let form = [
            "grant_type": "authorization_code", "code": code, "redirect_uri": Self.redirectURI,
            "code_verifier": codeVerifier,
        ]
        return try await post(form, as: server, to: server.tokenEndpoint)
    }

    private func refreshTokenOfLogin(at server: GlewlwydServer) async throws -> String {
        let code = try #require(try await logIn(at: server)["code"])
        return try #require(try await redeem(code, at: server).body?["refresh_token"]?.text)
    }

    private func refresh(
        _ refreshToken: String, at server: GlewlwydServer
    ) async throws -> (status: Int, body: JSONValue?) {
        let form = ["grant_type": "refresh_token", "refresh_token": refreshToken]
        return try await post(form, as: server, to: server.tokenEndpoint)
    }

    private func startDeviceLogin(at server: GlewlwydServer) async throws -> (deviceCode: String, userCode: String) {
        let started = try await post(["scope": "music"], as: server, to: server.deviceAuthorizationEndpoint)
        #expect(started.body?["interval"]?.integer == 7)
        let deviceCode = try #require(started.body?["device_code"]?.text)
        return (deviceCode, try #require(started.body?["user_code"]?.text))
    }

    private func poll(
        _ deviceCode: String, at server: GlewlwydServer
    ) async throws -> (status: Int, body: JSONValue?) {
        let form = ["grant_type": "urn:ietf:params:oauth:grant-type:device_code", "device_code": deviceCode]
        return try await post(form, as: server, to: server.tokenEndpoint)
    }

    private func post(
        _ form: [String: String], as server: GlewlwydServer, to url: String
    ) async throws -> (status: Int, body: JSONValue?) {
        let secret = ["client_id": server.clientID, "client_secret": server.clientSecret]
        return try await server.post(form.merging(secret) { own, _ in own }, to: url)
    }
}
