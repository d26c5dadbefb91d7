import BrokerCore
import BrokerTesting
import OAuth
import Reactor
import Testing

/// For how long, and for what, a failure keeps the provider from being asked about one set of credentials.
@Suite struct `Recent failures` {
    private let time = ManualTime()
    private let failures: RecentFailures

    init() { failures = RecentFailures(isShared: false, time: time) }

    private static func id(_ name: String = "alice") throws -> CredentialsID {
        CredentialsID(tenant: try #require(TenantName("t1")), storageKey: try #require(StorageKey(name)))
    }

    private static let all: RecentFailures.Kinds = [.early, .upgrade, .degraded, .recovery]

    /// The name of the failure that lasts; nil for none.
    private func current(
        _ kinds: RecentFailures.Kinds = all, version: Int64 = 7, configuration: Int64 = 1,
        grant: TokenRequest.Grant? = .upgrade
    ) throws -> String? {
        let found = failures.current(
            try Self.id(), kinds, version: version, configuration: configuration, grant: grant)
        return switch found?.failure {
        case .early?: "early"
        case .upgrade?: "upgrade"
        case .degraded?: "degraded"
        case .recovery?: "recovery"
        case nil: nil
        }
    }

    private func note(_ name: String, version: Int64 = 7, retryAfter: Int? = nil) throws {
        let (id, error) = (
            try Self.id(), BrokerError(.unexpectedError, "It was refused.", errorCode: "no", retryAfter: retryAfter)
        )
        switch name {
        case "early": failures.noteEarly(id, version: version, for: .seconds(30))
        case "upgrade":
            failures.noteUpgrade(
                error, id, version: version, configuration: 1, grant: .upgrade, for: .seconds(30))
        case "degraded": _ = failures.noteDegraded(error, id, version: version, configuration: 1)
        default: failures.noteRecovery(id, isFirst: false)
        }
    }

    @Test(
        arguments: [
            ("early", 29_999, true), ("early", 30_000, false), ("early", 30_001, false),
            ("upgrade", 29_999, true), ("upgrade", 30_000, false), ("upgrade", 30_001, false),
            ("degraded", 4999, true), ("degraded", 5000, false), ("degraded", 5001, false),
            ("recovery", 999, true), ("recovery", 1000, false), ("recovery", 1001, false),
        ] as [(String, Int64, Bool)])
    func `each kind lasts for its time and not an instant longer`(
        kind: String, milliseconds: Int64, isThere: Bool
    ) throws {
        try note(kind)
        #expect(try current() == kind)
        time.advance(by: .milliseconds(milliseconds))
        #expect(try current() == (isThere ? kind : nil))
    }

    /// What is asked about, and which of the kinds count for it.
    @Test(
        arguments: [
            (6, 1, .upgrade, ["recovery"]), (7, 1, .upgrade, ["early", "upgrade", "degraded", "recovery"]),
            (8, 1, .upgrade, ["recovery"]), (7, 2, .upgrade, ["early", "recovery"]),
            (7, 1, .refreshToken, ["early", "degraded", "recovery"]),
        ] as [(Int64, Int64, TokenRequest.Grant, [String])])
    func `a failure counts for the version, the configuration and the grant that it met`(
        version: Int64, configuration: Int64, grant: TokenRequest.Grant, kinds: [String]
    ) throws {
        for kind in ["early", "upgrade", "degraded", "recovery"] { try note(kind) }
        let asked: [(String, RecentFailures.Kinds)] = [
            ("early", .early), ("upgrade", .upgrade), ("degraded", .degraded), ("recovery", .recovery),
        ]
        let found = try asked.filter {
            try current($0.1, version: version, configuration: configuration, grant: grant) == $0.0
        }
        #expect(found.map(\.0) == kinds)
    }

    /// One kind that ends leaves the next one, in the order in which callers are concerned.
    @Test func `of several failures the one is told that concerns callers most`() throws {
        for kind in ["early", "recovery", "upgrade", "degraded"] { try note(kind) }
        #expect(try current() == "degraded")
        #expect(try current([.early, .upgrade, .recovery]) == "upgrade")
        #expect(try current([.early, .recovery]) == "recovery")
        #expect(try current(.early) == "early")
    }

    @Test func `nothing is known of another user`() throws {
        try note("degraded")
        #expect(failures.current(try Self.id("bob"), Self.all, version: 7, configuration: 1)?.until == nil)
    }

    @Test func `callers get an upgrade's failure as one that may pass, with the rest of its time`() throws {
        try note("upgrade")
        time.advance(by: .milliseconds(10_500))
        let found = failures.current(
            try Self.id(), .upgrade, version: 7, configuration: 1, grant: .upgrade)
        guard case .upgrade(let error)? = found?.failure else {
            Issue.record("there is no failure")
            return
        }
        #expect((error.code, error.errorCode, error.retryAfter) == (.retryableError, "no", 20))
    }

    @Test(arguments: [(1, 1, true), (1, 2, false), (9, 8, true)] as [(Int, Int64, Bool)])
    func `a token is served without another try for as long as the failure says`(
        retryAfter: Int, seconds: Int64, isThere: Bool
    ) throws {
        try note("degraded", retryAfter: retryAfter)
        time.advance(by: .seconds(seconds) - .milliseconds(1))
        #expect(try current(.degraded) == (isThere ? "degraded" : nil))
    }

    @Test(arguments: [(7, true), (8, false)] as [(Int64, Bool)])
    func `a later failure of the same version keeps the time of the first`(version: Int64, isKept: Bool) throws {
        let (id, error) = (try Self.id(), BrokerError(.networkError, "It did not answer.", retryAfter: 1))
        let first = failures.noteDegraded(error, id, version: 7, configuration: 1)
        time.advance(by: .seconds(60))
        let second = failures.noteDegraded(error, id, version: version, configuration: 2)
        #expect((second.since == first.since) == isKept)
        #expect(second.retryAt == time.now.advanced(by: .seconds(1)))
    }

    /// How often it has failed, and the pause after it.
    @Test(arguments: [(1, 1), (2, 2), (3, 4), (6, 32), (7, 64), (8, 64)] as [(Int, Int64)])
    func `each failure of a recovery in a row makes the pause longer, up to 64 seconds`(
        count: Int, seconds: Int64
    ) throws {
        for _ in 0..<count { try note("recovery") }
        time.advance(by: .seconds(seconds) - .milliseconds(1))
        #expect(try current(.recovery) == "recovery")
        time.advance(by: .milliseconds(1))
        #expect(try current(.recovery) == nil)
    }

    @Test func `a store that does not answer does not make the pause of a recovery longer`() throws {
        for _ in 0..<5 { try note("recovery") }
        failures.noteRecovery(try Self.id(), isFirst: true)
        time.advance(by: .seconds(1))
        #expect(try current(.recovery) == nil)
    }

    @Test func `knows whether a recovery is left that has failed`() throws {
        #expect(!failures.hasRecoveries)
        for user in ["alice", "bob"] { failures.noteRecovery(try Self.id(user), isFirst: false) }
        failures.noteRecovery(try Self.id(), isFirst: false)
        failures.endRecovery(try Self.id())
        failures.endRecovery(try Self.id())
        #expect(failures.hasRecoveries)
        failures.endRecovery(try Self.id("bob"))
        #expect(!failures.hasRecoveries)
        try note("recovery")
        try note("early")
        failures.endRecoveries()
        #expect(!failures.hasRecoveries)
        #expect(try current() == "early")
    }

    @Test func `the newest 16,384 failures of calls are kept, and displace no recovery`() throws {
        failures.noteRecovery(try Self.id("u0"), isFirst: true)
        for user in 0...16_384 { failures.noteEarly(try Self.id("u\(user)"), version: 1, for: .seconds(30)) }
        #expect(failures.hasRecoveries)
        #expect(failures.current(try Self.id("u0"), .recovery)?.until != nil)
        #expect(failures.current(try Self.id("u0"), .early, version: 1)?.until == nil)
        #expect(failures.current(try Self.id("u1"), .early, version: 1)?.until != nil)
        #expect(failures.current(try Self.id("u16384"), .early, version: 1)?.until != nil)
    }

    @Test func `the newest 10,000 recoveries are kept, and one that is displaced is not waited for`() throws {
        for user in 0...10_000 { failures.noteRecovery(try Self.id("u\(user)"), isFirst: true) }
        #expect(failures.current(try Self.id("u0"), .recovery)?.until == nil)
        #expect(failures.current(try Self.id("u1"), .recovery)?.until != nil)
        #expect(failures.current(try Self.id("u10000"), .recovery)?.until != nil)
    }
}
