import BrokerTesting
import Cryptography
import DevelopmentProvider
import ExternalText
import HTTPCodec
import HTTPServer
import JOSE
import JSON
import OAuth
import Reactor
import Testing

private func expect(
    _ answer: Response, _ error: String, _ description: String, status: Int = 400,
    sourceLocation: SourceLocation = #_sourceLocation
) {
    #expect(answer.status.code == status, sourceLocation: sourceLocation)
    #expect(answer.json?["error"]?.string == WireText(error), sourceLocation: sourceLocation)
    #expect(answer.json?["error_description"]?.string == WireText(description), sourceLocation: sourceLocation)
    #expect(answer.fields["Cache-Control"] == "no-store", sourceLocation: sourceLocation)
    #expect(answer.fields["Pragma"] == "no-cache", sourceLocation: sourceLocation)
}

@Suite struct `Authgear challenges` {
    @Test func `a challenge has 32 characters and is valid for five minutes`() async throws {
        let apps = try AuthgearFixture()
        let answer = await apps.challengeAnswer(#"{"purpose":"app2app_request"}"#)
        #expect(answer.status == .ok)
        let token = try #require(answer.json?["result"]?["token"]?.text)
        #expect(token.utf8.count == 32)
        #expect(token.allSatisfy { "0123456789ABCDEFGHJKMNPQRSTVWXYZ".contains($0) })
        #expect(apps.provider.now == 1_800_000_000_000)
        #expect(answer.json?["result"]?["expire_at"]?.string == "2027-01-15T08:05:00Z")
    }

    @Test(arguments: [
        ("{}", "purpose is missing"), (#"{"purpose":"login"}"#, "unknown challenge purpose"),
        (#"{"purpose":1}"#, "unknown challenge purpose"),
        (#"{"purpose":"app2app_request","x":1}"#, "there are other members than purpose"),
        ("[]", "the body is not a JSON object"), ("", "the body is not a JSON object"),
    ])
    func `a request that is not exact fails the validation`(body: String, message: String) async throws {
        let answer = await (try AuthgearFixture()).challengeAnswer(body)
        #expect(answer.status == .badRequest)
        #expect(answer.json?["error"]?["reason"]?.string == "ValidationFailed")
        #expect(answer.json?["error"]?["message"]?.string == WireText(message))
    }

    @Test(arguments: [(299, true), (300, false), (301, false)])
    func `a challenge expires`(seconds: Int, works: Bool) async throws {
        let apps = try AuthgearFixture()
        let token = try await apps.session(key: apps.key)
        let challenge = try await apps.challenge()
        apps.provider.advance(by: .seconds(seconds))
        let answer = try await apps.approve(token, jwt: apps.key.proof(challenge, now: apps.now))
        if works {
            #expect(answer.status == .ok)
        } else {
            expect(answer, "invalid_request", "invalid app2app jwt challenge")
        }
    }

    @Test func `a challenge is used once, and a use for another purpose ends it`() async throws {
        let apps = try AuthgearFixture()
        let token = try await apps.session(key: apps.key)
        let proof = try apps.key.proof(await apps.challenge(), now: apps.now)
        #expect(try await apps.approve(token, jwt: proof).status == .ok)
        expect(try await apps.approve(token, jwt: proof), "invalid_request", "invalid app2app jwt challenge")
        let wrong = try apps.key.proof(await apps.challenge("biometric_request"), now: apps.now)
        expect(try await apps.approve(token, jwt: wrong), "invalid_request", "invalid app2app jwt challenge")
        expect(try await apps.approve(token, jwt: wrong), "invalid_request", "invalid app2app jwt challenge")
    }
}

@Suite struct `Authgear app2app grant` {
    private typealias Pair = FormEncoding.Pair

    @Test(arguments: [
        "urn:authgear:params:oauth:grant-type:app2app", "urn:authgear:params:oauth:grant-type:app2app-request",
    ])
    func `by both names it answers a code for the other app only`(grant: WireText) async throws {
        let apps = try AuthgearFixture()
        let token = try await apps.session(key: apps.key)
        let answer = try await apps.approve(token, [.init("grant_type", grant)])
        #expect(answer.status == .ok)
        #expect(answer.json?.object?.count == 1)
        let code = try #require(answer.json?["code"]?.text)
        #expect(code.utf8.count == 32)
        let tokens = await apps.driver("other").redeem(
            code, [.init("redirect_uri", WireText(AuthgearFixture.redirect))])
        #expect(tokens.status == .ok)
        #expect(tokens.json?["refresh_token"]?.string != nil, "the scope is that of the session")
        #expect(await apps.driver.refresh(token).status == .ok, "the grant leaves the refresh token as it is")
    }

    /// Each request has all faults of the rows after its own too, so that the order shows.
    @Test func `the checks come in their order`() async throws {
        let apps = try AuthgearFixture()
        var changes: [FormEncoding.Pair] = [
            .init("client_id", "unknown"), .init("grant_type", "unknown"), .init("jwt", ""), .init("refresh_token", ""),
            .init("redirect_uri", ""), .init("code_challenge_method", "plain"),
        ]
        func fix(_ name: WireText, _ value: WireText) {
            changes.removeAll { $0.name == name }
            changes.append(.init(name, value))
        }
        func check(_ error: String, _ description: String, sourceLocation: SourceLocation = #_sourceLocation)
            async throws
        {
            expect(try await apps.approve("", changes), error, description, sourceLocation: sourceLocation)
        }
        apps.provider.configure { $0.allowsAppToApp = false }
        try await check("invalid_client", "invalid client ID")
        fix("client_id", "other")
        try await check("unsupported_grant_type", "grant type is not supported")
        fix("grant_type", "urn:authgear:params:oauth:grant-type:app2app")
        try await check("invalid_request", "jwt is required")
        fix("jwt", "no JWT")
        try await check("invalid_request", "refresh token is required")
        fix("refresh_token", "unknown")
        try await check("invalid_request", "redirect uri is required")
        fix("redirect_uri", "nowhere")
        try await check("invalid_request", "only 'S256' PKCE transform is supported")
        fix("code_challenge_method", "S256")
        try await check("invalid_request", "app2app disabled")
        apps.provider.configure { $0.allowsAppToApp = true }
        try await check("invalid_request", "invalid redirect URI")
        fix("redirect_uri", "https://other.test/cb/")
        try await check("invalid_request", "redirect URI is not allowed")
        fix("redirect_uri", WireText(AuthgearFixture.redirect))
        try await check("invalid_grant", "invalid refresh token")
        let unbound = try await apps.session(key: nil)
        fix("refresh_token", WireText(unbound))
        apps.provider.configure { $0.clients[0].id = "gone" }
        try await check("server_error", "cannot find original client for app2app")
        apps.provider.configure {
            $0.clients[0].id = "app"
            $0.clients[0].allowsAppToApp = false
            $0.clients[0].requiresBiometricProtection = true
        }
        try await check("unauthorized_client", "this client may not use app2app authentication")
        apps.provider.configure { $0.clients[0].allowsAppToApp = true }
        try await check("access_denied", "app2app requires biometric authentication")
        apps.provider.configure { $0.clients[0].requiresBiometricProtection = false }
        try await check("invalid_request", "invalid app2app jwt payload")
        fix("jwt", WireText(try apps.key.proof("unknown", now: apps.now)))
        try await check("invalid_request", "invalid app2app jwt challenge")
        fix("jwt", WireText(try apps.key.proof(await apps.challenge(), now: apps.now)))
        try await check("invalid_grant", "app2app is not allowed in current session")
        let bound = try await apps.session(key: try AppKey())
        fix("refresh_token", WireText(bound))
        fix("jwt", WireText(try apps.key.proof(await apps.challenge(), now: apps.now)))
        try await check("invalid_request", "invalid app2app jwt signature")
    }

    @Test func `a proof has a key with an identifier, the right type and times of now`() async throws {
        let apps = try AuthgearFixture()
        let token = try await apps.session(key: apps.key)
        let second = apps.now.milliseconds / 1000
        let short = try AppKey(keyID: "1234567")
        let odd = try AppKey(keyID: "1234567.")
        let now = apps.now
        let proofs: [(String) throws -> String] = [
            { try apps.key.proof($0, now: now, embedsKey: false) }, { try short.proof($0, now: now) },
            { try odd.proof($0, now: now) },
            { try apps.key.proof($0, now: now, type: "vnd.authgear.biometric-request") },
            { try apps.key.proof($0, now: now, claims: ["exp": "\(second - 300)"]) },
            { try apps.key.proof($0, now: now, claims: ["nbf": "\(second + 301)"]) },
            { try apps.key.proof($0, now: now, claims: ["iat": "\(second + 301)"]) },
            { try apps.key.proof($0, now: now, claims: ["challenge": ""]) },
        ]
        for (index, proof) in proofs.enumerated() {
            let answer = try await apps.approve(token, jwt: proof(await apps.challenge()))
            #expect(answer.json?["error_description"]?.string == "invalid app2app jwt payload", "proof \(index)")
        }
        let tolerated: [(String) throws -> String] = [
            { try apps.key.proof($0, now: now, claims: ["exp": "\(second - 299)"]) },
            { try apps.key.proof($0, now: now, claims: ["nbf": "\(second + 300)"]) },
            { try apps.key.proof($0, now: now, action: nil, claims: ["iat": "", "exp": ""]) },
        ]
        for (index, proof) in tolerated.enumerated() {
            let answer = try await apps.approve(token, jwt: proof(await apps.challenge()))
            #expect(answer.status == .ok, "proof \(index)")
        }
    }

    @Test func `an insecure client's session is bound once, by a proof that is signed with the key`() async throws {
        let apps = try AuthgearFixture()
        let token = try await apps.session("insecure", key: nil)
        let proof = try apps.key.proof(await apps.challenge(), now: apps.now)
        let parts = proof.split(separator: ".").map(String.init)
        let strange = try AppKey().proof(await apps.challenge(), now: apps.now).split(separator: ".").map(String.init)
        let forged = [parts[0], parts[1], strange[2]].joined(separator: ".")
        expect(try await apps.approve(token, jwt: forged), "invalid_request", "invalid app2app jwt signature")
        let second = try AppKey()
        #expect(
            try await apps.approve(token, jwt: second.proof(await apps.challenge(), now: apps.now)).status == .ok,
            "the forged proof has bound no key")
        expect(try await apps.approve(token), "invalid_request", "invalid app2app jwt signature")
    }

    @Test func `a session that was revoked or a token that was rotated lets no app in`() async throws {
        let apps = try AuthgearFixture { $0.clients[3].allowsAppToApp = true }
        let first = try await apps.session("rotating", key: apps.key)
        #expect(await apps.driver("rotating").refresh(first).status == .ok)
        expect(try await apps.approve(first), "invalid_grant", "invalid refresh token")
        let revoked = try await apps.session(key: apps.key)
        #expect(
            await apps.driver.post("/oauth2/revoke", [.init("client_id", "app"), .init("token", WireText(revoked))])
                .status == .ok)
        expect(try await apps.approve(revoked), "invalid_grant", "invalid refresh token")
    }

    @Test func `requests are limited by address and by user`() async throws {
        let apps = try AuthgearFixture()
        let token = try await apps.session(key: apps.key)
        for _ in 0..<60 {
            expect(try await apps.approve(token, jwt: "none"), "invalid_request", "invalid app2app jwt payload")
        }
        let message = "rate limit exceeded, please try again later."
        expect(try await apps.approve(token), "x_rate_limited", message, status: 429)
        for _ in 0..<58 { _ = await apps.driver.refresh("unknown") }
        expect(await apps.driver.refresh(token), "x_rate_limited", message, status: 429)
        apps.provider.advance(by: .seconds(60))
        #expect(try await apps.approve(token).status == .ok)
        apps.provider.configure { $0.limitsTokenRequests = false }
        for _ in 0..<121 { _ = try await apps.approve(token, jwt: "none") }
        #expect(try await apps.approve(token).status == .ok)
    }
}

@Suite struct `Authgear codes and tokens` {
    @Test func `a login with a device key needs a proof that is right, unless the client lets no apps in`() async throws
    {
        let apps = try AuthgearFixture()
        let code = try #require(await apps.driver.login([.init("scope", WireText(AuthgearFixture.scope))]))
        func redeem(_ jwt: String) async -> Response {
            await apps.driver.redeem(code, [.init("x_app2app_device_key_jwt", WireText(jwt))])
        }
        expect(await redeem("no JWT"), "invalid_request", "invalid app2app jwt payload")
        expect(
            await redeem(try apps.key.proof("unknown", now: apps.now)), "invalid_request",
            "invalid app2app jwt challenge")
        #expect(await redeem(try apps.key.proof(await apps.challenge(), now: apps.now)).status == .ok)

        let plain = try #require(await apps.driver("plain").login())
        #expect(
            await apps.driver("plain").redeem(plain, [.init("x_app2app_device_key_jwt", "no JWT")]).status == .ok)
    }

    @Test func `only success ends a code, and only its client redeems it`() async throws {
        let apps = try AuthgearFixture()
        let code = try #require(await apps.driver.login())
        expect(await apps.driver("plain").redeem(code), "invalid_grant", "invalid authorization code")
        expect(
            await apps.driver.redeem(code, [.init("redirect_uri", "https://broker.test/login/callback/")]),
            "invalid_request", "invalid redirect URI")
        expect(
            await apps.driver.redeem(code, [.init("code_verifier", "")]), "invalid_request",
            "PKCE code verifier is required")
        expect(
            await apps.driver.redeem(code, [.init("code_verifier", WireText(String(repeating: "v", count: 43)))]),
            "invalid_grant", "invalid authorization code")
        #expect(await apps.driver.redeem(code).status == .ok)
        expect(await apps.driver.redeem(code), "invalid_grant", "invalid authorization code")
    }

    @Test(arguments: [(299, true), (300, false), (301, false)])
    func `a code expires after five minutes`(seconds: Int, works: Bool) async throws {
        let apps = try AuthgearFixture()
        let code = try #require(await apps.driver.login())
        apps.provider.advance(by: .seconds(seconds))
        #expect((await apps.driver.redeem(code).status == .ok) == works)
    }

    @Test func `a code without a challenge is of no use to a public client`() async throws {
        let apps = try AuthgearFixture()
        let token = try await apps.session(key: apps.key)
        let answer = try await apps.approve(token, [.init("code_challenge", ""), .init("code_challenge_method", "")])
        let code = try #require(answer.json?["code"]?.text)
        let redirect = FormEncoding.Pair("redirect_uri", WireText(AuthgearFixture.redirect))
        expect(
            await apps.driver("other").redeem(code, [redirect, .init("code_verifier", "")]), "invalid_request",
            "PKCE code verifier is required")
        expect(
            await apps.driver("other").redeem(code, [redirect]), "invalid_grant", "invalid authorization code")
    }

    @Test func `a confidential client sends its secret, in the form or else in the header`() async throws {
        let apps = try AuthgearFixture()
        let backend = apps.driver("backend")
        let code = try #require(await backend.login())
        expect(await backend.redeem(code), "invalid_client", "client secret is required")
        expect(
            await backend.redeem(code, [.init("client_secret", "wrong")]), "invalid_request", "invalid client secret")
        let form: [FormEncoding.Pair] = [
            .init("grant_type", "authorization_code"), .init("code", WireText(code)),
            .init("redirect_uri", WireText(backend.redirectURI)),
            .init("code_verifier", WireText(ProviderDriver.verifier)),
        ]
        let basic = "Basic " + Base64.encode(Array("backend:s3cret".utf8))
        expect(
            await backend.post(
                "/oauth2/token", form + [.init("client_id", "backend")], fields: ["Authorization": basic]),
            "invalid_client", "client secret is required")
        #expect(await backend.post("/oauth2/token", form, fields: ["Authorization": basic]).status == .ok)
    }

    @Test func `tokens are signed, and refresh tokens come for the scope offline_access`() async throws {
        let apps = try AuthgearFixture()
        let tokens = try await apps.login(key: nil)
        let access = try #require(tokens["access_token"]?.text)
        let jws = try CompactJWS(
            parsing: WireText(access), policy: JWSPolicy(algorithms: [.es256], types: ["at+jwt"]))
        let keys = try JSONWebKeySet(parsing: await apps.driver.get("/oauth2/jwks").body)
        let subject = try jws.verified(with: keys).claims().subject
        #expect(tokens["expires_in"] == .integer(1800))
        #expect(tokens["id_token"]?.string != nil)
        let refresh = try #require(tokens["refresh_token"]?.text).split(separator: ".")
        #expect(refresh.count == 2 && refresh[1].utf8.count == 32)
        #expect(try await apps.login(key: nil, scope: "openid")["refresh_token"] == nil)

        let user = await apps.provider.respond(
            to: Request(method: .get, path: "/oauth2/userinfo", fields: ["Authorization": "Bearer " + access]))
        #expect(user.status == .ok)
        #expect(user.json?["sub"]?.string == subject)
        #expect(await apps.driver.get("/oauth2/userinfo").status == .unauthorized)
    }

    @Test func `refresh tokens are rotated for clients that want it, and an old one is refused alone`() async throws {
        let apps = try AuthgearFixture()
        let kept = try await apps.session(key: nil)
        let answer = await apps.driver.refresh(kept)
        #expect(answer.status == .ok)
        #expect(answer.json?["refresh_token"] == nil)
        let first = try await apps.session("rotating", key: nil)
        let second = try #require(await apps.driver("rotating").refresh(first).json?["refresh_token"]?.text)
        #expect(second.split(separator: ".")[0] == first.split(separator: ".")[0])
        expectError(await apps.driver("rotating").refresh(first), "invalid_grant")
        #expect(await apps.driver("rotating").refresh(second).status == .ok)
        expect(
            await apps.driver("plain").refresh(kept), "invalid_request",
            "client id doesn't match the refresh token")
    }

    @Test func `a public client needs a code challenge to begin, a confidential one does not`() async throws {
        let apps = try AuthgearFixture()
        let none: [FormEncoding.Pair] = [.init("code_challenge", ""), .init("code_challenge_method", "")]
        let refused = await apps.driver.get("/oauth2/authorize", apps.driver.authorizationRequest(none))
        #expect(refused.redirectParameters?["error"] == "invalid_request")
        #expect(await apps.driver("backend").login(none) != nil)
    }

    @Test(arguments: ["/.well-known/openid-configuration", "/.well-known/oauth-authorization-server"])
    func `the metadata names the endpoints`(path: String) async throws {
        let metadata = try #require(await (try AuthgearFixture()).driver.get(path).json)
        for (name, path) in [
            ("authorization_endpoint", "authorize"), ("token_endpoint", "token"), ("revocation_endpoint", "revoke"),
            ("challenge_endpoint", "challenge"), ("userinfo_endpoint", "userinfo"), ("jwks_uri", "jwks"),
        ] {
            #expect(metadata[WireText(name)]?.string == WireText("http://127.0.0.1:8181/oauth2/" + path))
        }
    }

    @Test func `link files name the apps`() async throws {
        let apps = try AuthgearFixture {
            $0.androidApps = [AndroidApp(packageName: "test.app", fingerprints: ["AA:BB"])]
            $0.appleApps = ["TEAM.test.app"]
        }
        let android = try #require(await apps.driver.get("/.well-known/assetlinks.json").json?.array?.first)
        #expect(android["relation"]?.array == [.string("delegate_permission/common.handle_all_urls")])
        #expect(android["target"]?["package_name"]?.string == "test.app")
        #expect(android["target"]?["sha256_cert_fingerprints"]?.array == [.string("AA:BB")])
        let apple = await apps.driver.get("/.well-known/apple-app-site-association").json
        #expect(apple?["applinks"]?["details"]?.array?.first?["appIDs"]?.array == [.string("TEAM.test.app")])
    }

    @Test(arguments: [
        ("challenge", Method.post, "/oauth2/challenge"), ("userinfo", .get, "/oauth2/userinfo"),
        ("asset_links", .get, "/.well-known/assetlinks.json"),
        ("apple_app_site_association", .get, "/.well-known/apple-app-site-association"),
    ])
    func `the control interface disturbs the endpoints`(name: String, method: Method, path: String) async throws {
        let apps = try AuthgearFixture()
        let scripted = await apps.driver.control(.post, "/faults", #"{"endpoint":"\#(name)","status":503}"#)
        #expect(scripted.status == .noContent)
        let request = Request(method: method, path: path)
        #expect(await apps.provider.respond(to: request).status.code == 503)
        #expect(await apps.provider.respond(to: request).status.code != 503)
    }
}

@Suite struct `Authgear biometric keys` {
    /// A fixture whose user has the biometric key.
    private func setUp(_ apps: AuthgearFixture, _ key: AppKey, client: String = "app") async throws {
        let access = try #require(try await apps.login(client, key: nil)["access_token"]?.text)
        let answer = await apps.biometric(
            try await apps.biometricProof(key, "setup"), client: client, bearer: access)
        #expect(answer.status == .ok)
        #expect(answer.body.isEmpty)
    }

    @Test func `a key is set up by its user and logs the user in`() async throws {
        let apps = try AuthgearFixture()
        let key = try AppKey()
        try await setUp(apps, key)
        let first = await apps.biometric(try await apps.biometricProof(key, "authenticate"))
        #expect(first.status == .ok)
        #expect(first.json?["code"] == nil)
        let token = try #require(first.json?["refresh_token"]?.text)
        #expect(await apps.driver.refresh(token).status == .ok)
        #expect(await apps.biometric(try await apps.biometricProof(key, "authenticate")).status == .ok)
        expectError(await apps.driver.refresh(token), "invalid_grant")
    }

    @Test func `a request that is wrong is refused by name`() async throws {
        let apps = try AuthgearFixture()
        let key = try AppKey()
        expect(
            await apps.biometric(try await apps.biometricProof(key, "setup")), "invalid_grant",
            "biometric setup requires authenticated user", status: 401)
        try await setUp(apps, key)
        expect(
            await apps.biometric(try await apps.biometricProof(key, "remove")), "invalid_request",
            "invalid action: remove")
        expect(await apps.biometric("no JWT"), "invalid_grant", "InvalidCredentials")
        expect(await apps.biometric(""), "invalid_request", "jwt is required")
        let proof = try key.proof(
            await apps.challenge(), now: apps.now, type: "vnd.authgear.biometric-request", action: "authenticate")
        expect(await apps.biometric(proof), "invalid_grant", "InvalidCredentials")
        expect(
            await apps.biometric(try await apps.biometricProof(try AppKey(), "authenticate")), "invalid_grant",
            "InvalidCredentials")
        expect(
            await apps.biometric(try await apps.biometricProof(key, "authenticate"), client: "plain"),
            "invalid_grant", "InvalidCredentials")
        expectError(
            await apps.biometric(
                try await apps.biometricProof(key, "authenticate"), [.init("scope", "openid offline_access")]),
            "invalid_scope")
    }

    @Test(arguments: ["app", "protected"])
    func `a key lets another app in besides, also where protection is required`(client: String) async throws {
        let apps = try AuthgearFixture()
        let key = try AppKey()
        try await setUp(apps, key, client: client)
        let destination: [FormEncoding.Pair] = [
            .init("redirect_uri", WireText(AuthgearFixture.redirect)),
            .init("code_challenge", WireText(ProviderDriver.challenge)), .init("code_challenge_method", "S256"),
        ]
        let answer = await apps.biometric(
            try await apps.biometricProof(key, "authenticate_app2app", target: "other"), client: client, destination)
        #expect(answer.status == .ok)
        #expect(answer.json?["refresh_token"]?.string != nil)
        let code = try #require(answer.json?["code"]?.text)
        let tokens = await apps.driver("other").redeem(code, [destination[0]])
        #expect(tokens.json?["access_token"]?.string != nil)
    }

    @Test func `a key lets in only apps that are known, at their addresses, for clients that may`() async throws {
        let apps = try AuthgearFixture()
        let key = try AppKey()
        try await setUp(apps, key)
        func approve(_ target: String?, _ redirect: WireText, client: String = "app") async throws -> Response {
            await apps.biometric(
                try await apps.biometricProof(key, "authenticate_app2app", target: target), client: client,
                [.init("redirect_uri", redirect)])
        }
        let redirect = WireText(AuthgearFixture.redirect)
        expect(try await approve(nil, redirect), "invalid_request", "client id is required")
        expect(try await approve("unknown", redirect), "invalid_client", "invalid client ID")
        expect(try await approve("other", ""), "invalid_request", "redirect uri is required")
        expect(try await approve("other", "https://evil.test/cb"), "invalid_request", "redirect URI is not allowed")
        expect(
            try await approve("other", redirect, client: "plain"), "unauthorized_client",
            "this client may not use app2app authentication")
    }
}

@Suite struct `Authgear options` {
    @Test func `clients and apps are configured one by one`() throws {
        let options = try ProviderOptions(arguments: [
            "--profile", "authgear", "--client", "a", "--client", "b", "--client-redirect-uri", "b=https://b.test/?x=1",
            "--x-app2app-enabled", "a", "--x-app2app-insecure-device-key-binding-enabled", "a",
            "--x-app2app-biometric-protection-required", "b", "--refresh-token-rotation-enabled", "b",
            "--android-app", "test.app=AA:BB", "--android-app", "test.app=CC:DD", "--apple-app", "TEAM.test.app",
            "--no-rate-limits",
        ])
        var a = ProviderClient("a")
        a.allowsAppToApp = true
        a.bindsInsecurely = true
        var b = ProviderClient("b", redirectURIs: ["https://b.test/?x=1"])
        b.requiresBiometricProtection = true
        b.rotatesRefreshTokens = true
        #expect(options.configuration.clients == [a, b])
        #expect(
            options.configuration.androidApps
                == [AndroidApp(packageName: "test.app", fingerprints: ["AA:BB", "CC:DD"])])
        #expect(options.configuration.appleApps == ["TEAM.test.app"])
        #expect(!options.configuration.limitsTokenRequests)
        #expect(options.configuration.signingAlgorithm == .rs256)
    }

    @Test(arguments: [
        ["--x-app2app-enabled", "nobody"], ["--client-redirect-uri", "development"],
        ["--client-redirect-uri", "nobody=https://a.test"], ["--refresh-token-rotation-enabled", "nobody"],
        ["--android-app", "test.app"], ["--android-app", "=AA"],
    ])
    func `a mistake is reported with the option`(arguments: [String]) {
        let mistake = #expect(throws: ProviderOptions.Mistake.self) { try ProviderOptions(arguments: arguments) }
        #expect(mistake?.description.contains(arguments[0]) == true)
    }
}
