import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

/// The grant by which a biometric key logs its user in.
@Suite struct `Biometric logins` {
    private static let type: WireText = "vnd.authgear.biometric-request"

    private static func broker(_ members: String = #""x_app2app_enabled": true"#) async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.makeClient(
            "app", of: "t1",
            #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "default", "biometric_enabled": true, \#(members)}"#
        )
        await broker.makeClient("other")
        return broker
    }

    private static func proof(
        _ key: AppKey, _ action: String, _ broker: BrokerHarness, claims: [String: String] = [:], embedsKey: Bool? = nil
    ) async throws -> String {
        try key.proof(
            await broker.challenge("biometric_request"), now: broker.time.now, type: type, action: action,
            claims: claims, embedsKey: embedsKey ?? (action == "setup"))
    }

    /// A session with a biometric key.
    private static func setUp(_ key: AppKey, _ broker: BrokerHarness) async throws -> String {
        let session = await broker.appSession()
        let answer = await broker.biometric(
            try await proof(key, "setup", broker, claims: ["device_info": #"{"model":"Phone"}"#]),
            ["refresh_token": session])
        #expect(answer.status == 200, "\(answer.text)")
        #expect(answer.body.isEmpty)
        return session
    }

    private static func error(_ answer: BrokerHarness.Answer) -> String? { answer.json["error"]?.text }

    @Test func `a key that was set up logs its user in, and ends the session that it began before`() async throws {
        let broker = try await Self.broker()
        let key = try AppKey()
        let session = try await Self.setUp(key, broker)
        let listed = try #require(await broker.sessions().first)
        #expect(listed["biometric"]?.text == key.thumbprint)
        #expect(listed["device_info"]?["model"]?.text == "Phone")
        let first = await broker.biometric(try await Self.proof(key, "authenticate", broker))
        #expect(first.status == 200, "\(first.text)")
        #expect(first.json["access_token"]?.text == "access-1")
        let token = try #require(first.json["refresh_token"]?.text)
        #expect(await broker.sessions().count == 2)
        let second = await broker.biometric(try await Self.proof(key, "authenticate", broker))
        #expect(second.status == 200)
        // The session with which the key was set up goes on.
        #expect(await broker.sessions().count == 2)
        #expect(Self.error(await broker.refresh(token)) == "invalid_grant")
        #expect(await broker.refresh(session).status == 200)
        #expect(await broker.refresh(second.json["refresh_token"]?.text ?? "").status == 200)
    }

    @Test func `the setup needs the refresh token, since API keys read the access token`() async throws {
        let broker = try await Self.broker()
        let key = try AppKey()
        let session = await broker.appSession()
        let refused = await broker.biometric(try await Self.proof(key, "setup", broker), bearer: "access-1")
        #expect(refused.status == 401)
        #expect(Self.error(refused) == "invalid_grant")
        let answer = await broker.biometric(
            try await Self.proof(key, "setup", broker), bearer: "access-1", ["refresh_token": session])
        #expect(answer.status == 200, "\(answer.text)")
    }

    @Test(arguments: ["", #", "biometric_enabled": false"#])
    func `no key is set up unless the client is enabled for it, and a key that is there goes on`(
        _ members: String
    ) async throws {
        let broker = try await Self.broker()
        let key = try AppKey()
        let session = try await Self.setUp(key, broker)
        await broker.makeClient(
            "app", of: "t1", #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "default"\#(members)}"#)
        let refused = await broker.biometric(
            try await Self.proof(try AppKey(keyID: "another-key"), "setup", broker), ["refresh_token": session])
        #expect(refused.status == 400)
        #expect(Self.error(refused) == "unauthorized_client")
        #expect(await broker.biometric(try await Self.proof(key, "authenticate", broker)).status == 200)
    }

    /// RFC 7515 §4.1.9: `typ` is a media type, whose letter case does not count.
    @Test(
        arguments: [
            ("vnd.authgear.biometric-request", true), ("VND.Authgear.Biometric-Request", true),
            ("application/vnd.authgear.biometric-request", true), ("vnd.authgear.biometric-requests", false),
            ("vnd.authgear.app2app-request", false), ("JWT", false),
        ] as [(WireText, Bool)])
    func `the type of a proof is compared as a media type`(_ type: WireText, _ isAccepted: Bool) async throws {
        let broker = try await Self.broker()
        let key = try AppKey()
        let session = await broker.appSession()
        let proof = try key.proof(
            await broker.challenge("biometric_request"), now: broker.time.now, type: type, action: "setup")
        let answer = await broker.biometric(proof, ["refresh_token": session])
        #expect((answer.status == 200) == isAccepted, "\(answer.text)")
        if !isAccepted { #expect(Self.error(answer) == "invalid_grant") }
    }

    @Test func `without a session no key is set up`() async throws {
        let broker = try await Self.broker()
        let key = try AppKey()
        for changes in [[:], ["refresh_token": "x"]] as [[String: String?]] {
            let answer = await broker.biometric(try await Self.proof(key, "setup", broker), changes)
            #expect(answer.status == 401)
            #expect(Self.error(answer) == "invalid_grant")
            #expect(answer.json["error_description"]?.text == "biometric setup requires authenticated user")
        }
    }

    @Test func `a key identifier belongs to one key of one user`() async throws {
        let broker = try await Self.broker()
        let key = try AppKey()
        let session = try await Self.setUp(key, broker)
        // The same key of the same user may come again.
        #expect(
            await broker.biometric(try await Self.proof(key, "setup", broker), ["refresh_token": session]).status == 200
        )
        let double = try AppKey()
        let refused = await broker.biometric(try await Self.proof(double, "setup", broker), ["refresh_token": session])
        #expect(refused.status == 400)
        #expect(Self.error(refused) == "invalid_grant")
        await broker.makeClient(
            "app2", of: "t1",
            #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "k2", "biometric_enabled": true}"#)
        let other = await broker.appSession(client: "app2")
        let taken = await broker.biometric(
            try await Self.proof(key, "setup", broker), client: "app2", ["refresh_token": other])
        #expect(Self.error(taken) == "invalid_grant")
    }

    @Test(arguments: [
        ("no jwt", 0, "invalid_request"), ("other action", 1, "invalid_request"), ("no action", 2, "invalid_request"),
        ("other type", 3, "invalid_grant"), ("unknown key", 4, "invalid_grant"), ("other key", 5, "invalid_grant"),
        ("other client", 6, "invalid_grant"), ("wrong challenge", 7, "invalid_grant"), ("broken", 8, "invalid_grant"),
    ])
    func `a wrong request is refused`(_ name: String, _ number: Int, _ error: String) async throws {
        let broker = try await Self.broker()
        let key = try AppKey()
        _ = try await Self.setUp(key, broker)
        let proof: String? =
            switch number {
            case 0: nil
            case 1: try await Self.proof(key, "remove", broker)
            case 2: try await Self.proof(key, "x", broker, claims: ["action": ""])
            case 3:
                try key.proof(
                    await broker.challenge("biometric_request"), now: broker.time.now, action: "authenticate",
                    embedsKey: false)
            case 4: try await Self.proof(try AppKey(keyID: "unknown-key"), "authenticate", broker)
            case 5: try await Self.proof(try AppKey(), "authenticate", broker)
            case 7:
                try key.proof(
                    await broker.challenge(), now: broker.time.now, type: Self.type, action: "authenticate",
                    embedsKey: false)
            case 8: "x.y.z"
            default: try await Self.proof(key, "authenticate", broker)
            }
        let answer = await broker.biometric("", client: number == 6 ? "other" : "app", ["jwt": proof])
        #expect(answer.status == 400)
        #expect(Self.error(answer) == error, "\(name): \(answer.text)")
        if number == 1 { #expect(answer.json["error_description"]?.text == "invalid action: remove") }
        #expect(await broker.biometric(try await Self.proof(key, "authenticate", broker)).status == 200)
    }

    @Test func `a biometric login lets another app in, where only that is allowed`() async throws {
        let broker = try await Self.broker(
            #""x_app2app_enabled": true, "x_app2app_biometric_protection_required": true"#)
        let key = try AppKey()
        _ = try await Self.setUp(key, broker)
        let target: [String: String?] = [
            "redirect_uri": BrokerHarness.appRedirect, "code_challenge": BrokerHarness.appChallenge,
            "code_challenge_method": "S256",
        ]
        let proof = try await Self.proof(key, "authenticate_app2app", broker, claims: ["client_id": "\"other\""])
        let answer = await broker.biometric(proof, target)
        #expect(answer.status == 200, "\(answer.text)")
        #expect(answer.json["access_token"]?.text == "access-1")
        #expect(answer.json["refresh_token"]?.text != nil)
        let code = try #require(answer.json["code"]?.text)
        #expect(await broker.exchange(code).status == 400)
        #expect(await broker.exchange(code, client: "other").status == 200)
        let tenant = try #require(TenantName("t1"))
        #expect(try await broker.events(named: "app2app.approved", of: tenant).count == 1)
        // What is wrong with the request costs no challenge.
        let next = try await Self.proof(key, "authenticate_app2app", broker, claims: ["client_id": "\"other\""])
        for (changes, error) in [
            (["redirect_uri": nil], "invalid_request"), (["code_challenge": nil], "invalid_request"),
            (["code_challenge_method": "plain"], "invalid_request"),
            (["redirect_uri": "https://app.example/x"], "invalid_request"),
        ] as [([String: String?], String)] {
            #expect(Self.error(await broker.biometric(next, target.merging(changes) { $1 })) == error)
        }
        #expect(await broker.biometric(next, target).status == 200)
        let unknown = try await Self.proof(key, "authenticate_app2app", broker, claims: ["client_id": "\"x\""])
        #expect(Self.error(await broker.biometric(unknown, target)) == "invalid_client")
        let none = try await Self.proof(key, "authenticate_app2app", broker)
        #expect(Self.error(await broker.biometric(none, target)) == "invalid_request")
    }

    @Test func `a client that lets no app in logs in by a biometric key only`() async throws {
        let broker = try await Self.broker(#""x_app2app_enabled": false"#)
        let key = try AppKey()
        _ = try await Self.setUp(key, broker)
        #expect(await broker.biometric(try await Self.proof(key, "authenticate", broker)).status == 200)
        let proof = try await Self.proof(key, "authenticate_app2app", broker, claims: ["client_id": "\"other\""])
        #expect(Self.error(await broker.biometric(proof)) == "unauthorized_client")
    }

    // MARK: Ends

    enum End: CaseIterable {
        case logout
        case otherUser
        case clientRemoved
        case sessionEndedByOperator
    }

    @Test(arguments: End.allCases)
    func `a key ends with the login, with its client, and with the session that an operator ends`(_ end: End)
        async throws
    {
        let broker = try await Self.broker()
        let key = try AppKey()
        _ = try await Self.setUp(key, broker)
        broker.time.advance(by: .seconds(1))
        switch end {
        case .logout:
            #expect(await broker.call(.delete, "/credentials", tenant: "t1").status == 204)
            await broker.logIn()
        case .otherUser: await broker.logIn(token: BrokerHarness.token("access-2", refresh: "refresh-2", userID: 43))
        case .clientRemoved:
            #expect(await broker.call(.delete, "/tenants/t1/clients/app").status == 204)
            broker.time.advance(by: .seconds(1))
            await broker.makeClient()
        case .sessionEndedByOperator:
            let id = await broker.sessions().first?["session_id"]?.text ?? ""
            #expect(await broker.call(.delete, "/tenants/t1/sessions/\(id)").status == 204)
        }
        #expect(
            Self.error(await broker.biometric(try await Self.proof(key, "authenticate", broker))) == "invalid_grant")
        _ = await broker.broker.core.sessionEndings.handleAllDue()
        #expect(try await broker.count(.biometricKey) == 0)
        #expect(
            Self.error(await broker.biometric(try await Self.proof(key, "authenticate", broker))) == "invalid_grant")
    }

    @Test func `a key outlives the app's own revocation of its session`() async throws {
        let broker = try await Self.broker()
        let key = try AppKey()
        let session = try await Self.setUp(key, broker)
        #expect(await broker.app("/oauth2/revoke", [("client_id", "app"), ("token", session)]).status == 200)
        #expect(await broker.biometric(try await Self.proof(key, "authenticate", broker)).status == 200)
    }

    @Test func `a login that was ended by the provider is no login by the key, also when it is restored`() async throws
    {
        let broker = try await Self.broker()
        let key = try AppKey()
        _ = try await Self.setUp(key, broker)
        broker.time.advance(by: .seconds(3600))
        broker.transport.enqueue(.json(400, #"{"error":"invalid_grant","status":400,"sub_status":11003}"#))
        #expect(
            Self.error(await broker.biometric(try await Self.proof(key, "authenticate", broker))) == "invalid_grant")
        #expect(await broker.call(.post, "/credentials/restore", tenant: "t1", body: "{}").status == 200)
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-2", refresh: "refresh-2")))
        #expect(
            Self.error(await broker.biometric(try await Self.proof(key, "authenticate", broker))) == "invalid_grant")
        _ = await broker.broker.core.sessionEndings.handleAllDue()
        #expect(try await broker.count(.biometricKey) == 0)
    }

    // MARK: Operators

    /// What the list has of keys.
    private static func keys(_ broker: BrokerHarness, _ query: String = "") async -> [JSONValue] {
        await broker.call(.get, "/tenants/t1/sessions\(query)").json["biometric_keys"]?.array ?? []
    }

    @Test func `an operator sees the keys, also those whose session is gone, and removes them`() async throws {
        let broker = try await Self.broker()
        let key = try AppKey()
        let session = try await Self.setUp(key, broker)
        let listed = try #require(await Self.keys(broker).first)
        #expect(listed["thumbprint"]?.text == key.thumbprint)
        #expect(listed["client_id"]?.text == "app")
        #expect(listed["storage_key"]?.text == "default")
        #expect(listed["user_id"]?.text == "42")
        #expect(listed["device_info"]?["model"]?.text == "Phone")
        #expect(await Self.keys(broker, "?storage_key=default&client_id=app").count == 1)
        #expect(await Self.keys(broker, "?storage_key=other").isEmpty)
        #expect(await Self.keys(broker, "?client_id=other").isEmpty)
        #expect(await broker.app("/oauth2/revoke", [("client_id", "app"), ("token", session)]).status == 200)
        #expect(await broker.sessions().isEmpty)
        #expect(await Self.keys(broker).count == 1)
        let begun = await broker.biometric(try await Self.proof(key, "authenticate", broker))
        let path = "/tenants/t1/biometric-keys/\(listed["key_id"]?.text ?? "")"
        #expect(await broker.call(.delete, path).status == 204)
        #expect(await broker.call(.delete, path).status == 404)
        #expect(await Self.keys(broker).isEmpty)
        // The sessions that the key began have ended with it.
        #expect(Self.error(await broker.refresh(begun.json["refresh_token"]?.text ?? "")) == "invalid_grant")
        #expect(
            Self.error(await broker.biometric(try await Self.proof(key, "authenticate", broker))) == "invalid_grant")
    }

    @Test(arguments: [1, 2, 3, 4, 5])
    func `pages have all sessions and then all keys`(_ limit: Int) async throws {
        let broker = try await Self.broker()
        for name in ["key-00000001", "key-00000002"] {
            _ = try await Self.setUp(try AppKey(keyID: WireText(name)), broker)
        }
        var (sessions, keys, query): ([String], [String], String) = ([], [], "?limit=\(limit)")
        for _ in 0..<8 {
            let page = await broker.call(.get, "/tenants/t1/sessions\(query)")
            #expect(page.status == 200, "\(page.text)")
            sessions += page.json["sessions"]?.array?.compactMap { $0["session_id"]?.text } ?? []
            keys += page.json["biometric_keys"]?.array?.compactMap { $0["key_id"]?.text } ?? []
            guard let next = page.json["next_cursor"]?.text else { break }
            query = "?limit=\(limit)&cursor=\(next)"
        }
        #expect(sessions.count == 2 && Set(sessions).count == 2)
        #expect(keys.sorted() == ["key-00000001", "key-00000002"])
    }
}
