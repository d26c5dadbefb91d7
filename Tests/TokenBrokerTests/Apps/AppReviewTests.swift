import AuthTesting
import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Reactor
import Testing
import TokenBroker

/// What attackers, failures and other users must not do to sessions of apps.
@Suite struct `Sessions of apps, attacked` {
    private static let tenant = TenantName("t1")!
    private static let app =
        #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "default", "biometric_enabled": true}"#

    @Test(arguments: [true, false])
    func `one record that cannot be read keeps no session from ending`(_ isDamaged: Bool) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.makeClient("app", of: "t1", Self.app)
        _ = await broker.appSession()
        let prefix = Base64URL.encode(Array(SHA256.digest(Array("bad".utf8)).prefix(16))) + "."
        if isDamaged {
            try await broker.vault.commit([
                .insert(
                    OpenRecord(
                        id: RecordID(.session, Self.tenant, key: prefix + "x"), version: 1,
                        content: SecretBytes(utf8: "{}")))
            ])
        }
        try await broker.vault.commit([
            .insert(
                OpenRecord(
                    id: RecordID(.sessionEnding, Self.tenant, key: "a"), version: 1,
                    content: SecretBytes(
                        utf8: #"{"storage_key":"bad","cause":"logout","before":\#(broker.time.now.milliseconds)}"#),
                    due: broker.time.now))
        ])
        broker.time.advance(by: .seconds(1))
        await broker.logIn(token: BrokerHarness.token("access-2", refresh: "refresh-2", userID: 43))
        for _ in 0..<5 {
            _ = await broker.broker.core.sessionEndings.handleAllDue()
            broker.time.advance(by: .seconds(31))
        }
        #expect(await broker.sessions(query: "?storage_key=default").isEmpty)
        let all = await broker.call(.get, "/tenants/t1/sessions")
        #expect(all.status == 200, "\(all.text)")
    }

    @Test func `a logout waits for the first pages of sessions, and the job ends the rest`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.makeClient("app", of: "t1", Self.app)
        _ = await broker.appSession()
        let prefix = Base64URL.encode(Array(SHA256.digest(Array("default".utf8)).prefix(16))) + "."
        // Records that cannot be read stand for sessions: the log counts how many were looked at.
        for number in 0..<600 {
            try await broker.vault.commit([
                .insert(
                    OpenRecord(
                        id: RecordID(.session, Self.tenant, key: prefix + "\(1000 + number)"), version: 1,
                        content: SecretBytes(utf8: "{}")))
            ])
        }
        func looks() -> Int { broker.log.count { $0.contains("session_unreadable") } }
        broker.time.advance(by: .seconds(1))
        #expect(await broker.logOut().status == 204)
        #expect((499...500).contains(looks()))
        _ = await broker.broker.core.sessionEndings.handleAllDue()
        #expect((1099...1100).contains(looks()))
        #expect(await broker.sessions(query: "?storage_key=default").isEmpty)
        #expect(try await broker.count(.sessionEnding) == 0)
    }

    @Test func `an answer that the store has not taken is not given out`() async throws {
        let time = ManualTime()
        let records = MemoryRecordStore { time.monotonic }
        let faulty = BrokerFaultyStore(records, revalidateAfter: .seconds(60))
        let one = try await BrokerHarness(store: faulty, time: time)
        let two = try await BrokerHarness(store: BrokerFaultyStore(records, revalidateAfter: .seconds(60)), time: time)
        await one.makeTenant()
        await one.makeClient("app", of: "t1", Self.app)
        let token = await one.appSession()
        faulty.disturb(Array(repeating: .refuse, count: 5)) { $0.replaces(.session) }
        let first = await one.refresh(token)
        #expect(first.status == 503)
        #expect(faulty.remainingFaults == 0)
        let second = await two.refresh(token)
        #expect(second.status == 200)
        let third = await one.refresh(token)
        #expect(third.status == 200)
        #expect(third.json["refresh_token"]?.text == second.json["refresh_token"]?.text)
        let fourth = await one.refresh(third.json["refresh_token"]?.text ?? "")
        #expect(fourth.status == 200, "\(fourth.text)")
    }

    @Test func `a lost exchange is repeated for the app that has the verifier only`() async throws {
        let store = VanishingStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        await broker.makeClient("app", of: "t1", Self.app)
        let code = await broker.appCode()
        store.vanishAfterNextCommit(of: .session)
        #expect(await broker.exchange(code).status == 503)
        store.comeBack()
        let app = await broker.exchange(code)
        #expect(app.status == 200, "\(app.text)")
        #expect(await broker.exchange(code).text == app.text)
        let thief = await broker.exchange(code, ["code_verifier": nil, "redirect_uri": nil])
        #expect(thief.status == 400, "\(thief.text)")
        #expect(await broker.refresh(app.json["refresh_token"]?.text ?? "").status == 400)
    }

    @Test func `an exchange that was lost is repeated for no session that has ended`() async throws {
        let store = VanishingStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        await broker.makeClient("app", of: "t1", Self.app)
        let code = await broker.appCode()
        store.vanishAfterNextCommit(of: .session)
        #expect(await broker.exchange(code).status == 503)
        store.comeBack()
        #expect(await broker.logOut().status == 204)
        #expect(await broker.exchange(code).json["error"]?.text == "invalid_grant")
    }

    @Test func `a code is good only while its redirect URI is one of the client's`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.makeClient("app", of: "t1", Self.app)
        let code = await broker.appCode()
        await broker.makeClient(
            "app", of: "t1", #"{"redirect_uris": ["https://app.example/other"], "storage_key": "default"}"#)
        #expect(await broker.exchange(code).json["error"]?.text == "invalid_grant")
        await broker.makeClient("app", of: "t1", Self.app)
        #expect(await broker.exchange(code).status == 200)
    }

    @Test func `a code for another app is good only while the session that let it in exists`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.makeClient(
            "app", of: "t1",
            #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "default", "x_app2app_enabled": true}"#)
        await broker.makeClient("other")
        let key = try AppKey()
        let session = try await broker.appSession(with: key)
        let approval = await broker.approve(session, try key.proof(await broker.challenge(), now: broker.time.now))
        let code = try #require(approval.json["code"]?.text)
        let id = await broker.sessions().first?["session_id"]?.text ?? ""
        #expect(await broker.call(.delete, "/tenants/t1/sessions/\(id)").status == 204)
        #expect(await broker.exchange(code, client: "other").json["error"]?.text == "invalid_grant")
    }

    // MARK: Floods

    private static let here = NetworkSource(NetworkAddress(parsing: Array("192.0.2.1".utf8)[...])!)

    /// The requests without an API key.
    private static let counted: [@Sendable (BrokerHarness) async -> BrokerHarness.Answer] = [
        { await $0.call(.get, "/oauth2/authorize?client_id=app", key: nil, source: here) },
        {
            await $0.call(
                .post, "/oauth2/challenge", key: nil, body: #"{"purpose": "app2app_request"}"#, source: here)
        },
        { await $0.app("/oauth2/revoke", [("client_id", "app"), ("token", "t")], source: here) },
        {
            await $0.app(
                "/oauth2/token", [("grant_type", "refresh_token"), ("client_id", "app"), ("refresh_token", "t")],
                source: here)
        },
    ]

    @Test func `each endpoint counts the requests of an address by itself`() async throws {
        let broker = try await BrokerHarness { $0.core.appRequests.perAddress = 4 }
        await broker.makeTenant()
        await broker.makeClient("app", of: "t1", Self.app)
        for ask in Self.counted {
            for number in 1...5 {
                #expect((await ask(broker).status == 429) == (number == 5))
            }
        }
    }

    @Test(arguments: [(4096, 200), (4097, 400)])
    func `a request for a challenge is short`(length: Int, status: Int) async throws {
        let broker = try await BrokerHarness()
        let body = #"{"purpose": "app2app_request"}"#
        let padded = body + String(repeating: " ", count: length - body.utf8.count)
        #expect(await broker.call(.post, "/oauth2/challenge", key: nil, body: padded).status == status)
    }

    @Test func `a logout whose revocation takes long leaves the sessions of a later login`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1",
            #"""
            {"provider": "oidc", "client_id": "c1", "endpoints": {"authorization": "https://op.example/a",
             "token": "https://op.example/t", "revocation": "https://op.example/revoke"}}
            """#)
        await broker.makeClient("app", of: "t1", Self.app)
        _ = await broker.appSession()
        broker.time.advance(by: .seconds(1))
        let gate = Gate()
        broker.transport.standing(at: "https://op.example/revoke", .after(gate, .json(200, "")))
        async let logout = broker.call(.delete, "/credentials?revoke=true", tenant: "t1")
        await gate.arrivals()
        broker.time.advance(by: .seconds(1))
        let token = await broker.appSession()
        broker.time.advance(by: .seconds(1))
        gate.open()
        #expect(await logout.status == 204)
        let answer = await broker.refresh(token)
        #expect(answer.status == 200, "\(answer.text)")
    }

    private static let provider = SigningProvider()
    private static let signing = #"""
        {"client_id": "c1", "scopes": ["read"], \#(SigningProvider.members), "token_verification": {"access_token": {"audience": "api"}}}
        """#

    private static func jwt(_ broker: BrokerHarness, _ name: String, _ subject: String, audience: String = "api")
        -> String
    {
        provider.signed("read", audience: audience, of: subject, at: broker.time.now, name: name)
    }

    private static func verified(userID: Int?) async throws -> (broker: BrokerHarness, token: String) {
        let first = try await BrokerHarness()
        first.transport.standing(at: SigningProvider.keysAddress, .json(200, provider.keySet))
        await first.makeTenant("t1", signing)
        await first.makeClient("app", of: "t1", app)
        let code = await first.appCode(
            token: BrokerHarness.token(jwt(first, "1", "ada"), refresh: "r1", userID: userID))
        let token = await first.exchange(code).json["refresh_token"]?.text ?? ""
        first.transport.standing(at: SigningProvider.keysAddress, .failure(.connectFailed))
        first.time.advance(by: .seconds(60))
        return (try await BrokerHarness(store: first.store, transport: first.transport, time: first.time), token)
    }

    private static func settle(_ broker: BrokerHarness) async {
        broker.transport.standing(at: SigningProvider.keysAddress, .json(200, provider.keySet))
        broker.time.advance(by: .seconds(31))
        _ = await broker.broker.core.expiryJob.handleAllDue()
        await broker.broker.core.expiryJob.finish()
        _ = await broker.broker.core.sessionEndings.handleAllDue()
    }

    @Test func `a login that is not believed ends no session`() async throws {
        let (broker, token) = try await Self.verified(userID: 42)
        #expect(await broker.sessions().count == 1)
        let login = await broker.beginLogin()
        broker.transport.enqueue(
            .json(200, BrokerHarness.token(Self.jwt(broker, "9", "eve", audience: "web"), refresh: "r9", userID: 43)))
        let answer = await broker.call(.get, "/login/callback?code=c-1&state=\(login.state)", key: nil)
        #expect(answer.status == 503)
        await Self.settle(broker)
        #expect(await broker.progress(login.id).json["error"]?.text == "token_response_error")
        let refreshed = await broker.refresh(token)
        #expect(refreshed.status == 200, "\(refreshed.text)")
    }

    @Test func `another user's login that is verified later ends the sessions`() async throws {
        let (broker, _) = try await Self.verified(userID: nil)
        #expect(await broker.sessions().count == 1)
        let login = await broker.beginLogin()
        broker.transport.enqueue(.json(200, BrokerHarness.token(Self.jwt(broker, "9", "eve"), refresh: "r9")))
        _ = await broker.call(.get, "/login/callback?code=c-1&state=\(login.state)", key: nil)
        await Self.settle(broker)
        #expect(await broker.progress(login.id).json["status"]?.text == "completed")
        #expect(await broker.get().json["user_id"]?.text == "eve")
        #expect(await broker.sessions().isEmpty)
    }

    @Test func `a session that was ended at another replica lets no app in`() async throws {
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .seconds(60))
        await one.makeTenant()
        await one.makeClient(
            "app", of: "t1",
            #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "default", "x_app2app_enabled": true}"#)
        await one.makeClient("other")
        let key = try AppKey()
        let session = try await one.appSession(with: key)
        let first = await two.approve(session, try key.proof(await two.challenge(), now: two.time.now))
        #expect(first.status == 200, "\(first.text)")
        let id = await one.sessions().first?["session_id"]?.text ?? ""
        #expect(await one.call(.delete, "/tenants/t1/sessions/\(id)").status == 204)
        let second = await two.approve(session, try key.proof(await two.challenge(), now: two.time.now))
        #expect(second.status == 400, "\(second.text)")
    }

    @Test func `a new biometric key takes the place of the earlier one, and ends with the session`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.makeClient("app", of: "t1", Self.app)
        let session = await broker.appSession()
        var keys: [AppKey] = []
        for name in ["key-00000001", "key-00000002", "key-00000003"] {
            let key = try AppKey(keyID: WireText(name))
            keys.append(key)
            let proof = try key.proof(
                await broker.challenge("biometric_request"), now: broker.time.now,
                type: "vnd.authgear.biometric-request",
                action: "setup", embedsKey: true)
            #expect(await broker.biometric(proof, ["refresh_token": session]).status == 200)
        }
        #expect(try await broker.count(.biometricKey) == 1)
        let id = await broker.sessions().first?["session_id"]?.text ?? ""
        #expect(await broker.call(.delete, "/tenants/t1/sessions/\(id)").status == 204)
        #expect(try await broker.count(.biometricKey) == 0)
        let proof = try keys[0].proof(
            await broker.challenge("biometric_request"), now: broker.time.now, type: "vnd.authgear.biometric-request",
            action: "authenticate", embedsKey: false)
        #expect(await broker.biometric(proof).status == 400)
    }
}
