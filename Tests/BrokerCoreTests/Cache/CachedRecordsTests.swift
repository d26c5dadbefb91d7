import BrokerTesting
import CredentialStore
import Cryptography
import OAuth
import Reactor
import Testing

@testable import BrokerCore

@Suite struct `Cached records` {
    private struct Item: RecordValue, Equatable {
        static let id = RecordID(.client, TenantName("t1")!, key: "a")

        let version: Int64

        var record: OpenRecord { OpenRecord(id: Self.id, version: version, content: SecretBytes([1])) }
    }

    private struct Setting {
        let store = FaultyStore()
        let vault: Vault
        let items: CachedRecords<String, Item>

        init() throws {
            vault = Vault(store: store, keyring: try Keyring(parsing: BrokerHarness.masterKeys))
            let cache = RevalidatingCache<String, Item>(
                bytes: 1 << 20, validity: CacheValidity(lifetime: nil), cost: { _, _ in 0 }, version: { $0.version })
            items = CachedRecords(cache, vault: vault, time: ManualTime())
        }

        /// The version that the store has.
        func read() async throws(StoreError) -> Int64? {
            try await items.current("a") { () async throws(StoreError) in
                try await vault.read(Item.id).map { Item(version: $0.version) }
            }?.version
        }

        /// Writes the next version.
        @discardableResult
        func raise() async throws(BrokerError) -> Int64 {
            try await items.update("a", at: Item.id) { .success(Item(version: ($0?.version ?? 0) + 1)) }.new.version
        }

        var known: Int64? { items.known("a")?.version }
    }

    @Test func `are in memory once they were read or written, until they are forgotten`() async throws {
        let setting = try Setting()
        #expect(try await setting.read() == nil && setting.known == nil)
        #expect(try await setting.raise() == 1 && setting.known == 1)
        setting.items.forget("a")
        #expect(setting.known == nil)
        #expect(try await setting.read() == 1)
        #expect(setting.items.valid("a") == Item(version: 1))
    }

    @Test func `are not in memory as they were before a change that is reported while they are read`() async throws {
        let setting = try Setting()
        try await setting.raise()
        let gate = Gate()
        setting.store.holdNextRead(of: .client, gate)
        async let read = setting.read()
        await gate.arrivals()
        setting.items.cache.invalidate("a", olderThan: 2)
        gate.open()
        #expect(try await read == 1)
        #expect(setting.known == nil)
    }

    @Test(arguments: [FaultyStore.CommitStep.loseAnswer, .refuse(.unavailable), .refuse(.damaged("a table"))])
    func `are read again where it is unknown whether they were written`(step: FaultyStore.CommitStep) async throws {
        let setting = try Setting()
        try await setting.raise()
        setting.store.onCommit(of: .client, step)
        await #expect(throws: BrokerError.self) { try await setting.raise() }
        #expect(setting.known == nil)
        let isMade = if case .loseAnswer = step { true } else { false }
        #expect(try await setting.read() == (isMade ? 2 : 1))
    }

    @Test func `are written over what another replica has written meanwhile`() async throws {
        let setting = try Setting()
        try await setting.raise()
        var asked: [Int64?] = []
        let (new, old) = try await setting.items.update("a", at: Item.id) { old async throws(StoreError) in
            asked.append(old?.version)
            if asked.count == 1 {
                try await setting.vault.commit([.replace(Item(version: 5).record, version: 1)])
            }
            return .success(Item(version: (old?.version ?? 0) + 1))
        }
        #expect(asked == [1, 5] && old?.version == 5 && new.version == 6 && setting.known == 6)
        #expect(try await setting.read() == 6)
    }

    @Test func `stay as they are where a change is refused, or conflicts`() async throws {
        let setting = try Setting()
        try await setting.raise()
        let refusal = BrokerError(.preconditionFailed, "It is not wanted.")
        await #expect(throws: refusal) { try await setting.items.update("a", at: Item.id) { _ in .failure(refusal) } }
        await #expect(throws: StoreError.conflict) {
            try await setting.items.write("a", Item(version: 9)) { () async throws(StoreError) in throw .conflict }
        }
        #expect(setting.known == 1)
        #expect(try await setting.read() == 1)
    }

    @Test func `stay in memory where they are newer than what was written`() async throws {
        let setting = try Setting()
        try await setting.raise()
        let arrival = try await setting.items.write("a", Item(version: 2)) {
            $0.version > 2
        } sending: {
            setting.items.cache.fill("a", Item(version: 3), setting.items.cache.ticket("a", now: .now))
            return .now
        }
        #expect(arrival == .now && setting.known == 3)
    }

    @Test func `are not in memory as an earlier call of the same commit has written them`() async throws {
        let setting = try Setting()
        let arrival = try await setting.items.write("a", Item(version: 2), sending: { .earlier })
        #expect(arrival == .earlier && setting.known == nil)
    }

    @Test func `are not in memory as they were before an earlier call of the same commit`() async throws {
        let setting = try Setting()
        try await setting.raise()
        #expect(setting.known == 1)
        let arrival = try await setting.items.write("a", Item(version: 2), sending: { .earlier })
        #expect(arrival == .earlier && setting.known == nil)
    }

    @Test func `stay in memory where they are newer than what an earlier call has written`() async throws {
        let setting = try Setting()
        for _ in 0..<3 { try await setting.raise() }
        let arrival = try await setting.items.write(
            "a", Item(version: 2), unless: { $0.version > 2 }, sending: { .earlier })
        #expect(arrival == .earlier && setting.known == 3)
    }

    @Test func `are new only while what they need exists`() async throws {
        let setting = try Setting()
        let needed = RecordID(.tenant, TenantName("t1")!)
        func make() async throws(BrokerError) {
            _ = try await setting.items.update("a", at: Item.id, requiring: [needed]) { _ in
                .success(Item(version: 1))
            }
        }
        await #expect(throws: BrokerError(StoreError.conflict)) { try await make() }
        #expect(setting.known == nil)
        try await setting.vault.commit([
            .insert(OpenRecord(id: needed, version: 1, content: SecretBytes([])))
        ])
        try await make()
        #expect(setting.known == 1)
    }

    @Test func `are read again after a removal, whatever has become of it`() async throws {
        let setting = try Setting()
        try await setting.raise()
        await #expect(throws: StoreError.unavailable) {
            try await setting.items.remove("a") { () async throws(StoreError) in throw .unavailable }
        }
        #expect(setting.known == nil)
        #expect(try await setting.read() == 1)
        var tries = 0
        try await setting.items.remove("a") { () async throws(StoreError) in
            tries += 1
            if tries == 1 { throw .conflict }
            try await setting.vault.commit([.remove(Item.id, version: 1)])
        }
        #expect(tries == 2 && setting.known == nil)
        #expect(try await setting.read() == nil)
    }
}
