import BrokerTesting
import CredentialStore
import Cryptography
import OAuth
import Synchronization
import Testing

/// A store in which another process seals a record, and in front of which this process is killed.
private final class RetirementStore: ForwardingStore {
    private struct State {
        var isDown = false
        var dieAfterCommit = false
        var commits = 0
        var atEndOfWalk: (@Sendable () async throws(StoreError) -> Void)?
    }

    let inner: any RecordStore
    private let state = Mutex(State())

    init(_ inner: any RecordStore) { self.inner = inner }

    var revalidateAfter: Duration? { .seconds(5) }
    var commits: Int { state.withLock { $0.commits } }

    /// Called once, when a walk has read all records and comes to the events.
    func atEndOfWalk(_ body: @escaping @Sendable () async throws(StoreError) -> Void) {
        state.withLock { $0.atEndOfWalk = body }
    }

    /// After the next commit every call fails, as for a process that is killed.
    func dieAfterCommit() { state.withLock { $0.dieAfterCommit = true } }

    func admit() throws(StoreError) {
        if state.withLock({ $0.isDown }) { throw .unavailable }
    }

    func commit(_ changes: [RecordChange]) async throws(StoreError) {
        try admit()
        try await inner.commit(changes)
        state.withLock { state in
            state.commits += 1
            state.isDown = state.dieAfterCommit
        }
    }

    func entries(
        after sequence: Int64, tenant: TenantName?, limit: Int
    ) async throws(StoreError) -> [PlacedLogEntry] {
        try admit()
        if let body = state.withLock({ $0.atEndOfWalk.take() }) { try await body() }
        return try await inner.entries(after: sequence, tenant: tenant, limit: limit)
    }
}

@Suite struct `Retiring a master key` {
    private let records = MemoryRecordStore()
    private let old: String
    private let new: String

    init() throws {
        old = try Keyring.generate(id: "k1")
        new = try Keyring.generate(id: "k2")
    }

    private func vault(_ keys: String, _ store: (any RecordStore)? = nil) throws -> Vault {
        Vault(store: store ?? records, keyring: try Keyring(parsing: keys))
    }

    private static func record(_ key: String) -> OpenRecord {
        OpenRecord(id: RecordID(.tenant, TenantName("alpha")!, key: key), version: 1, content: SecretBytes(utf8: "s"))
    }

    /// A store that both keys have unlocked, as before a retirement.
    private func prepare() async throws {
        try await vault(old).unlock()
        try await vault("\(new),\(old)").unlock()
    }

    private func checks() async throws -> [StoredRecord] {
        try await records.list(.keyCheck, tenant: .broker, after: nil, limit: 9)
    }

    @Test func `a killed retirement leaves no store that opens without a needed key`() async throws {
        try await prepare()
        let store = RetirementStore(records)
        let writer = try vault(old)
        // Behind the place of the first walk, so that only a second one can find it.
        store.atEndOfWalk { () async throws(StoreError) in try await writer.commit([.insert(Self.record("late"))]) }
        store.dieAfterCommit()
        _ = try? await vault("\(new),\(old)", store).retireKey(id: "k1")
        await #expect(throws: VaultError.missingKey(id: "k1")) { try await vault(new).unlock() }
        try await vault("\(new),\(old)").unlock()
        #expect(store.commits == 0)
    }

    @Test func `a retirement is one write, and one that is killed behind it is complete`() async throws {
        try await prepare()
        let store = RetirementStore(records)
        store.dieAfterCommit()
        try await vault("\(new),\(old)", store).retireKey(id: "k1")
        #expect(store.commits == 1)
        try await vault(new).unlock()
        try await vault("\(new),\(old)").retireKey(id: "k1")
        try await vault(new).unlock()
    }

    @Test func `a second run puts back what a killed run of an earlier version has removed too early`() async throws {
        try await prepare()
        try await vault(old).commit([.insert(Self.record("left"))])
        let noted = try await checks()
        let removed = try #require(noted.first { $0.id.key.hasPrefix("k1.") })
        try await records.commit([.remove(removed.id, version: removed.version)])
        let both = try vault("\(new),\(old)")
        let refusal = await #expect(throws: RetirementRefusal.self) { try await both.retireKey(id: "k1") }
        guard case .inUse(let use) = try #require(refusal) else {
            Issue.record("\(String(describing: refusal))")
            return
        }
        #expect(use.records == 1)
        #expect(try await checks().map(\.id) == noted.map(\.id))
        await #expect(throws: VaultError.missingKey(id: "k1")) { try await vault(new).unlock() }
        // The record is sealed under the key that it stands for.
        let error = await #expect(throws: VaultError.self) {
            try await vault("\(new),\(try Keyring.generate(id: "k1"))").unlock()
        }
        #expect(error == .otherKey(id: "k1"))
        try await vault("\(old),\(new)").unlock()

        let items = try await records.list(.tenant, tenant: nil, after: nil, limit: 9).map { SealedItem.record($0) }
        #expect(try await both.reseal(items).count == 1)
        try await both.retireKey(id: "k1")
        try await vault(new).unlock()
    }

    @Test func `a retirement whose answer was lost is complete at the second run`() async throws {
        try await prepare()
        let store = FaultyStore(records)
        store.onCommit(of: .keyCheck, .loseAnswer)
        let both = try vault("\(new),\(old)", store)
        await #expect(throws: RetirementRefusal.store(.unavailable)) { try await both.retireKey(id: "k1") }
        try await both.retireKey(id: "k1")
        try await vault(new).unlock()
    }
}
