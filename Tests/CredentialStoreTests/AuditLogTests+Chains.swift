import BrokerTesting
import ExternalText
import OAuth
import Synchronization
import Testing

@testable import CredentialStore

/// Which chains a signature names, and what that is worth.
extension `Audit log` {
    /// The chains that a process which starts, and then signs, looks at in a store with this many chains, each of a day of its own.
    private func looks(withChains count: Int) async throws -> (starting: Int, signing: Int) {
        let store = MemoryRecordStore()
        for day in 0..<count {
            let time = clock.now.advanced(by: .seconds((day - count) * 86_400))
            try await store.commit([.audit(.sample("old-\(day)", 1, time: time.seconds))])
        }
        let watched = WatchedStore(store)
        let log = AuditLog(vault: Vault(store: watched, keyring: try Keyring(parsing: Self.keys))) { [clock] in
            clock.now
        }
        try await log.sign(isStart: true)
        let starting = watched.looks
        try await log.record(AuditEntry("read"))
        try await log.sign()
        return (starting, watched.looks - starting)
    }

    @Test func `a start and a signature look at the newest chains only, however many there are`() async throws {
        let few = try await looks(withChains: 200)
        let many = try await looks(withChains: 2000)
        #expect(few == many)
        #expect(few.starting <= 101 && few.signing <= 100, "\(few)")
    }

    @Test(arguments: [
        // Chains of a start, in the order in which they were begun; those that were written within two days before the last.
        ([30, 29, 28], [30, 29, 28]), ([30, 28, 3], [3]), ([5, 3, 3, 1], [3, 3, 1]), ([9, 2, 1, 0], [2, 1, 0]),
    ]) func `a start names the chains of the last two days in which there was one`(
        days: [Int], named: [Int]
    ) async throws {
        for (index, day) in days.enumerated() {
            let time = clock.now.advanced(by: .seconds(-day * 86_400))
            try await store.commit([.audit(.sample("old-\(index)", 1, time: time.seconds))])
        }
        let (log, _) = try log()
        try await log.sign(isStart: true)
        let line = try #require(try await lines().last { $0.contains("audit.signed") })
        let expected = days.indices.filter { named.contains(days[$0]) }
        #expect(days.indices.filter { line.contains("\"old-\($0)\"") } == expected, "\(line)")
    }

    @Test func `a chain that is long in use is named, although many have begun since`() async throws {
        let first = clock.now
        try await store.commit([.audit(.sample("long-1", 1, time: first.seconds))])
        clock.move(by: .seconds(86_400))
        for index in 0..<120 {
            clock.move(by: .seconds(60))
            try await store.commit([.audit(.sample("short-\(index)", 1, time: clock.now.seconds))])
        }
        try await store.commit([.audit(.sample("long-1", 2, time: clock.now.seconds))])
        let (log, _) = try log()
        try await log.sign(isStart: true)
        let line = try #require(try await lines().last { $0.contains("audit.signed") })
        #expect(line.contains(#"{"chain":"long-1","sequence":2,"#))
    }

    @Test func `the name of a chain tells when it began and which process wrote it`() async throws {
        let times: [Int64] = [0, 1, 1_800_000_000_000, 281_474_976_710_655]
        for milliseconds in times {
            let name = AuditChainName.make(
                begun: Timestamp(milliseconds: milliseconds), process: "00000000000000ab", number: 12)
            #expect(AuditBlock.isName(name.utf8))
            #expect(AuditChainName.begun(name) == Timestamp(milliseconds: milliseconds), "\(name)")
            #expect(AuditChainName.process(WireText(name)) == "00000000000000ab")
        }
        for name in ["a-1", "", "-", "a", "00000000000000ab-1", "00000000000g-a-1", "00000000000-a-1", "1-2-3-4"] {
            #expect(AuditChainName.begun(name) == nil, "\(name)")
        }
        #expect(AuditChainName.process("a-1") == AuditChainName.process("a-2"))
        #expect(AuditChainName.process("a-1") != AuditChainName.process("b-1"))
        let (log, _) = try log()
        try await log.sign(isStart: true)
        let name = try #require(try await store.allAuditChains().first?.end.chain)
        #expect(AuditChainName.begun(name) == clock.now)
    }

    @Test func `entries that another process has signed count apart from those that their own has`() async throws {
        let (killed, vault) = try log()
        try await killed.sign(isStart: true)
        for key in ["a", "b", "c"] { try await vault.commit([insertion(key)]) }
        func counts() async throws -> [Int64] {
            let (summary, faults) = try await verify(store)
            #expect(faults == [])
            return [summary.unsigned, summary.witnessed]
        }
        #expect(try await counts() == [3, 0])
        let (next, _) = try log()
        try await next.sign(isStart: true)
        #expect(try await counts() == [0, 3])
        // It is not killed after all.
        try await killed.sign()
        #expect(try await counts() == [0, 0])
        try await vault.commit([insertion("d")])
        #expect(try await counts() == [1, 0])
        try await next.record(AuditEntry("read"))
        try await next.sign()
        #expect(try await counts() == [0, 1])
        // A process signs its other chains.
        store.onCommit(of: .credentials, .loseAnswer)
        await #expect(throws: StoreError.unavailable) { try await vault.commit([insertion("e")]) }
        #expect(try await counts() == [1, 1])
        try await vault.commit([insertion("f")])
        try await killed.sign()
        #expect(try await counts() == [0, 0])
    }

    @Test(arguments: [true, false])
    func `tells once of a commit that is sent again, whether the first try was carried out or not`(
        isCarriedOut: Bool
    ) async throws {
        let (log, vault) = try log()
        let commit = try vault.prepare([insertion("a")])
        store.onCommit(of: .credentials, isCarriedOut ? .loseAnswer : .refuse(.unavailable))
        await #expect(throws: StoreError.unavailable) { try await vault.commit(commit) }
        #expect(try await vault.commit(commit) == (isCarriedOut ? .earlier : .now))
        try await log.sign()
        await log.close()
        #expect(try await verify(store).faults == [])
        #expect(try await lines().count { $0.contains("record.created") } == 1)
    }
}

/// Counts the chains of the list that are looked at.
private final class WatchedStore: ForwardingStore {
    let inner: any RecordStore
    private let count = Mutex(0)

    init(_ inner: any RecordStore) {
        self.inner = inner
    }

    var revalidateAfter: Duration? { inner.revalidateAfter }
    var looks: Int { count.withLock { $0 } }

    func admit() throws(StoreError) {}

    func auditChains(
        _ order: AuditOrder, since: Timestamp?, after place: AuditPlace?, limit: Int
    ) async throws(StoreError) -> AuditPage {
        #expect(order == .newestFirst)
        count.withLock { $0 += limit }
        return try await inner.auditChains(order, since: since, after: place, limit: limit)
    }
}
