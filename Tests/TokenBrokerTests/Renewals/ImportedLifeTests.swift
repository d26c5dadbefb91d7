import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

/// What keeps refresh tokens alive whose access token says nothing about when: imported ones without any, and those whose access tokens
/// do not expire.
@Suite(.timeLimit(.minutes(1))) struct `The life of a grant without an expiring token` {
    private static let day = 86_400
    private static let idle = 10 * day
    private static let lasting = #"{"access_token": "a1", "token_type": "Bearer", "refresh_token": "r1"}"#

    private static func broker(_ members: String = #", "idle_expiry": 864000"#) async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{\#(BrokerHarness.oidc) "client_id": "c1"\#(members)}"#)
        return broker
    }

    /// Imports a refresh token that was granted so many days ago.
    private static func importing(_ broker: BrokerHarness, age: Int? = nil, query: String = "") async {
        let granted = age.map { #", "granted_at": "\#(broker.time.now.advanced(by: .seconds(-$0 * day)))""# } ?? ""
        let line = #"{"storage_key": "default", "refresh_token": "r1"\#(granted)}"#
        #expect(await broker.importing(line, query: query).outcomes == ["1 default imported"])
    }

    private static func look(_ broker: BrokerHarness) async {
        _ = await broker.broker.core.expiryJob.handleAllDue()
        await broker.broker.core.expiryJob.finish()
    }

    private static func mark(_ broker: BrokerHarness) async throws -> Timestamp? {
        try await broker.vault.read(RecordID(.credentials, try #require(TenantName("t1")), key: "default"))?.due
    }

    private static func pass(_ mark: Timestamp, _ broker: BrokerHarness) {
        broker.time.advance(by: max(.zero, broker.time.now.duration(to: mark)) + .milliseconds(1))
    }

    private static func notices(_ broker: BrokerHarness) async throws -> Int {
        try await broker.events().count { $0.kind == .credentialsExpiring }
    }

    private static func end(_ broker: BrokerHarness) async -> String? {
        await broker.status().json["ends"]?["at"]?.text
    }

    /// - Parameters:
    ///   - age: the days since the grant; nil where the line does not say.
    ///   - earliest: the seconds from the import to the earliest mark.
    @Test(
        arguments: [
            (nil, 7 * day + day / 2, 8 * day), (0, 7 * day + day / 2, 8 * day),
            (5, 2 * day + day / 2, 3 * day), (9, 30, 30), (12, 30, 30),
        ] as [(Int?, Int, Int)])
    func `is used in time after the import of a refresh token alone`(age: Int?, earliest: Int, latest: Int) async throws
    {
        let broker = try await Self.broker()
        let now = broker.time.now
        await Self.importing(broker, age: age)
        let mark = try #require(try await Self.mark(broker))
        let wait = now.duration(to: mark)
        #expect(wait >= .seconds(earliest) && wait <= .seconds(latest), "\(wait)")
        let end = now.advanced(by: .seconds(Self.idle - (age ?? 0) * Self.day))
        #expect(await Self.end(broker) == end.description)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        Self.pass(mark, broker)
        await Self.look(broker)
        #expect(broker.transport.seen.map { $0.form["refresh_token"] } == ["r1"])
        #expect(await broker.get("policy=local").token == "a2")
        // Of a token that no caller has had, no listener is told that it expires.
        #expect(try await Self.notices(broker) == 0)
    }

    @Test func `counts from the presentation where the import has made one`() async throws {
        let broker = try await Self.broker()
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        await Self.importing(broker, age: 9, query: "verify=true")
        #expect(await Self.end(broker) == broker.time.now.advanced(by: .seconds(Self.idle)).description)
    }

    @Test func `is used in time where access tokens do not expire, and tells nothing of their expiry`() async throws {
        let broker = try await Self.broker(#", "idle_expiry": 864000, "default_lifetime": "never""#)
        let login = broker.time.now
        await broker.logIn(token: Self.lasting)
        for name in ["r2", "r3"] {
            let mark = try #require(try await Self.mark(broker))
            Self.pass(mark, broker)
            broker.transport.enqueue(
                .json(200, #"{"access_token": "a-\#(name)", "token_type": "Bearer", "refresh_token": "\#(name)"}"#))
            await Self.look(broker)
            #expect(await broker.get("policy=local").token == "a-\(name)")
        }
        #expect(broker.time.now > login.advanced(by: .seconds(15 * Self.day)))
        #expect(broker.transport.seen.compactMap { $0.form["refresh_token"] } == ["r1", "r2"])
        #expect(try await Self.notices(broker) == 0)
    }

    @Test(arguments: [false, true])
    func `is used when an outage at that time has ended`(isImported: Bool) async throws {
        let broker = try await Self.broker(
            #", "idle_expiry": 864000"# + (isImported ? "" : #", "default_lifetime": "never""#))
        if isImported { await Self.importing(broker) } else { await broker.logIn(token: Self.lasting) }
        Self.pass(try #require(try await Self.mark(broker)), broker)
        broker.transport.always(.json(503, "{}"))
        let outage = broker.time.now
        for _ in 0..<10 {
            await Self.look(broker)
            Self.pass(try #require(try await Self.mark(broker), "it is never given up"), broker)
        }
        #expect(broker.time.now < outage.advanced(by: .seconds(Self.day / 2)))
        broker.transport.always(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        broker.time.advance(by: .seconds(1200))
        await Self.look(broker)
        #expect(await broker.get("policy=local").token == "a2")
        #expect(try await Self.notices(broker) == 0)
    }

    @Test func `is used at the next try where the access token lives on for longer than the refresh token`()
        async throws
    {
        let broker = try await Self.broker()
        await broker.logIn(token: BrokerHarness.token("a1", refresh: "r1", expiresIn: 60 * Self.day))
        Self.pass(try #require(try await Self.mark(broker)), broker)
        broker.transport.always(.json(503, "{}"))
        await Self.look(broker)
        let next = try #require(try await Self.mark(broker))
        // Six hours and a fifth, since days are left.
        #expect(broker.time.now.duration(to: next) <= .seconds(25_920))
    }

    @Test func `is renewed ahead without a notice where the tenant wants that`() async throws {
        let broker = try await Self.broker(#", "proactive_refresh": 300"#)
        await Self.importing(broker)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        Self.pass(try #require(try await Self.mark(broker)), broker)
        await Self.look(broker)
        #expect(await broker.get("policy=local").token == "a2")
        #expect(try await Self.notices(broker) == 0)
    }

    @Test(arguments: [
        "", #", "consent_lifetime": 864000"#, #", "default_lifetime": "never", "proactive_refresh": 300"#,
    ])
    func `is left alone where nothing is known to end it unused`(members: String) async throws {
        let broker = try await Self.broker(members)
        await broker.logIn(token: Self.lasting)
        if members.contains("never") { #expect(try await Self.mark(broker) == nil) }
        await broker.logOut()
        if members.contains("proactive") { return }
        await Self.importing(broker)
        #expect(try await Self.mark(broker) == nil)
    }
}
