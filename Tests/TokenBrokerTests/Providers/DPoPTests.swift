import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JOSE
import JSON
import OAuth
import Reactor
import Testing
import TokenBroker

/// Tokens that are bound to keys (RFC 9449).
@Suite(.timeLimit(.minutes(1))) struct `Tokens bound to keys` {
    private static let tokenEndpoint = "https://id.example/t"

    private static func tenant(_ members: String = "", dpop: Bool = true) -> String {
        #"""
        {"provider": "oidc", "endpoints": {"authorization": "https://id.example/a", "token": "\#(tokenEndpoint)",
         "pushed_authorization_request": "https://id.example/par", "revocation": "https://id.example/revoke"},
         "dpop": \#(dpop), \#(members)"client_id": "c1"}
        """#
    }

    private static func token(
        _ access: String, refresh: String? = "refresh-1", type: String = "DPoP", expiresIn: Int = 3600,
        fields: Fields = [:]
    ) -> ScriptedTransport.Step {
        let refresh = refresh.map { #", "refresh_token": "\#($0)""# } ?? ""
        return .json(
            200, #"{"access_token": "\#(access)", "token_type": "\#(type)", "expires_in": \#(expiresIn)\#(refresh)}"#,
            fields: fields)
    }

    private static let pushed = ScriptedTransport.Step.json(201, #"{"request_uri": "u", "expires_in": 60}"#)

    private static func asksForNonce(_ nonce: String, status: Int = 400) -> ScriptedTransport.Step {
        .json(status, #"{"error": "use_dpop_nonce"}"#, fields: ["DPoP-Nonce": nonce])
    }

    private struct Proof {
        let claims: JSONValue
        let thumbprint: String
    }

    /// A proof that is signed with the key in it.
    private static func read(_ text: WireText?) throws -> Proof {
        let jws = try CompactJWS(
            parsing: try #require(text),
            policy: JWSPolicy(algorithms: [.es256], types: ["dpop+jwt"], allowsEmbeddedKey: true))
        let key = try #require(jws.header.embeddedKey)
        let verified = try jws.verified(with: key)
        return Proof(
            claims: try JSONValue(parsing: verified.payload), thumbprint: Base64URL.encode(key.thumbprint))
    }

    private static func proofs(_ broker: BrokerHarness, at url: String = tokenEndpoint) throws -> [Proof] {
        try broker.transport.seen.filter { $0.url == url }.map { try read($0.fields["DPoP"]) }
    }

    /// A login at a provider that takes pushed requests.
    /// - Returns: the thumbprint that the authorization request had.
    @discardableResult
    private static func logIn(_ broker: BrokerHarness, _ steps: ScriptedTransport.Step...) async throws -> String {
        broker.transport.enqueue(pushed)
        #expect(await broker.call(.post, "/login/initialize", tenant: "t1", body: "{}").status == 201)
        let form = try #require(broker.transport.seen.last).form
        for step in steps { broker.transport.enqueue(step) }
        let answer = await broker.call(.get, "/login/callback?code=c-1&state=\(form["state"] ?? "")", key: nil)
        #expect(answer.status == 200, "\(answer.text)")
        return form["dpop_jkt"] ?? ""
    }

    // MARK: Requests to the provider

    @Test func `have one key from the login's request to its refreshes`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant())
        let thumbprint = try await Self.logIn(broker, Self.token("access-1"))
        #expect(thumbprint.utf8.count == 43)
        let read = await broker.get()
        #expect(read.json["token_type"]?.text == "DPoP")
        #expect(read.token == "access-1")
        #expect(read.json["dpop"] == nil)
        broker.transport.enqueue(Self.token("access-2", refresh: "refresh-2"))
        let renewed = await broker.get("policy=local_force_refresh&api_error_sub_status=11003")
        #expect((renewed.token, renewed.json["token_type"]?.text) == ("access-2", "DPoP"))
        let proofs = try Self.proofs(broker)
        #expect(proofs.map(\.thumbprint) == [thumbprint, thumbprint])
        #expect(proofs.map { $0.claims["htm"]?.text } == ["POST", "POST"])
        #expect(proofs.map { $0.claims["htu"]?.text } == [Self.tokenEndpoint, Self.tokenEndpoint])
        #expect(proofs.allSatisfy { $0.claims["ath"] == nil && $0.claims["nonce"] == nil })
        #expect(proofs.map { $0.claims["iat"]?.integer }.allSatisfy { $0 == broker.time.now.seconds })
        #expect(Set(proofs.map { $0.claims["jti"]?.text }).count == 2)
        // The pushed request as well, RFC 9449 §10.1.
        #expect(try Self.proofs(broker, at: "https://id.example/par").map(\.thumbprint) == [thumbprint])
    }

    @Test func `have another key for each login`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant())
        let first = try await Self.logIn(broker, Self.token("access-1"))
        let second = try await Self.logIn(broker, Self.token("access-2", refresh: "refresh-2"))
        #expect(first != second)
        broker.transport.enqueue(Self.token("access-3", refresh: "refresh-3"))
        #expect(await broker.get("policy=local_force_refresh").token == "access-3")
        #expect(try Self.proofs(broker).map(\.thumbprint) == [first, second, second])
    }

    @Test func `are not asked for where the tenant does not say so`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant(dpop: false))
        #expect(try await Self.logIn(broker, Self.token("access-1", type: "Bearer")) == "")
        #expect(broker.transport.seen.allSatisfy { $0.fields["DPoP"] == nil })
        #expect(await broker.get().json["token_type"]?.text == "Bearer")
    }

    @Test func `are refused where no key was shown`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant(dpop: false))
        broker.transport.enqueue(Self.pushed)
        _ = await broker.call(.post, "/login/initialize", tenant: "t1", body: "{}")
        let state = try #require(broker.transport.seen.last?.form["state"])
        broker.transport.enqueue(Self.token("access-1"))
        let answer = await broker.callback("code=c-1&state=\(state)", accept: "application/json")
        #expect(answer.code == "token_response_error")
    }

    @Test func `may be bearer tokens all the same, and their refreshes are proven`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant())
        let thumbprint = try await Self.logIn(broker, Self.token("access-1", type: "bearer"))
        let read = await broker.get(fields: ["DPoP-Htm": "GET", "DPoP-Htu": "https://api.example/"])
        #expect(read.json["token_type"]?.text == "Bearer")
        #expect(read.json["dpop"] == nil)
        broker.transport.enqueue(Self.token("access-2"))
        #expect(await broker.get("policy=local_force_refresh").json["token_type"]?.text == "DPoP")
        #expect(try Self.proofs(broker).map(\.thumbprint) == [thumbprint, thumbprint])
    }

    @Test func `stay as they are when the tenant changes`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant())
        let thumbprint = try await Self.logIn(broker, Self.token("access-1"))
        // Their refresh token is bound to the key.
        await broker.makeTenant("t1", Self.tenant(dpop: false))
        broker.transport.enqueue(Self.token("access-2"))
        #expect(await broker.get("policy=local_force_refresh").json["token_type"]?.text == "DPoP")
        #expect(try Self.proofs(broker).map(\.thumbprint) == [thumbprint, thumbprint])
        // A token that was granted without a key is refreshed without one.
        await broker.set("access-3", refresh: "refresh-3")
        await broker.makeTenant("t1", Self.tenant())
        broker.transport.enqueue(Self.token("access-4", type: "Bearer"))
        #expect(await broker.get("policy=local_force_refresh").json["token_type"]?.text == "Bearer")
        #expect(try #require(broker.transport.seen.last).fields["DPoP"] == nil)
    }

    // MARK: Nonces

    @Test(arguments: [400, 401])
    func `bring the nonce that the provider wants, by one more request`(_ status: Int) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant())
        try await Self.logIn(broker, Self.asksForNonce("n-1", status: status), Self.token("access-1"))
        #expect(try Self.proofs(broker).map { $0.claims["nonce"]?.text } == [nil, "n-1"])
        #expect(Set(try Self.proofs(broker).map { $0.claims["jti"]?.text }).count == 2)
        #expect(broker.transport.seen.suffix(2).map { $0.form["code"] } == ["c-1", "c-1"])
        // Later requests to that server have it from the beginning, and follow it.
        broker.transport.enqueue(Self.token("access-2", fields: ["DPoP-Nonce": "n-2"]))
        #expect(await broker.get("policy=local_force_refresh").token == "access-2")
        broker.transport.enqueue(Self.asksForNonce("n-3"), Self.token("access-3"))
        #expect(await broker.get("policy=local_force_refresh").token == "access-3")
        #expect(
            try Self.proofs(broker).map { $0.claims["nonce"]?.text } == [nil, "n-1", "n-1", "n-2", "n-3"])
        #expect(broker.transport.remaining == 0)
    }

    @Test func `bring the next nonce where other requests have used the first one up`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant())
        try await Self.logIn(broker, Self.token("access-1"))
        let before = try Self.proofs(broker).count
        for number in 1...4 { broker.transport.enqueue(Self.asksForNonce("n-\(number)")) }
        broker.transport.enqueue(Self.token("access-2"))
        #expect(await broker.get("policy=local_force_refresh").token == "access-2")
        #expect(
            try Self.proofs(broker).dropFirst(before).map { $0.claims["nonce"]?.text }
                == [nil, "n-1", "n-2", "n-3", "n-4"])
    }

    @Test func `are asked for five times at most, and not where the nonce is the same`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant())
        try await Self.logIn(broker, Self.token("access-1"))
        let before = broker.transport.seen.count
        for number in 1...5 { broker.transport.enqueue(Self.asksForNonce("n-\(number)")) }
        let answer = await broker.get("policy=local_force_refresh")
        #expect(answer.code == "unexpected_error")
        #expect(answer.json["error_code"]?.text == "use_dpop_nonce")
        #expect(broker.transport.seen.count == before + 5)
        broker.time.advance(by: .seconds(60))
        broker.transport.enqueue(Self.asksForNonce("n-5"))
        #expect(await broker.get("policy=local_force_refresh").code == "unexpected_error")
        #expect(broker.transport.seen.count == before + 6)
        // The session goes on.
        broker.transport.enqueue(Self.token("access-2"))
        broker.time.advance(by: .seconds(60))
        #expect(await broker.get("policy=local_force_refresh").token == "access-2")
        #expect(try Self.proofs(broker).last?.claims["nonce"]?.text == "n-5")
    }

    @Test(arguments: ["", "a b", String(repeating: "n", count: 1025)])
    func `bring no nonce that cannot be sent`(_ nonce: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant())
        try await Self.logIn(broker, Self.token("access-1"))
        broker.transport.enqueue(Self.asksForNonce(nonce))
        #expect(await broker.get("policy=local_force_refresh").code == "unexpected_error")
        #expect(broker.transport.remaining == 0)
    }

    @Test(arguments: ["when_announced", "required"])
    func `begin at a provider that refuses the proof of a pushed request`(use: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant(#""pushed_authorization_requests": "\#(use)", "#))
        broker.transport.enqueue(.json(403, #"{"error": "invalid_dpop_proof"}"#), Self.pushed)
        #expect(await broker.call(.post, "/login/initialize", tenant: "t1", body: "{}").status == 201)
        let seen = broker.transport.seen.filter { $0.url == "https://id.example/par" }
        #expect(seen.map { $0.fields["DPoP"] != nil } == [true, false])
        let thumbprint = try #require(seen.first?.form["dpop_jkt"])
        #expect(seen.last?.form["dpop_jkt"] == thumbprint)
        broker.transport.enqueue(Self.token("access-1"))
        #expect(await broker.callback("code=c-1&state=\(seen.last?.form["state"] ?? "")").status == 200)
        #expect(try Self.proofs(broker).map(\.thumbprint) == [thumbprint])
    }

    @Test func `do not begin where the provider refuses the pushed request without a proof, too`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant(#""pushed_authorization_requests": "required", "#))
        let refusal = ScriptedTransport.Step.json(403, #"{"error": "invalid_dpop_proof"}"#)
        broker.transport.enqueue(refusal, refusal)
        let begun = await broker.call(.post, "/login/initialize", tenant: "t1", body: "{}")
        #expect(begun.status == 502 && begun.json["error_code"]?.text == "invalid_dpop_proof", "\(begun.text)")
        #expect(broker.transport.remaining == 0)
    }

    // MARK: Keys that must not be lost

    @Test func `are refreshed by another replica, and after a restore`() async throws {
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .seconds(2))
        await one.makeTenant("t1", Self.tenant())
        let thumbprint = try await Self.logIn(one, Self.token("access-1"))
        two.transport.enqueue(Self.token("access-2"))
        #expect(await two.get("policy=local_force_refresh").token == "access-2")
        two.time.advance(by: .seconds(3601))
        two.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        #expect(await two.get("level=user").status == 424)
        #expect(await two.restore().status == 200)
        two.transport.enqueue(Self.token("access-3"))
        #expect(await two.get("level=user").token == "access-3")
        #expect(try Self.proofs(two).map(\.thumbprint) == [thumbprint, thumbprint, thumbprint])
    }

    @Test func `are finished by another replica than the one that began the login`() async throws {
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .seconds(2))
        await one.makeTenant("t1", Self.tenant())
        one.transport.enqueue(Self.pushed)
        _ = await one.call(.post, "/login/initialize", tenant: "t1", body: "{}")
        let form = try #require(one.transport.seen.last).form
        two.transport.enqueue(Self.token("access-1"))
        #expect(
            await two.call(.get, "/login/callback?code=c-1&state=\(form["state"] ?? "")", key: nil).status == 200)
        #expect(try Self.proofs(two).map(\.thumbprint) == [form["dpop_jkt"]])
    }

    @Test func `keep their key in apps' logins, which their browsers carry`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant())
        await broker.makeClient(
            "app", of: "t1",
            #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "default", "client_secret": "0123456789abcdef"}"#
        )
        broker.transport.enqueue(Self.pushed)
        let begun = await broker.authorize(BrokerHarness.authorization())
        let form = try #require(broker.transport.seen.last).form
        broker.transport.enqueue(Self.token("access-1"))
        _ = await broker.callback(
            "code=c-1&state=\(form["state"] ?? "")", cookie: BrokerHarness.cookie(begun), followsToEnd: false)
        #expect(try Self.proofs(broker).map(\.thumbprint) == [form["dpop_jkt"]])
        #expect(await broker.get().json["token_type"]?.text == "DPoP")
    }

    @Test func `prove revocations`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant())
        let thumbprint = try await Self.logIn(broker, Self.token("access-1"))
        broker.transport.enqueue(.json(200, ""))
        #expect(await broker.call(.delete, "/credentials?revoke=true", tenant: "t1").status == 204)
        #expect(try Self.proofs(broker, at: "https://id.example/revoke").map(\.thumbprint) == [thumbprint])
    }

    @Test func `are got for the client, too`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant(#""client_secret": "s", "#))
        broker.transport.enqueue(Self.token("client-1", refresh: nil))
        let read = await broker.get(fields: ["DPoP-Htm": "GET", "DPoP-Htu": "https://api.example/"])
        #expect((read.level, read.token, read.json["token_type"]?.text) == ("client", "client-1", "DPoP"))
        let sent = try #require(try Self.proofs(broker).first)
        #expect(try Self.read(read.json["dpop"]?.string).thumbprint == sent.thumbprint)
    }

    @Test func `are polled for with a device login's own key`() async throws {
        let tenant = BrokerHarness.deviceTenant.replacing(#""client_id""#, with: #""dpop": true, "client_id""#)
        let (broker, script) = try await BrokerHarness.devices(tenant: tenant)
        let handle = await broker.beginDevice()
        script.enqueue(Self.asksForNonce("n-1"), Self.token("access-1"))
        broker.time.advance(by: .seconds(5))
        #expect(await broker.deviceEnd(handle).contains("completed"))
        // The nonce has cost no interval.
        #expect(script.polls == [.seconds(5), .seconds(5)])
        let proofs = try Self.proofs(broker, at: "https://p.example/token")
        #expect(proofs.map { $0.claims["nonce"]?.text } == [nil, "n-1"])
        #expect(Set(proofs.map(\.thumbprint)).count == 1)
        #expect(try #require(broker.transport.seen.first).fields["DPoP"] == nil)
        let read = await broker.get(fields: ["DPoP-Htm": "GET", "DPoP-Htu": "https://api.example/"])
        #expect(try Self.read(read.json["dpop"]?.string).thumbprint == proofs.first?.thumbprint)
    }

    // MARK: Proofs for callers

    @Test func `come with a proof for the request that a caller names`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant())
        let thumbprint = try await Self.logIn(broker, Self.token("access-1"))
        let tag = await broker.get().tag
        let wanted: Fields = [
            "DPoP-Htm": "PATCH", "DPoP-Htu": "https://api.example/me?a=b#c", "DPoP-Nonce": "n-1", "If-None-Match": tag,
        ]
        var identifiers: Set<String> = []
        for _ in 0..<2 {
            let answer = await broker.get(fields: wanted)
            // A proof is good once, so that there is a new one although the token is the same.
            #expect(answer.status == 200)
            #expect((answer.tag, answer.token) == (tag, "access-1"))
            let proof = try Self.read(answer.json["dpop"]?.string)
            #expect(proof.thumbprint == thumbprint)
            #expect(proof.claims["htm"]?.text == "PATCH")
            #expect(proof.claims["htu"]?.text == "https://api.example/me")
            #expect(proof.claims["nonce"]?.text == "n-1")
            #expect(proof.claims["iat"]?.integer == broker.time.now.seconds)
            #expect(proof.claims["ath"]?.text == Base64URL.encode(SHA256.digest(Array("access-1".utf8))))
            identifiers.insert(proof.claims["jti"]?.text ?? "")
        }
        #expect(identifiers.count == 2)
        // Without the fields, it is not modified.
        #expect(await broker.get(fields: ["If-None-Match": tag]).status == 304)
        #expect(await broker.get(fields: ["If-None-Match": tag, "DPoP-Nonce": "n-1"]).status == 304)
    }

    private static let requests: [(fields: Fields, status: Int)] = {
        func both(_ method: String, _ uri: String) -> Fields { ["DPoP-Htm": method, "DPoP-Htu": uri] }
        let uri = "https://api.example/"
        var withNonce = both("GET", uri)
        withNonce.append("DPoP-Nonce", "a b")
        var twice = both("GET", uri)
        twice.append("DPoP-Htm", "GET")
        return [
            (["DPoP-Htm": "GET"], 400), (["DPoP-Htu": uri], 400), (["DPoP-Nonce": "a b"], 400), (withNonce, 400),
            (twice, 400), (both("GET", "https://api.example"), 200), (both("GET", "http://api.example:8080/a"), 200),
            (both("GET", "HTTPS://api.example/"), 200), (both("G T", uri), 400), (both("", uri), 400),
            (both(String(repeating: "M", count: 32), uri), 200), (both(String(repeating: "M", count: 33), uri), 400),
            (both("GET", "/me"), 400), (both("GET", "ftp://api.example/"), 400), (both("GET", "https:///me"), 400),
            (both("GET", "https://u@api.example/"), 400), (both("GET", "https://api.example/ä"), 400),
            (both("GET", uri + String(repeating: "a", count: 4096 - uri.utf8.count)), 200),
            (both("GET", uri + String(repeating: "a", count: 4097 - uri.utf8.count)), 400),
        ]
    }()

    @Test(arguments: requests.indices)
    func `come without a proof for what is no request`(_ index: Int) async throws {
        let (fields, status) = Self.requests[index]
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant())
        try await Self.logIn(broker, Self.token("access-1"))
        let answer = await broker.get(fields: fields)
        #expect(answer.status == status, "\(answer.text)")
        if status == 400 { #expect(answer.code == "invalid_request") }
    }

    // MARK: Configuration

    @Test(arguments: [(#"["RS256", "ES256"]"#, 201), (#"["RS256"]"#, 424), ("[]", 424)])
    func `need a provider that takes the broker's algorithm`(_ algorithms: String, _ status: Int) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1", #"{"client_id": "c1", "provider": "oidc", "issuer": "https://id.example", "dpop": true}"#)
        broker.transport.enqueue(
            .json(
                200,
                #"""
                {"issuer": "https://id.example", "authorization_endpoint": "https://id.example/a",
                 "token_endpoint": "https://id.example/t", "dpop_signing_alg_values_supported": \#(algorithms)}
                """#))
        #expect(await broker.call(.post, "/login/initialize", tenant: "t1", body: "{}").status == status)
    }

    @Test(arguments: [
        #"{"client_id": "c1", "provider": "duckduckgo", "dpop": true}"#,
        #"{"client_id": "c1", "provider": "authgear", "issuer": "https://a.example", "app2app": {"enabled": true}, "dpop": true}"#,
    ])
    func `do not go together with what has keys of its own`(_ body: String) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(.put, "/tenants/t1", body: body)
        #expect(answer.status == 400)
        #expect(answer.pointers.contains("/dpop"))
    }
}
