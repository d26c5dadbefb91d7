import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import JOSE
import JSON
import OAuth
import Testing
import TokenBroker

/// The grant by which an app lets another app of its device in, and what it rests on.
@Suite struct `App to app` {
    private static let tenant = TenantName("t1")!

    /// - Parameter members: more members of the registration of the app that holds the session.
    private static func broker(_ members: String = #""x_app2app_enabled": true"#) async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.makeClient(
            "app", of: "t1",
            #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "default", \#(members)}"#)
        await broker.makeClient("other")
        return broker
    }

    private static func error(_ answer: BrokerHarness.Answer) -> [String?] {
        [answer.json["error"]?.text, answer.json["error_description"]?.text]
    }

    private static func challenge(_ broker: BrokerHarness) async -> String { await broker.challenge() }

    // MARK: Challenges

    // A03
    @Test func `a challenge is 32 characters and good for five minutes`() async throws {
        let broker = try await Self.broker()
        let answer = await broker.call(
            .post, "/oauth2/challenge", key: nil, body: #"{"purpose": "biometric_request"}"#)
        #expect(answer.status == 200)
        let token = try #require(answer.json["result"]?["token"]?.text)
        #expect(token.count == 32 && token.allSatisfy { "0123456789ABCDEFGHJKMNPQRSTVWXYZ".contains($0) })
        #expect(answer.json["result"]?["expire_at"]?.text == broker.time.now.advanced(by: .seconds(300)).description)
        #expect(answer.fields["Access-Control-Allow-Origin"] == "*")
        #expect(answer.fields["Cache-Control"] == "no-store")
        #expect(try await broker.count(.usedChallenge) == 0)
    }

    // A01 A02
    @Test(arguments: [
        "{}", #"{"purpose": "unknown"}"#, #"{"purpose": "anonymous_request"}"#, #"{"purpose": 1}"#, "[]", "", "x",
        #"{"purpose": "app2app_request", "more": 1}"#,
    ])
    func `a challenge needs exactly a known purpose`(_ body: String) async throws {
        let broker = try await Self.broker()
        let answer = await broker.call(.post, "/oauth2/challenge", key: nil, body: body)
        #expect(answer.status == 400)
        #expect(answer.json["error"]?.text == "invalid_request")
        if body.contains("unknown") { #expect(Self.error(answer)[1] == "unknown challenge purpose") }
    }

    @Test func `scripts of other origins may ask for a challenge`() async throws {
        let broker = try await Self.broker()
        let answer = await broker.call(
            .options, "/oauth2/challenge", key: nil,
            fields: ["Origin": "https://app.example", "Access-Control-Request-Method": "POST"])
        #expect(answer.status == 204)
        #expect(answer.fields["Access-Control-Allow-Methods"] == "POST")
        #expect(answer.fields["Access-Control-Allow-Headers"] == "Content-Type")
    }

    // MARK: The grant

    @Test(arguments: ["", "-request"])
    func `a session with a device key lets another app in`(_ suffix: String) async throws {
        let broker = try await Self.broker()
        let key = try AppKey()
        let session = try await broker.appSession(with: key)
        let answer = await broker.approve(
            session, try key.proof(await broker.challenge(), now: broker.time.now),
            ["grant_type": "urn:authgear:params:oauth:grant-type:app2app" + suffix])
        #expect(answer.status == 200, "\(answer.text)")
        let code = try #require(answer.json["code"]?.text)
        #expect(answer.json.object?.count == 1)
        // Only the other app can redeem it, with its verifier.
        #expect(await broker.exchange(code).status == 400)
        #expect(await broker.exchange(code, client: "other", ["code_verifier": nil]).status == 400)
        let letIn = await broker.exchange(code, client: "other")
        #expect(letIn.status == 200)
        #expect(letIn.json["access_token"]?.text == "access-1")
        // The refresh token of the first app is neither spent nor replaced.
        #expect(await broker.refresh(session).status == 200)
        #expect(
            try await broker.events(named: "app2app.approved", of: Self.tenant).first?["client_id"]?.text == "other")
        #expect(await broker.sessions(query: "?client_id=app").first?["device_key"]?.text == key.thumbprint)
        #expect(await broker.sessions(query: "?client_id=other").first?["device_key"] == .null)
    }

    @Test(arguments: [
        (PrivateKey.Kind.elliptic(.p256), SignatureAlgorithm.es256), (.rsa(bits: 2048), .rs256),
        (.rsa(bits: 2048), .ps256), (.ed25519, .edDSA),
    ])
    func `device keys are of these kinds`(_ kind: PrivateKey.Kind, _ algorithm: SignatureAlgorithm) async throws {
        let broker = try await Self.broker()
        let key = try AppKey(kind, algorithm)
        let session = try await broker.appSession(with: key)
        let proof = try key.proof(await broker.challenge(), now: broker.time.now)
        #expect(await broker.approve(session, proof).status == 200)
    }

    // P02 P03 P04 P05 P07 P08 P11 P12
    @Test(
        arguments: [
            (["client_id": "unknown"], "invalid_client", "invalid client ID"),
            (["client_id": nil], "invalid_client", "invalid client ID"),
            (["client_id": "foreign"], "invalid_client", "invalid client ID"),
            (["jwt": nil], "invalid_request", "jwt is required"),
            (["refresh_token": nil], "invalid_request", "refresh token is required"),
            (["redirect_uri": nil], "invalid_request", "redirect uri is required"),
            (["code_challenge": nil], "invalid_request", "code challenge is required"),
            (["code_challenge_method": "plain"], "invalid_request", "only 'S256' PKCE transform is supported"),
            (["code_challenge_method": nil], "invalid_request", "only 'S256' PKCE transform is supported"),
            (["redirect_uri": "/cb"], "invalid_request", "invalid redirect URI"),
            (["redirect_uri": "https://app.example/cb/"], "invalid_request", "redirect URI is not allowed"),
            (["refresh_token": "x"], "invalid_grant", "invalid refresh token"),
        ] as [([String: String?], String, String)])
    func `what is wrong with the request is told before the proof is looked at`(
        _ changes: [String: String?], _ error: String, _ description: String
    ) async throws {
        let broker = try await Self.broker()
        await broker.makeTenant("t2")
        await broker.makeClient("foreign", of: "t2")
        let key = try AppKey()
        let session = try await broker.appSession(with: key)
        let proof = try key.proof(await broker.challenge(), now: broker.time.now)
        let refused = await broker.approve(session, proof, changes)
        #expect(refused.status == 400)
        #expect(Self.error(refused) == [error, description])
        // It has cost no challenge.
        #expect(await broker.approve(session, proof).status == 200)
    }

    // P03
    @Test func `an unknown grant type is told after the client`() async throws {
        let broker = try await Self.broker()
        let unknown = await broker.approve("x", "x", ["grant_type": "urn:x", "client_id": "unknown"])
        #expect(Self.error(unknown)[0] == "invalid_client")
        #expect(
            Self.error(await broker.approve("x", "x", ["grant_type": "urn:x"])) == [
                "unsupported_grant_type", "grant type is not supported",
            ])
    }

    // P12
    @Test func `a session whose user is not logged in any more lets no other app in`() async throws {
        let broker = try await Self.broker()
        let key = try AppKey()
        let session = try await broker.appSession(with: key)
        broker.time.advance(by: .seconds(3600))
        broker.transport.enqueue(.json(400, #"{"error":"invalid_grant","status":400,"sub_status":11003}"#))
        #expect(await broker.refresh(session).status == 400)
        let proof = try key.proof(await broker.challenge(), now: broker.time.now)
        #expect(Self.error(await broker.approve(session, proof)) == ["invalid_grant", "invalid refresh token"])
    }

    // P14
    @Test func `the session's own client must be configured`() async throws {
        let broker = try await Self.broker()
        let key = try AppKey()
        let session = try await broker.appSession(with: key)
        let id = RecordID(.client, Self.tenant, key: "app")
        let version = try #require(try await broker.vault.version(of: id))
        try await broker.vault.commit([.remove(id, version: version)])
        broker.broker.core.bus.announce(id, version: nil)
        let proof = try key.proof(await broker.challenge(), now: broker.time.now)
        let answer = await broker.approve(session, proof)
        #expect(answer.status == 400)
        #expect(Self.error(answer) == ["server_error", "cannot find original client for app2app"])
    }

    // P09
    @Test(arguments: [
        (#""x_app2app_enabled": false"#, "unauthorized_client", "this client may not use app2app authentication"),
        (
            #""x_app2app_enabled": true, "x_app2app_biometric_protection_required": true"#, "access_denied",
            "app2app requires biometric authentication"
        ),
    ])
    func `the flags are those of the session's own client`(
        _ members: String, _ error: String, _ description: String
    ) async throws {
        let broker = try await Self.broker()
        let key = try AppKey()
        let session = try await broker.appSession(with: key)
        await broker.makeClient(
            "app", of: "t1", #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "default", \#(members)}"#)
        let proof = try key.proof(await broker.challenge(), now: broker.time.now)
        for suffix in ["", "-request"] {
            let answer = await broker.approve(
                session, proof, ["grant_type": "urn:authgear:params:oauth:grant-type:app2app" + suffix])
            #expect(answer.status == 400)
            #expect(Self.error(answer) == [error, description])
        }
        await broker.makeClient(
            "app", of: "t1",
            #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "default", "x_app2app_enabled": true}"#)
        #expect(await broker.approve(session, proof).status == 200)
        #expect(try await broker.events(named: "app2app.rejected", of: Self.tenant).first?["error"]?.text == error)
    }

    // P15
    @Test(arguments: [
        ("other type", 0), ("no type", 1), ("no key", 2), ("short key identifier", 3), ("odd key identifier", 4),
        ("no challenge", 5), ("expired beyond the skew", 6), ("issued too long ago", 7), ("issued too far ahead", 8),
        ("not yet valid", 9), ("not a JWT", 10), ("no key identifier", 11),
    ])
    func `a proof of another form is refused and costs no challenge`(_ name: String, _ number: Int) async throws {
        let broker = try await Self.broker()
        let key = try AppKey()
        let session = try await broker.appSession(with: key)
        let challenge = await broker.challenge()
        let now = broker.time.now
        let seconds = now.milliseconds / 1000
        let proof =
            switch number {
            case 0: try key.proof(challenge, now: now, type: "vnd.authgear.biometric-request")
            case 1: try key.proof(challenge, now: now, type: "JWT")
            case 2: try key.proof(challenge, now: now, embedsKey: false)
            case 3: try AppKey(keyID: "1234567").proof(challenge, now: now)
            case 4: try AppKey(keyID: "12345678.").proof(challenge, now: now)
            case 5: try key.proof(challenge, now: now, claims: ["challenge": ""])
            case 6: try key.proof(challenge, now: now, claims: ["exp": "\(seconds - 300)"])
            case 7: try key.proof(challenge, now: now, claims: ["iat": "\(seconds - 601)"])
            case 8: try key.proof(challenge, now: now, claims: ["iat": "\(seconds + 602)"])
            case 9: try key.proof(challenge, now: now, claims: ["nbf": "\(seconds + 302)"])
            case 10: "x.y.z"
            default: try AppKey(keyID: nil).proof(challenge, now: now)
            }
        let answer = await broker.approve(session, proof)
        #expect(answer.status == 400)
        #expect(Self.error(answer) == ["invalid_request", "invalid app2app jwt payload"], "\(name)")
        #expect(await broker.approve(session, try key.proof(challenge, now: now)).status == 200)
    }

    // RFC 7515 §4.1.9: `typ` is a media type, and those are the same in capital and small letters (RFC 2045 §5.1).
    @Test(arguments: ["VND.AUTHGEAR.APP2APP-REQUEST", "application/Vnd.Authgear.App2App-Request"])
    func `the type of a proof counts in capital and in small letters`(type: WireText) async throws {
        let broker = try await Self.broker()
        let key = try AppKey()
        let session = try await broker.appSession(with: key)
        let proof = try key.proof(await broker.challenge(), now: broker.time.now, type: type)
        #expect(await broker.approve(session, proof).status == 200)
    }

    @Test(arguments: [
        ["exp": "299"], ["iat": "-600"], ["iat": "600"], ["nbf": "300"], ["iat": "", "exp": ""], ["action": ""],
        ["device_info": "0"],
    ])
    func `times may differ by the skew, and may be left out`(_ changes: [String: String]) async throws {
        let broker = try await Self.broker()
        let key = try AppKey()
        let session = try await broker.appSession(with: key)
        let seconds = broker.time.now.milliseconds / 1000
        let claims = changes.mapValues { value in
            value.isEmpty ? "" : value == "299" ? "\(seconds - 299)" : "\(seconds + (Int64(value) ?? 0))"
        }
        let proof = try key.proof(await broker.challenge(), now: broker.time.now, claims: claims)
        #expect(await broker.approve(session, proof).status == 200)
    }

    // P16
    @Test func `a challenge is used once, for its purpose, in its time`() async throws {
        let broker = try await Self.broker()
        let key = try AppKey()
        let session = try await broker.appSession(with: key)
        func approve(_ challenge: String) async throws -> [String?] {
            Self.error(await broker.approve(session, try key.proof(challenge, now: broker.time.now)))
        }
        let refusal: [String?] = ["invalid_request", "invalid app2app jwt challenge"]
        let used = await broker.challenge()
        #expect(try await approve(used) == [nil, nil])
        #expect(try await approve(used) == refusal)
        // A use for the wrong purpose is a use.
        let other = await broker.challenge("biometric_request")
        #expect(try await approve(other) == refusal)
        let forged = String(used.dropLast()) + (used.hasSuffix("0") ? "1" : "0")
        for text in ["", "x", forged, used.lowercased(), used + used] { #expect(try await approve(text) == refusal) }
        let late = await broker.challenge()
        broker.time.advance(by: .seconds(299))
        let last = await broker.challenge()
        #expect(try await approve(late) == [nil, nil])
        broker.time.advance(by: .seconds(301))
        #expect(try await approve(last) == refusal)
    }

    // P17
    @Test func `a session without a key lets nobody in, unless its client binds insecurely`() async throws {
        let broker = try await Self.broker()
        let session = await broker.appSession()
        let key = try AppKey()
        let challenge = await broker.challenge()
        let proof = try key.proof(challenge, now: broker.time.now)
        #expect(
            Self.error(await broker.approve(session, proof))
                == ["invalid_grant", "app2app is not allowed in current session"])
        // That has cost the challenge.
        #expect(Self.error(await broker.approve(session, proof))[1] == "invalid app2app jwt challenge")
        await broker.makeClient(
            "app", of: "t1",
            #"""
            {"redirect_uris": ["https://app.example/cb"], "storage_key": "default", "x_app2app_enabled": true,
             "x_app2app_insecure_device_key_binding_enabled": true}
            """#)
        // A wrong signature binds nothing.
        let stranger = try AppKey()
        let mixed = try Self.mixed(stranger, signedBy: key, await broker.challenge(), broker.time.now)
        #expect(Self.error(await broker.approve(session, mixed))[1] == "invalid app2app jwt signature")
        #expect(await broker.sessions(query: "?client_id=app").first?["device_key"] == .null)
        #expect(
            await broker.approve(session, try key.proof(await broker.challenge(), now: broker.time.now)).status == 200)
        #expect(await broker.sessions(query: "?client_id=app").first?["device_key"]?.text == key.thumbprint)
        // From then on it is this key.
        let other = try stranger.proof(await broker.challenge(), now: broker.time.now)
        #expect(Self.error(await broker.approve(session, other))[1] == "invalid app2app jwt signature")
        #expect(await broker.refresh(session).status == 200)
    }

    // P18
    @Test func `the signature must be the bound key's`() async throws {
        let broker = try await Self.broker()
        let key = try AppKey()
        let session = try await broker.appSession(with: key)
        let stranger = try AppKey()
        let refusal: [String?] = ["invalid_request", "invalid app2app jwt signature"]
        #expect(
            Self.error(
                await broker.approve(session, try stranger.proof(await broker.challenge(), now: broker.time.now)))
                == refusal)
        // Also where the header shows the bound key.
        let mixed = try Self.mixed(key, signedBy: stranger, await broker.challenge(), broker.time.now)
        #expect(Self.error(await broker.approve(session, mixed)) == refusal)
    }

    /// A proof that shows one key and is signed by another one.
    private static func mixed(_ shown: AppKey, signedBy key: AppKey, _ challenge: String, _ now: Timestamp) throws
        -> String
    {
        let honest = try shown.proof(challenge, now: now).split(separator: ".")
        let input = honest[0] + "." + honest[1]
        let signature = try key.signer.key.privateKey.signature(of: Array(input.utf8), by: key.signer.algorithm.scheme)
        return input + "." + Base64URL.encode(signature)
    }

    @Test func `a key that comes in a set counts by its thumbprint`() async throws {
        let broker = try await Self.broker()
        let key = try AppKey()
        let session = try await broker.appSession(with: key)
        let payload = Array(
            #"{"challenge":"\#(await broker.challenge())"}"#.utf8)
        let jwk = String(decoding: key.signer.key.publicJWK.json, as: UTF8.self)
        let header = #"{"alg":"ES256","typ":"vnd.authgear.app2app-request","jwk":{"keys":[\#(jwk)]}}"#
        let input = Base64URL.encode(Array(header.utf8)) + "." + Base64URL.encode(payload)
        let signature = try key.signer.key.privateKey.signature(of: Array(input.utf8), by: .ecdsaP256)
        #expect(await broker.approve(session, input + "." + Base64URL.encode(signature)).status == 200)
    }

    // MARK: The key of a login

    @Test func `a wrong key proof fails the exchange, and the code stays usable`() async throws {
        let broker = try await Self.broker()
        let code = await broker.appCode()
        let (key, stranger) = (try AppKey(), try AppKey())
        let challenge = await broker.challenge()
        let mixed = try Self.mixed(key, signedBy: stranger, challenge, broker.time.now)
        for (proof, description) in [
            ("x", "invalid app2app jwt payload"), (mixed, "invalid app2app jwt signature"),
            (try key.proof(challenge, now: broker.time.now), "invalid app2app jwt challenge"),
        ] {
            let refused = await broker.exchange(code, ["x_app2app_device_key_jwt": proof])
            #expect(refused.status == 400)
            #expect(Self.error(refused) == ["invalid_request", description])
        }
        let good = try key.proof(await broker.challenge(), now: broker.time.now)
        #expect(await broker.exchange(code, ["x_app2app_device_key_jwt": good]).status == 200)
    }

    @Test func `a client that lets no app in ignores the key proof`() async throws {
        let broker = try await Self.broker(#""x_app2app_enabled": false"#)
        #expect(await broker.exchange(await broker.appCode(), ["x_app2app_device_key_jwt": "x"]).status == 200)
        #expect(await broker.sessions().first?["device_key"] == .null)
    }

    @Test func `a refresh binds no key`() async throws {
        let broker = try await Self.broker()
        let session = await broker.appSession()
        let proof = try AppKey().proof(await broker.challenge(), now: broker.time.now)
        let answer = await broker.app(
            "/oauth2/token",
            [
                ("grant_type", "refresh_token"), ("client_id", "app"), ("refresh_token", session),
                ("x_app2app_device_key_jwt", proof),
            ])
        #expect(answer.status == 200)
        #expect(await broker.sessions().first?["device_key"] == .null)
    }

    // MARK: Replicas and the store

    @Test func `a challenge of one replica is good once at all of them`() async throws {
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .seconds(60))
        await one.makeTenant()
        await one.makeClient(
            "app", of: "t1",
            #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "default", "x_app2app_enabled": true}"#)
        await one.makeClient("other")
        let key = try AppKey()
        let session = try await one.appSession(with: key)
        let proof = try key.proof(await two.challenge(), now: one.time.now)
        async let first = one.approve(session, proof)
        async let second = two.approve(session, proof)
        let statuses = await [first.status, second.status].sorted()
        #expect(statuses == [200, 400])
    }

    @Test func `a store whose answer is lost does not use the challenge up`() async throws {
        let store = FaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        await broker.makeClient(
            "app", of: "t1",
            #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "default", "x_app2app_enabled": true}"#)
        await broker.makeClient("other")
        let key = try AppKey()
        let session = try await broker.appSession(with: key)
        store.onCommit(of: .usedChallenge, .loseAnswer)
        let proof = try key.proof(await broker.challenge(), now: broker.time.now)
        #expect(await broker.approve(session, proof).status == 200)
        store.onCommit(
            of: .usedChallenge, .refuse(.unavailable), .refuse(.unavailable), .refuse(.unavailable),
            .refuse(.unavailable))
        let next = try key.proof(await broker.challenge(), now: broker.time.now)
        let away = await broker.approve(session, next)
        #expect(away.status == 503)
        #expect(Self.error(away)[0] == "temporarily_unavailable")
        #expect(await broker.approve(session, next).status == 200)
    }
}
