import AuthTesting
import BrokerCore
import BrokerTesting
import Cryptography
import ExternalText
import HTTPCodec
import JOSE
import JSON
import OAuth
import Testing
import TokenBroker

/// Requests to a userinfo endpoint with an access token that is bound to a key (RFC 9449 §7).
@Suite struct `A userinfo request with a bound token` {
    private static let provider = SigningProvider()
    private static let userInfo = "https://op.example/userinfo"
    private static let wantsNonce = ScriptedTransport.Step.json(401, "", fields: ["DPoP-Nonce": "n1"])

    private static func broker(_ step: ScriptedTransport.Step) async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        broker.transport.standing(at: SigningProvider.keysAddress, .json(200, provider.keySet))
        broker.transport.standing(at: userInfo, step)
        await broker.makeTenant(
            "t1",
            #"""
            {"client_id": "c1", "scopes": ["openid"], "provider": "oidc", "issuer": "\#(SigningProvider.issuer)", "dpop": true,
             "endpoints": {"authorization": "https://op.example/authorize", "token": "https://op.example/token",
                           "jwks": "\#(SigningProvider.keysAddress)", "userinfo": "\#(userInfo)"}}
            """#)
        return broker
    }

    private static func logIn(_ broker: BrokerHarness, storageKey: String) async -> Int {
        let login = await broker.beginLogin(body: #"{"storage_key": "\#(storageKey)"}"#)
        let nonce = BrokerHarness.parameters(of: login.uri)["nonce"]
        let idToken = provider.idToken(of: "ada", at: broker.time.now, nonce: nonce)
        broker.transport.enqueue(
            .json(
                200,
                #"{"access_token": "a1", "token_type": "DPoP", "expires_in": 3600, "refresh_token": "r", "id_token": "\#(idToken)"}"#
            ))
        return await broker.call(.get, "/login/callback?code=c-1&state=\(login.state)", key: nil).status
    }

    /// The claims of a proof that is signed with the key in it.
    private static func claims(_ seen: ScriptedTransport.Seen) throws -> JSONValue {
        let jws = try CompactJWS(
            parsing: try #require(seen.fields["DPoP"]),
            policy: JWSPolicy(algorithms: [.es256], types: ["dpop+jwt"], allowsEmbeddedKey: true))
        let key = try #require(jws.header.embeddedKey)
        return try JSONValue(parsing: try jws.verified(with: key).payload)
    }

    private static func asked(_ broker: BrokerHarness) -> [ScriptedTransport.Seen] {
        broker.transport.standingSeen.filter { $0.url == userInfo }
    }

    @Test func `is repeated once with the nonce that is asked for, which the next one has from the start`() async throws
    {
        let broker = try await Self.broker(
            .decide { seen in
                (try? Self.claims(seen))?["nonce"]?.text == "n1" ? .json(200, #"{"sub": "ada"}"#) : Self.wantsNonce
            })
        #expect(await Self.logIn(broker, storageKey: "one") == 200)
        #expect(await Self.logIn(broker, storageKey: "two") == 200)
        let asked = Self.asked(broker)
        #expect(try asked.map { try Self.claims($0)["nonce"]?.text } == [nil, "n1", "n1"])
        let digest = Base64URL.encode(SHA256.digest(Array("a1".utf8)))
        for seen in asked {
            #expect(seen.fields["Authorization"] == "DPoP a1")
            let claims = try Self.claims(seen)
            #expect(claims["ath"]?.text == digest && claims["htm"]?.text == "GET")
            #expect(claims["htu"]?.text == Self.userInfo)
        }
        #expect(Set(try asked.map { try Self.claims($0)["jti"]?.text }).count == 3)
    }

    @Test func `is refused where the repetition is`() async throws {
        let broker = try await Self.broker(Self.wantsNonce)
        #expect(await Self.logIn(broker, storageKey: "one") == 502)
        #expect(Self.asked(broker).count == 2)
        // A nonce that is known is not asked for.
        #expect(await Self.logIn(broker, storageKey: "two") == 502)
        #expect(Self.asked(broker).count == 3)
    }
}
