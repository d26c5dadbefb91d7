import BrokerCore
import BrokerTesting
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

/// The ID tokens of logins and refreshes.
@Suite struct `ID tokens` {
    private static let provider = SigningProvider()
    private static let openID = #"{"client_id": "c1", "scopes": ["openid"], \#(SigningProvider.members)}"#

    private static func broker(_ tenant: String = openID) async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        broker.transport.standing(at: SigningProvider.keysAddress, .json(200, provider.keySet))
        await broker.makeTenant("t1", tenant)
        return broker
    }

    private static func body(_ access: String, _ idToken: String?) -> String {
        let member = idToken.map { #", "id_token": "\#($0)""# } ?? ""
        return
            #"{"access_token": "\#(access)", "token_type": "Bearer", "expires_in": 3600, "refresh_token": "r"\#(member)}"#
    }

    /// Finishes a login whose answer has the ID token that `token` makes of the request's nonce.
    private static func logIn(
        _ broker: BrokerHarness, _ token: (_ nonce: String?) -> String?
    ) async -> BrokerHarness.Answer {
        let login = await broker.beginLogin()
        let nonce = BrokerHarness.parameters(of: login.uri)["nonce"]
        broker.transport.enqueue(.json(200, body("a1", token(nonce))))
        return await broker.call(.get, "/login/callback?code=c-1&state=\(login.state)", key: nil)
    }

    @Test func `name the user once their nonce is that of the login`() async throws {
        let broker = try await Self.broker()
        let login = await broker.beginLogin()
        let other = await broker.beginLogin()
        let nonces = [login, other].map { BrokerHarness.parameters(of: $0.uri)["nonce"] ?? "" }
        #expect(nonces[0].count == 43 && nonces[0] != nonces[1])
        #expect(
            await Self.logIn(broker) { Self.provider.idToken(of: "ada", at: broker.time.now, nonce: $0) }.status == 200)
        #expect(await broker.get().json["user_id"]?.text == "ada")
        let claims = await broker.call(.get, "/credentials/claims", tenant: "t1")
        #expect(claims.json["id_token"]?["claims"]?["sub"]?.text == "ada")
        #expect(claims.json["access_token"] == .null)
    }

    @Test func `are not asked for without the scope openid`() async throws {
        let broker = try await Self.broker(#"{"client_id": "c1", "scopes": ["read"], \#(SigningProvider.members)}"#)
        let login = await broker.beginLogin()
        #expect(BrokerHarness.parameters(of: login.uri)["nonce"] == nil)
    }

    /// ID tokens that end a login, by what is wrong with them.
    private static let unbelieved: [(fault: String, token: @Sendable (String?, Timestamp) -> String?)] = [
        ("another nonce", { _, now in provider.idToken(of: "ada", at: now, nonce: "other") }),
        ("no nonce", { _, now in provider.idToken(of: "ada", at: now) }),
        ("another audience", { nonce, now in provider.idToken(of: "ada", at: now, nonce: nonce, audience: "c2") }),
        (
            "another issuer",
            { nonce, now in provider.idToken(of: "ada", at: now, nonce: nonce, issuer: "https://other.example") }
        ),
        ("another's key", { nonce, now in SigningProvider().idToken(of: "ada", at: now, nonce: nonce) }),
        ("expired", { nonce, now in provider.idToken(of: "ada", at: now.advanced(by: .seconds(-3660)), nonce: nonce) }),
        (
            "from the future",
            { nonce, now in provider.idToken(of: "ada", at: now.advanced(by: .seconds(601)), nonce: nonce) }
        ),
        (
            "of long ago",
            { nonce, now in provider.idToken(of: "ada", at: now.advanced(by: .seconds(-601)), nonce: nonce) }
        ),
        ("no subject", { nonce, now in provider.idToken(of: "", at: now, nonce: nonce) }),
        (
            "no signature",
            { nonce, now in
                let claims = provider.idToken(of: "ada", at: now, nonce: nonce).split(separator: ".")[1]
                return Base64Text.encode(#"{"alg":"none"}"#) + ".\(claims)."
            }
        ),
        ("no JWT", { _, _ in "opaque" }),
    ]

    // H043
    @Test(arguments: unbelieved.indices)
    func `that are not believed end the login`(index: Int) async throws {
        let broker = try await Self.broker()
        let answer = await Self.logIn(broker) { Self.unbelieved[index].token($0, broker.time.now) }
        #expect(answer.status == 502)
        #expect(try await broker.events().last?.data["error"]?.text == "token_response_error")
        #expect(await broker.get("policy=local").code == "missing_token_container")
    }

    @Test(arguments: [-600, -599, 0, 61, 599, 600] as [Int64])
    func `are believed that were issued up to ten minutes back or ahead`(seconds: Int64) async throws {
        let broker = try await Self.broker()
        let issued = broker.time.now.advanced(by: .seconds(seconds))
        #expect(await Self.logIn(broker) { Self.provider.idToken(of: "ada", at: issued, nonce: $0) }.status == 200)
        #expect(await broker.get().json["user_id"]?.text == "ada")
    }

    @Test func `of a refresh may be that of the login, from long ago`() async throws {
        let broker = try await Self.broker()
        let issued = broker.time.now
        _ = await Self.logIn(broker) { Self.provider.idToken(of: "ada", at: issued, nonce: $0) }
        broker.time.advance(by: .seconds(3000))
        let token = Self.provider.idToken(of: "ada", at: issued)
        broker.transport.enqueue(.json(200, Self.body("a2", token)))
        let answer = await broker.get("policy=local_force_refresh")
        #expect((answer.token, answer.json["user_id"]?.text) == ("a2", "ada"))
    }

    // MARK: Audiences

    /// Zitadel names its project, and Keycloak the services of a realm, beside the client.
    private static let audiences: [(aud: String, azp: String?, trusted: String?, isBelieved: Bool)] = [
        (#"["c1", "project"]"#, "c1", nil, true), (#"["project", "c1"]"#, "c1", nil, true),
        (#"["c1", "project"]"#, nil, nil, false), (#"["c1", "project"]"#, "project", nil, false),
        (#"["project"]"#, "c1", nil, false), (#"["c1", "project"]"#, "c1", #"["project"]"#, true),
        (#"["c1", "project"]"#, nil, #"["project"]"#, true), (#"["c1", "project"]"#, "c1", #"["other"]"#, false),
        (#"["c1", "project"]"#, "c1", "[]", false), (#"["c1"]"#, nil, "[]", true),
        (#"["c1", "project"]"#, "project", #"["project"]"#, false), (#"["project"]"#, nil, #"["project"]"#, false),
    ]

    @Test(arguments: audiences.indices)
    func `may name further audiences that azp or the tenant vouches for`(index: Int) async throws {
        let (audience, party, trusted, isBelieved) = Self.audiences[index]
        let member = trusted.map { #", "trusted_audiences": \#($0)"# } ?? ""
        let broker = try await Self.broker(
            #"{"client_id": "c1", "scopes": ["openid"]\#(member), \#(SigningProvider.members)}"#)
        let stored = await broker.call(.get, "/tenants/t1").json["trusted_audiences"]
        #expect(stored == (try trusted.map { try JSONValue(parsing: Array($0.utf8)) }))
        let now = broker.time.now.seconds
        let azp = party.map { #", "azp": "\#($0)""# } ?? ""
        let answer = await Self.logIn(broker) { nonce in
            Self.provider.token(
                #"""
                {"iss": "\#(SigningProvider.issuer)", "aud": \#(audience)\#(azp), "sub": "ada", "iat": \#(now),
                 "exp": \#(now + 3600), "nonce": "\#(nonce ?? "")"}
                """#)
        }
        #expect(answer.status == (isBelieved ? 200 : 502))
        if isBelieved { #expect(await broker.get().json["user_id"]?.text == "ada") }
        let isAdvised = broker.log.contains { $0.contains("trusted_audiences") }
        #expect(isAdvised == (!isBelieved && audience.contains("c1") && party != "project"))
    }

    @Test func `that are missing leave the user without a name`() async throws {
        let broker = try await Self.broker()
        #expect(await Self.logIn(broker) { _ in nil }.status == 200)
        let answer = await broker.get()
        #expect((answer.token, answer.json["user_id"]) == ("a1", .null))
    }

    @Test func `are passed over where no issuer is known to compare them with`() async throws {
        let broker = try await Self.broker(
            #"""
            {"client_id": "c1", "scopes": ["openid"], "provider": "oidc",
             "endpoints": {"authorization": "https://op.example/authorize", "token": "https://op.example/token"}}
            """#)
        #expect(
            await Self.logIn(broker) { Self.provider.idToken(of: "ada", at: broker.time.now, nonce: $0) }.status == 200)
        #expect(await broker.get().json["user_id"] == .null)
    }

    @Test(arguments: [nil, "another"])
    func `of a refresh need no nonce, and must not have another one`(nonce: String?) async throws {
        let broker = try await Self.broker()
        _ = await Self.logIn(broker) { Self.provider.idToken(of: "ada", at: broker.time.now, nonce: $0) }
        let token = Self.provider.idToken(of: "ada", at: broker.time.now, nonce: nonce)
        broker.transport.enqueue(.json(200, Self.body("a2", token)))
        let answer = await broker.get("policy=local_force_refresh")
        if nonce == nil {
            #expect((answer.token, answer.json["user_id"]?.text) == ("a2", "ada"))
        } else {
            #expect(answer.code == "token_response_error")
            #expect(await broker.get().token == "a1")
        }
    }

    @Test func `that a refresh does not bring leave the claims of the login`() async throws {
        let broker = try await Self.broker()
        _ = await Self.logIn(broker) { Self.provider.idToken(of: "ada", at: broker.time.now, nonce: $0) }
        broker.transport.enqueue(.json(200, Self.body("a2", nil)))
        #expect(await broker.get("policy=local_force_refresh").json["user_id"]?.text == "ada")
        let claims = await broker.call(.get, "/credentials/claims", tenant: "t1")
        #expect(claims.json["id_token"]?["claims"]?["sub"]?.text == "ada")
    }

    @Test func `name the user before an access token does`() async throws {
        let broker = try await Self.broker(
            #"""
            {"client_id": "c1", "scopes": ["openid"], \#(SigningProvider.members),
             "token_verification": {"access_token": {}}}
            """#)
        let login = await broker.beginLogin()
        let nonce = BrokerHarness.parameters(of: login.uri)["nonce"]
        let now = broker.time.now
        let access = Self.provider.signed("read", audience: "api", of: "internal-7", at: now)
        broker.transport.enqueue(
            .json(200, Self.body(access, Self.provider.idToken(of: "ada", at: now, nonce: nonce))))
        _ = await broker.call(.get, "/login/callback?code=c-1&state=\(login.state)", key: nil)
        #expect(await broker.get().json["user_id"]?.text == "ada")
        // A later refresh without an ID token is no other user's.
        let next = Self.provider.signed("read", audience: "api", of: "internal-7", at: now, name: "2")
        broker.transport.enqueue(.json(200, Self.body(next, nil)))
        let answer = await broker.get("policy=local_force_refresh")
        #expect((answer.token, answer.json["user_id"]?.text) == (next, "ada"))
    }

    // MARK: Userinfo

    private static let userInfo = "https://op.example/userinfo"

    private static func brokerThatAsks(_ step: ScriptedTransport.Step) async throws -> BrokerHarness {
        let broker = try await broker(
            #"""
            {"client_id": "c1", "scopes": ["openid"], "provider": "oidc", "issuer": "\#(SigningProvider.issuer)",
             "endpoints": {"authorization": "https://op.example/authorize", "token": "https://op.example/token",
                           "jwks": "\#(SigningProvider.keysAddress)", "userinfo": "\#(userInfo)"}}
            """#)
        broker.transport.standing(at: userInfo, step)
        return broker
    }

    @Test func `are compared with the userinfo endpoint where the tenant names one`() async throws {
        let broker = try await Self.brokerThatAsks(.json(200, #"{"sub": "ada", "name": "Ada"}"#))
        let answer = await Self.logIn(broker) { Self.provider.idToken(of: "ada", at: broker.time.now, nonce: $0) }
        #expect(answer.status == 200)
        #expect(await broker.get().json["user_id"]?.text == "ada")
        let asked = broker.transport.standingSeen.filter { $0.url == Self.userInfo }
        #expect(asked.map { $0.fields["Authorization"]?.text } == ["Bearer a1"])
    }

    @Test(arguments: [
        (200, #"{"sub": "eve"}"#), (200, #"{"sub": ""}"#), (200, "{}"), (200, "ada"), (401, ""), (403, ""),
    ])
    func `of another user than the userinfo endpoint names end the login`(status: Int, body: String) async throws {
        let broker = try await Self.brokerThatAsks(.json(status, body))
        let answer = await Self.logIn(broker) { Self.provider.idToken(of: "ada", at: broker.time.now, nonce: $0) }
        #expect(answer.status == 502)
        #expect(try await broker.events().last?.data["error"]?.text == "token_response_error")
        #expect(await broker.get("policy=local").code == "missing_token_container")
    }

    @Test(arguments: [ScriptedTransport.Step.failure(.connectFailed), .json(500, ""), .json(429, ""), .json(302, "")])
    func `wait for a userinfo endpoint that does not answer`(step: ScriptedTransport.Step) async throws {
        let broker = try await Self.brokerThatAsks(step)
        let answer = await Self.logIn(broker) { Self.provider.idToken(of: "ada", at: broker.time.now, nonce: $0) }
        #expect(answer.status == 503)
        #expect(await broker.get("policy=local").code == "missing_token_container")
        broker.transport.standing(at: Self.userInfo, .json(200, #"{"sub": "ada"}"#))
        #expect(await broker.get().json["user_id"]?.text == "ada")
        #expect(broker.transport.seen.count == 1)
    }
}
