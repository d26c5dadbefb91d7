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

/// A refresh whose answer is about another person than the login.
@Suite struct `Another person's token` {
    private static let provider = SigningProvider()
    private static let tenant = #"{"client_id": "c1", \#(SigningProvider.members)}"#

    /// A broker that gets the provider's keys.
    private static func broker() async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        broker.transport.standing(at: SigningProvider.keysAddress, .json(200, provider.keySet))
        return broker
    }

    /// An answer of the token endpoint.
    private static func answer(
        _ token: String, refresh: String? = nil, userID: String? = nil, subject: String? = nil
    ) -> ScriptedTransport.Step {
        .json(200, body(token, refresh: refresh, userID: userID, subject: subject))
    }

    private static func body(
        _ token: String, refresh: String? = nil, userID: String? = nil, subject: String? = nil
    ) -> String {
        var members = [#""access_token": "\#(token)""#, #""token_type": "Bearer""#, #""expires_in": 3600"#]
        if let refresh { members.append(#""refresh_token": "\#(refresh)""#) }
        if let userID { members.append(#""user_id": "\#(userID)""#) }
        if let subject {
            // Of the login's time: a refresh may bring an older one, a login may not.
            let issued = ManualTime.beginning.seconds
            let token = provider.token(
                #"{"iss": "\#(SigningProvider.issuer)", "aud": "c1", "sub": "\#(subject)", "iat": \#(issued), "exp": 4102444800}"#
            )
            members.append(#""id_token": "\#(token)""#)
        }
        return "{" + members.joined(separator: ", ") + "}"
    }

    /// Ada is logged in, and her token has expired.
    private static func loggedIn(
        _ tenant: String = tenant, userID: String? = "ada", subject: String? = nil
    ) async throws -> BrokerHarness {
        let broker = try await Self.broker()
        await broker.makeTenant("t1", tenant)
        await broker.logIn(token: body("a1", refresh: "r1", userID: userID, subject: subject))
        broker.time.advance(by: .seconds(3600))
        return broker
    }

    private static let told: [(login: (String?, String?), refresh: (String?, String?), isOther: Bool)] = [
        (("ada", nil), ("bob", nil), true), (("ada", nil), ("ada", nil), false), (("ada", nil), (nil, nil), false),
        ((nil, nil), ("bob", nil), false), ((nil, "ada"), (nil, "bob"), true), ((nil, "ada"), (nil, "ada"), false),
        ((nil, "ada"), (nil, nil), false), (("7", "ada"), ("7", "bob"), true), (("7", "ada"), ("8", "ada"), false),
        (("7", "ada"), (nil, "ada"), false), (("7", "ada"), ("8", nil), true), (("7", "ada"), ("7", nil), false),
        // A name of one kind says nothing about a name of the other.
        (("7", nil), (nil, "ada"), false), ((nil, "ada"), ("7", nil), false), (("ada", nil), ("Ada", nil), true),
        (("ada", nil), ("ada\u{301}", nil), true),
    ]

    @Test(arguments: told.indices)
    func `is never given out`(index: Int) async throws {
        let (login, refresh, isOther) = Self.told[index]
        let broker = try await Self.loggedIn(userID: login.0, subject: login.1)
        broker.transport.enqueue(Self.answer("a2", refresh: "r2", userID: refresh.0, subject: refresh.1))
        let answer = await broker.get()
        if isOther {
            #expect((answer.status, answer.code) == (502, "token_response_error"))
            #expect(!answer.text.contains("a2"))
            #expect(await broker.get().level == "basic")
        } else {
            #expect((answer.status, answer.token) == (200, "a2"))
        }
        #expect(broker.transport.unforeseen == 0)
    }

    @Test func `is not what the same subject under another user_id brings`() async throws {
        let broker = try await Self.loggedIn(userID: "7", subject: "ada")
        broker.transport.enqueue(
            Self.answer("a2", userID: "8", subject: "ada"), Self.answer("a3", userID: "9"),
            Self.answer("a4", userID: "8", subject: "bob"))
        let renamed = await broker.get()
        #expect((renamed.status, renamed.token, renamed.json["user_id"]?.text) == (200, "a2", "8"))
        // From here on `8` is her name where an answer has no subject.
        broker.time.advance(by: .seconds(3600))
        #expect(await broker.get().code == "token_response_error")
        #expect(await broker.restore().status == 200)
        #expect(await broker.get().code == "token_response_error")
    }

    @Test func `puts the session aside, to be restored with its token and the newest refresh token`() async throws {
        let broker = try await Self.loggedIn()
        broker.transport.enqueue(Self.answer("canary-a2", refresh: "canary-r2", userID: "bob"))
        #expect(await broker.get().status == 502)
        let aside = try #require(try await broker.quarantined())
        #expect((aside.credentials.userID, aside.credentials.accessToken.revealedText) == ("ada", "a1"))
        // The provider has spent the one before.
        #expect(aside.credentials.refreshToken?.revealedText == "canary-r2")
        #expect(await broker.status().isLoggedIn == false)
        #expect(await broker.get("policy=local").code == "missing_token_container")

        let restored = await broker.restore()
        #expect((restored.status, restored.json["user_id"]?.text) == (200, "ada"))
        broker.transport.enqueue(Self.answer("a3", userID: "ada"))
        #expect(await broker.get().token == "a3")
        #expect(broker.transport.seen.last?.form["refresh_token"] == "canary-r2")
        #expect(!broker.log.joined().contains("canary"))
    }

    @Test func `is told once by events and in the log`() async throws {
        let broker = try await Self.loggedIn()
        broker.transport.enqueue(Self.answer("a2", refresh: "r2", userID: "bob"))
        #expect(await broker.get().status == 502)
        let events = try await broker.events().suffix(5)
        #expect(
            events.map(\.kind.rawValue) == [
                "refresh.started", "refresh.refreshing_access_token", "credentials.subject_changed",
                "credentials.deauthorized", "refresh.failed",
            ])
        let changed = try #require(events.first { $0.kind.rawValue == "credentials.subject_changed" })
        #expect(changed.data["user_id"]?.text == "ada")
        let ended = try #require(events.first { $0.kind == .credentialsDeauthorized })
        #expect((ended.data["cause"]?.text, ended.data["reason"]?.text) == ("revoked", "subject_changed"))
        #expect(events.last?.data["error"]?.text == "token_response_error")
        #expect(Set(events.compactMap { $0.data["refresh_id"]?.text }).count == 1)
        #expect(!events.contains { $0.data["user_id"]?.text == "bob" })
        #expect(broker.log.contains { $0.contains(#""event":"subject_changed""#) })
    }

    @Test func `is counted, from nought on`() async throws {
        let broker = try await Self.loggedIn()
        #expect(await broker.subjectChanges(provider: "oidc") == 0)
        broker.transport.enqueue(Self.answer("a2", refresh: "r2", userID: "bob"))
        #expect(await broker.get().status == 502)
        #expect(await broker.subjectChanges(provider: "oidc") == 1)
    }

    @Test func `falls to the client's token for later callers`() async throws {
        let broker = try await Self.loggedIn(#"{"client_id": "c1", "client_secret": "s1"}"#)
        broker.transport.enqueue(Self.answer("a2", userID: "bob"), Self.answer("client-1"))
        #expect(await broker.get().status == 502)
        #expect(await broker.get().token == "client-1")
    }

    @Test func `is refused where a refresh is forced or early, too`() async throws {
        for query in ["policy=local_force_refresh", "api_error_sub_status=11003", ""] {
            let broker = try await BrokerHarness()
            await broker.makeTenant("t1", #"{"client_id": "c1", "refresh_lead_time": 7200}"#)
            await broker.logIn(token: Self.body("a1", refresh: "r1", userID: "ada"))
            broker.time.advance(by: .seconds(1801))
            broker.transport.enqueue(Self.answer("a2", userID: "bob"))
            let answer = await broker.get(query)
            if query.isEmpty {
                // The early refresh follows the answer.
                #expect((answer.status, answer.token) == (200, "a1"))
                await broker.broker.core.renewer.finish()
                #expect(await broker.get().level == "basic")
            } else {
                #expect((answer.status, answer.code) == (502, "token_response_error"), "\(query)")
            }
            #expect(try await broker.quarantined()?.credentials.refreshToken?.revealedText == "r1")
        }
    }

    @Test func `is refused where the upgrade brings it`() async throws {
        let broker = try await Self.loggedIn(#"{"client_id": "c1"}"#)
        await broker.makeTenant("t1", #"{"client_id": "c2"}"#)
        broker.transport.enqueue(Self.answer("a2", userID: "bob"))
        #expect(await broker.get().code == "token_response_error")
        #expect(try await broker.quarantined()?.credentials.refreshToken?.revealedText == "r1")
    }

    @Test func `is refused of credentials that came from elsewhere, too`() async throws {
        let broker = try await Self.broker()
        await broker.makeTenant("t1", Self.tenant)
        await broker.set("a1", refresh: "r1", lifetime: .seconds(1), members: #""level": "user", "user_id": "ada", "#)
        broker.transport.enqueue(Self.answer("a2", userID: "bob"))
        #expect(await broker.get().code == "token_response_error")
        await broker.set("b1", refresh: "r2", lifetime: .seconds(1), members: #""level": "user", "user_id": "ada", "#)
        broker.transport.enqueue(Self.answer("b2", userID: "7", subject: "ada"))
        #expect(await broker.get().token == "b2")
    }

    @Test func `is not seen in a subject that comes after a name of an unknown kind`() async throws {
        let broker = try await Self.broker()
        await broker.makeTenant("t1", Self.tenant)
        let members = #""level": "user", "user_id": "bob@example.com", "#
        await broker.set("a1", refresh: "r1", lifetime: .seconds(1), members: members)
        broker.transport.enqueue(Self.answer("a2", subject: "auth0|7"), Self.answer("a3", subject: "auth0|8"))
        let answer = await broker.get()
        #expect((answer.status, answer.token, answer.json["user_id"]?.text) == (200, "a2", "auth0|7"))
        let lines = broker.log.filter { $0.contains(#""event":"subject_adopted""#) }
        #expect(lines.count == 1 && !lines.joined().contains("auth0"))
        // From here on the subject is known.
        broker.time.advance(by: .seconds(3600))
        #expect(await broker.get().code == "token_response_error")
        #expect(broker.log.count { $0.contains("subject_adopted") } == 1)
    }

    @Test func `is told to a replica that waited as a logout`() async throws {
        let time = ManualTime(skipsSleeps: false)
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .zero, time: time)
        await one.makeTenant()
        await one.logIn(token: Self.body("a1", refresh: "r1", userID: "ada"))
        time.advance(by: .seconds(3600))
        let gate = Gate()
        one.transport.enqueue(.after(gate, Self.answer("a2", refresh: "r2", userID: "bob")))
        async let first = one.get()
        await gate.arrivals()
        let second = Task { await two.get() }
        // It waits for the lease.
        await time.sleepers(of: .seconds(1))
        gate.open()
        #expect(await first.code == "token_response_error")
        let clock = Task {
            while !Task.isCancelled {
                await time.sleeper()
                time.advance(by: .milliseconds(250))
            }
        }
        #expect(await second.value.level == "basic")
        clock.cancel()
        #expect(two.transport.seen.isEmpty)
    }

    @Test func `a new login of another person is none`() async throws {
        let broker = try await Self.loggedIn()
        await broker.logIn(token: Self.body("b1", refresh: "r9", userID: "bob"))
        broker.time.advance(by: .seconds(3600))
        broker.transport.enqueue(Self.answer("b2", userID: "bob"))
        #expect(await broker.get().token == "b2")
    }

    // MARK: From a journal

    /// Has the journal's entry be of another user, as a build would have left it that did not compare users.
    private static func rewriteEntry(in directory: StoreFixtureDirectory, user: String) async throws {
        let vault = Vault(
            store: try await FileRecordStore(directory: directory.path),
            keyring: try Keyring(parsing: BrokerHarness.masterKeys))
        let entry = try #require(try await vault.list(.unpublished, tenant: nil, after: nil, limit: 10).first)
        var outer = try #require(try JSONValue(parsing: entry.content.revealedBytes).object)
        let text = try #require(outer["record"]?.string?.text)
        let content = try #require(Base64URL.decode(text))
        var record = try #require(try JSONValue(parsing: content).object)
        var held = try #require(record["held"]?.object)
        #expect(held["user_id"]?.text == "42")
        held["user_id"] = .string(WireText(user))
        for name in ["told_user_id", "told_subject"] as [WireText] { held[name] = nil }
        record["held"] = .object(held)
        for name in ["same_user", "cause"] as [WireText] { outer[name] = nil }
        outer["record"] = .string(WireText(Base64URL.encode(Self.bytes(.object(record)))))
        try await vault.commit([
            .replace(
                OpenRecord(
                    id: entry.id, version: entry.version + 1, content: SecretBytes(Self.bytes(.object(outer)))),
                version: entry.version)
        ])
        await vault.close()
    }

    private static func bytes(_ json: JSONValue) -> [UInt8] {
        var writer = JSONWriter()
        writer.value(json)
        return writer.bytes
    }

    @Test(arguments: [("bob", false), ("bob", true), ("42", false), ("42", true)])
    func `is not taken from a journal, whether the store is there or comes later`(
        user: String, isAwayAtStart: Bool
    ) async throws {
        let (directory, time) = (StoreFixtureDirectory(), ManualTime(skipsSleeps: false))
        let base = MemoryRecordStore { time.monotonic }
        func journal() async throws -> Journal {
            Journal(
                vault: Vault(
                    store: try await FileRecordStore(directory: directory.path),
                    keyring: try Keyring(parsing: BrokerHarness.masterKeys)))
        }
        func replica(_ journal: Journal?) async throws -> (broker: BrokerHarness, store: BrokerFaultyStore) {
            let store = BrokerFaultyStore(base, revalidateAfter: .seconds(5))
            return (try await BrokerHarness(store: store, time: time, journal: journal), store)
        }
        let first = try await journal()
        let (one, store) = try await replica(first)
        await one.makeTenant()
        await one.logIn()
        time.advance(by: .seconds(3600))
        one.transport.enqueue(
            .decide { _ in
                store.isAway = true
                return .json(200, BrokerHarness.token("a2", refresh: "r2"))
            })
        #expect(await one.get().token == "a2")
        await first.close()
        try await Self.rewriteEntry(in: directory, user: user)

        let second = try await journal()
        let (two, other) = try await replica(second)
        _ = try await two.broker.core.tenants.tenant(TenantName("t1")!)
        other.isAway = isAwayAtStart
        try await two.broker.core.takeUpJournal()
        if isAwayAtStart {
            // The user of the token is not known yet.
            #expect(await two.get().code == "storage_unavailable")
            other.isAway = false
        }
        let clock = Task {
            while !Task.isCancelled {
                await time.sleeper()
                time.advance(by: .milliseconds(250))
            }
        }
        let kinds = ["credentials.subject_changed", "credentials.updated"]
        while try await !two.events().suffix(3).contains(where: { kinds.contains($0.kind.rawValue) }) {
            await Task.yield()
        }
        // What was stored is in memory, too, when the entry leaves the journal.
        while !two.log.contains(where: { $0.contains("credentials_published_from_journal") }) { await Task.yield() }
        clock.cancel()
        await clock.value
        #expect(await two.subjectChanges(provider: "tidal") == (user == "42" ? 0 : 1))
        if user == "42" {
            #expect(await two.get("policy=local").token == "a2")
            #expect(try await two.causes().last == "refresh")
        } else {
            #expect(await two.get("policy=local").code == "missing_token_container")
            #expect(await two.get().json["session"]?["cause"]?.text == "revoked")
            #expect(try await two.quarantined()?.credentials.refreshToken?.revealedText == "r2")
            #expect(try await two.events().last?.data["reason"]?.text == "subject_changed")
            #expect(await two.restore().status == 200)
        }
        await two.broker.core.finish()
        await second.close()
    }
}
