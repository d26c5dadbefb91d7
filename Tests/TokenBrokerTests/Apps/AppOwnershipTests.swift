import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

/// Sessions, codes and biometric keys of apps belong to one login under a storage key.
@Suite struct `Sessions belong to one login` {
    /// Who logs in: the user whom the provider's answer names, if it names one.
    private typealias User = Int?

    private static func broker(_ members: String = "") async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.makeClient(
            "app", of: "t1",
            #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "default", "refresh_token_rotation": false\#(members)}"#
        )
        return broker
    }

    private static func error(_ answer: BrokerHarness.Answer) -> String? { answer.json["error"]?.text }

    private static func token(_ number: Int, _ user: User, refreshes: Bool = true) -> String {
        BrokerHarness.token(
            "access-\(number)", refresh: refreshes ? "refresh-\(number)" : nil, scope: "r_usr", userID: user)
    }

    private static func session(_ broker: BrokerHarness, _ number: Int, _ user: User) async throws -> String {
        let code = await broker.appCode(token: token(number, user))
        return try #require(await broker.exchange(code).json["refresh_token"]?.text)
    }

    /// A further login or an adoption under the same storage key.
    private enum Way: CaseIterable {
        case browser, finalize, device, app, put
    }

    private static func logIn(_ broker: BrokerHarness, _ way: Way, _ user: User) async throws {
        switch way {
        case .browser: await broker.logIn(token: token(2, user))
        case .finalize:
            let login = await broker.beginLogin(body: #"{"redirect_uri": "https://own.example/cb"}"#)
            broker.transport.enqueue(.json(200, token(2, user)))
            let answer = await broker.call(
                .post, "/login/finalize", tenant: "t1",
                body: #"{"login_response_query": "code=c-1&state=\#(login.state)"}"#)
            #expect(answer.status == 200, "\(answer.text)")
        case .device:
            broker.transport.enqueue(
                .json(
                    200,
                    #"{"deviceCode":"d-1","userCode":"U","verificationUri":"https://p.example/d","expiresIn":300,"interval":5}"#
                ))
            let begun = await broker.call(.post, "/device", tenant: "t1", body: "{}")
            #expect(begun.status == 201, "\(begun.text)")
            broker.transport.enqueue(.json(200, token(2, user)))
            let handle = begun.json["device_code"]?.text ?? ""
            // The time of this test moves by itself, so that a wait may be over before the poll is.
            var answer = await broker.call(.get, "/device/\(handle)?wait=60", tenant: "t1")
            while answer.json["status"]?.text == "pending" {
                answer = await broker.call(.get, "/device/\(handle)?wait=60", tenant: "t1")
            }
            #expect(answer.json["status"]?.text == "completed", "\(answer.text)")
        case .app: _ = try await session(broker, 2, user)
        case .put:
            let member = user.map { #", "user_id": "\#($0)""# } ?? ""
            let answer = await broker.call(
                .put, "/credentials", tenant: "t1",
                body:
                    #"{"credentials": {"client_id": "c1", "requested_scopes": [], "granted_scopes": [], "token": "access-2"\#(member)}, "refresh_token": "refresh-2"}"#
            )
            #expect(answer.status == 200, "\(answer.text)")
        }
    }

    @Test(
        arguments: Way.allCases,
        [(nil, nil, false), (42, nil, false), (nil, 42, false), (42, 43, false), (42, 42, true)]
            as [(
                User, User, Bool
            )])
    private func `a session goes on only where both users are known to be the same`(
        _ way: Way, _ users: (first: User, second: User, goesOn: Bool)
    ) async throws {
        let broker = try await Self.broker()
        await broker.makeTenant(
            "t1", #"{"client_id": "c1", "allowed_redirect_uris": ["https://own.example/cb"]}"#)
        let first = try await Self.session(broker, 1, users.first)
        try await Self.logIn(broker, way, users.second)
        let answer = await broker.refresh(first)
        if users.goesOn {
            #expect(answer.json["access_token"]?.text == "access-2", "\(answer.text)")
        } else {
            #expect(Self.error(answer) == "invalid_grant", "\(answer.text)")
        }
        _ = await broker.broker.core.sessionEndings.handleAllDue()
        let others = way == .app ? 1 : 0
        #expect(await broker.sessions().count == others + (users.goesOn ? 1 : 0))
        let causes = try await broker.events(named: "session.ended", of: TenantName("t1")!).map { $0["cause"]?.text }
        #expect(causes == (users.goesOn ? [] : ["replaced"]))
    }

    /// The app's own refresh finds out, while the provider's token at hand lives.
    @Test func `a session whose login the provider has ended ends as revoked`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{\#(BrokerHarness.oidc)"client_id": "c1"}"#)
        await broker.makeClient()
        let code = await broker.appCode(token: BrokerHarness.token("access-1", refresh: "refresh-1", expiresIn: 3600))
        let session = try #require(await broker.exchange(code).json["refresh_token"]?.text)
        broker.time.advance(by: .seconds(3400))
        broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        let answer = await broker.refresh(session)
        _ = await broker.broker.core.sessionEndings.handleAllDue()
        #expect(Self.error(await broker.refresh(session)) == "invalid_grant", "\(answer.text)")
        #expect(await broker.sessions().isEmpty)
        let causes = try await broker.events(named: "session.ended", of: TenantName("t1")!).map { $0["cause"]?.text }
        #expect(causes == ["revoked"])
    }

    @Test func `the session of the later login goes on, also when both came in the same millisecond`() async throws {
        let broker = try await Self.broker()
        let first = try await Self.session(broker, 1, nil)
        let second = try await Self.session(broker, 2, nil)
        _ = await broker.broker.core.sessionEndings.handleAllDue()
        #expect(Self.error(await broker.refresh(first)) == "invalid_grant")
        #expect(await broker.refresh(second).json["access_token"]?.text == "access-2")
        #expect(await broker.sessions().count == 1)
    }

    @Test(arguments: [(nil, nil), (42, nil), (nil, 42), (42, 43)] as [(User, User)])
    private func `a code of the login before is worth nothing`(_ first: User, _ second: User) async throws {
        let broker = try await Self.broker()
        let code = await broker.appCode(token: Self.token(1, first))
        await broker.logIn(token: Self.token(2, second))
        let answer = await broker.exchange(code)
        #expect(Self.error(answer) == "invalid_grant", "\(answer.text)")
    }

    @Test(arguments: [(nil, nil), (42, nil)] as [(User, User)])
    private func `a biometric key of the login before logs no user in`(_ first: User, _ second: User) async throws {
        let broker = try await Self.broker(#", "biometric_enabled": true"#)
        let key = try AppKey()
        let session = try await Self.session(broker, 1, first)
        func proof(_ action: String) async throws -> String {
            try key.proof(
                await broker.challenge("biometric_request"), now: broker.time.now,
                type: "vnd.authgear.biometric-request", action: action, embedsKey: action == "setup")
        }
        #expect(await broker.biometric(try await proof("setup"), ["refresh_token": session]).status == 200)
        await broker.logIn(token: Self.token(2, second))
        // Before the key's record is removed.
        let answer = await broker.biometric(try await proof("authenticate"))
        #expect(Self.error(answer) == "invalid_grant", "\(answer.text)")
        _ = await broker.broker.core.sessionEndings.handleAllDue()
        #expect(try await broker.count(.biometricKey) == 0)
        // The same device sets its key up for the next login.
        let next = try await Self.session(broker, 3, second)
        #expect(await broker.biometric(try await proof("setup"), ["refresh_token": next]).status == 200)
        #expect(await broker.biometric(try await proof("authenticate")).json["access_token"]?.text == "access-3")
    }

    @Test func `a session whose login is replaced while it is refreshed does not get the later login's token`()
        async throws
    {
        let broker = try await Self.broker()
        let first = try await Self.session(broker, 1, nil)
        broker.time.advance(by: .seconds(3600))
        // The refresh is under way when the other user logs in, so it comes back with nothing that it may store.
        let gate = Gate()
        broker.transport.enqueue(
            .after(gate, .json(200, BrokerHarness.token("access-1b", refresh: "refresh-1b"))))
        async let refreshed = broker.refresh(first)
        await gate.arrivals()
        await broker.logIn(token: Self.token(2, nil))
        gate.open()
        let answer = await refreshed
        #expect(answer.json["access_token"] == nil, "\(answer.text)")
        #expect(Self.error(answer) == "invalid_grant")
    }

    // MARK: The end of a login

    /// How a login ends.
    private enum End: CaseIterable {
        case logout, refused, expired
    }

    private static func end(_ broker: BrokerHarness, _ end: End) async {
        switch end {
        case .logout: #expect(await broker.logOut().status == 204)
        case .refused:
            broker.time.advance(by: .seconds(3600))
            broker.transport.enqueue(.json(401, #"{"error": "invalid_grant"}"#))
            _ = await broker.get()
        case .expired:
            broker.time.advance(by: .seconds(3600))
            _ = await broker.get()
        }
    }

    @Test(arguments: End.allCases, [42, nil] as [User])
    private func `the session ends with its login, and no later one revives it`(_ end: End, _ user: User) async throws {
        let broker = try await Self.broker()
        let code = await broker.appCode(token: Self.token(1, user, refreshes: end != .expired))
        let session = try #require(await broker.exchange(code).json["refresh_token"]?.text)
        await Self.end(broker, end)
        _ = await broker.broker.core.sessionEndings.handleAllDue()
        #expect(await broker.sessions().isEmpty)
        let causes = try await broker.events(named: "session.ended", of: TenantName("t1")!).map { $0["cause"]?.text }
        #expect(causes == [["logout", "revoked", "expired"][End.allCases.firstIndex(of: end)!]])
        await broker.logIn(token: Self.token(2, user))
        #expect(Self.error(await broker.refresh(session)) == "invalid_grant")
    }

    @Test(arguments: End.allCases, [42, nil] as [User])
    private func `a session is dead before its end is carried out, and a later login does not revive it`(
        _ end: End, _ user: User
    ) async throws {
        let broker = try await Self.broker()
        let code = await broker.appCode(token: Self.token(1, user, refreshes: end != .expired))
        let session = try #require(await broker.exchange(code).json["refresh_token"]?.text)
        if end == .logout {
            let id = CredentialsID(tenant: TenantName("t1")!, storageKey: .default)
            _ = try await broker.broker.core.writer.purge(id)
        } else {
            await Self.end(broker, end)
        }
        broker.time.advance(by: .milliseconds(1))
        await broker.logIn(token: Self.token(2, user))
        #expect(Self.error(await broker.refresh(session)) == "invalid_grant")
    }

    @Test(arguments: [false, true])
    func `a session ends with a token that cannot be renewed, also if nothing reads that`(
        _ logsInAgain: Bool
    ) async throws {
        let broker = try await Self.broker()
        let code = await broker.appCode(token: Self.token(1, 42, refreshes: false))
        #expect(await broker.exchange(code).status == 200)
        broker.time.advance(by: .seconds(3400))
        _ = await broker.broker.core.expiryJob.handleAllDue()
        _ = await broker.broker.core.sessionEndings.handleAllDue()
        #expect(await broker.sessions().count == 1)
        if logsInAgain { await broker.logIn(token: Self.token(2, 42, refreshes: false)) }
        broker.time.advance(by: .seconds(201))
        _ = await broker.broker.core.sessionEndings.handleAllDue()
        #expect(await broker.sessions().count == (logsInAgain ? 1 : 0))
        let causes = try await broker.events(named: "session.ended", of: TenantName("t1")!).map { $0["cause"]?.text }
        #expect(causes == (logsInAgain ? [] : ["expired"]))
    }

    @Test func `a session ends when the provider ends its login, although the token at hand is served to its end`()
        async throws
    {
        let broker = try await Self.broker()
        await broker.makeTenant(
            "t1",
            #"""
            {"provider": "oidc", "client_id": "c1", "endpoints": {"authorization": "https://op.example/a",
             "token": "https://op.example/t"}}
            """#)
        let session = try await Self.session(broker, 1, 42)
        broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        let served = await broker.get("policy=local_force_refresh")
        #expect(served.json["token"]?.text == "access-1", "\(served.text)")
        #expect(Self.error(await broker.refresh(session)) == "invalid_grant")
        _ = await broker.broker.core.sessionEndings.handleAllDue()
        #expect(await broker.sessions().isEmpty)
        #expect(try await broker.events(named: "session.ended", of: TenantName("t1")!).count == 1)
        await broker.logIn(token: Self.token(2, 42))
        #expect(Self.error(await broker.refresh(session)) == "invalid_grant")
    }

    @Test func `a login over a token that has expired unread does not revive the session`() async throws {
        let broker = try await Self.broker()
        let code = await broker.appCode(token: Self.token(1, 42, refreshes: false))
        let session = try #require(await broker.exchange(code).json["refresh_token"]?.text)
        broker.time.advance(by: .seconds(3600))
        await broker.logIn(token: Self.token(2, 42))
        #expect(Self.error(await broker.refresh(session)) == "invalid_grant")
    }

    @Test func `a session whose login is there when its end is carried out goes on`() async throws {
        let broker = try await Self.broker()
        let session = try await Self.session(broker, 1, 42)
        // The end of the login is noted, and the login is there again before that is carried out.
        let login = try #require(
            try await broker.store.list(.session, tenant: nil, after: nil, limit: 1).first.map {
                try JSONValue(parsing: broker.vault.open($0).content.revealedBytes)["login"]?.integer
            } ?? nil)
        try await broker.vault.commit([
            .insert(
                OpenRecord(
                    id: RecordID(.sessionEnding, TenantName("t1")!, key: "a"), version: 1,
                    content: SecretBytes(
                        utf8:
                            #"{"storage_key":"default","login":\#(login),"cause":"revoked","before":\#(broker.time.now.milliseconds)}"#
                    ), due: broker.time.now))
        ])
        _ = await broker.broker.core.sessionEndings.handleAllDue()
        #expect(await broker.refresh(session).json["access_token"]?.text == "access-1")
    }

    // MARK: Records of earlier builds

    /// The session's record as a build wrote it that did not name its login.
    private static func forgetLogins(_ broker: BrokerHarness) async throws {
        for record in try await broker.store.list(.session, tenant: nil, after: nil, limit: 10) {
            let open = try broker.vault.open(record)
            let text = open.content.revealedText.replacing(#/"login":\d+,/#, with: "")
            try await broker.vault.commit([
                .replace(
                    OpenRecord(
                        id: open.id, version: open.version + 1, content: SecretBytes(utf8: text),
                        lookup: SHA256.digest(Array(open.id.key.utf8)), due: open.due),
                    version: open.version)
            ])
        }
    }

    @Test(arguments: [42, nil] as [User])
    private func `a session of an earlier build goes on, and belongs to its login from its next refresh on`(
        _ user: User
    ) async throws {
        let broker = try await Self.broker()
        let session = try await Self.session(broker, 1, user)
        try await Self.forgetLogins(broker)
        let next = try await BrokerHarness(store: broker.store, transport: broker.transport, time: broker.time)
        #expect(await next.refresh(session).json["access_token"]?.text == "access-1")
        broker.time.advance(by: .seconds(1))
        await next.logIn(token: Self.token(2, nil))
        #expect(Self.error(await next.refresh(session)) == "invalid_grant")
    }

    @Test func `a session of an earlier build whose user is not known ends with a later login`() async throws {
        let broker = try await Self.broker()
        let session = try await Self.session(broker, 1, nil)
        try await Self.forgetLogins(broker)
        broker.time.advance(by: .seconds(1))
        let next = try await BrokerHarness(store: broker.store, transport: broker.transport, time: broker.time)
        await next.logIn(token: Self.token(2, nil))
        #expect(Self.error(await next.refresh(session)) == "invalid_grant")
    }
}
