import BrokerTesting
import OAuth
import Reactor
import Testing

@testable import CredentialStore

/// A program's storage of one value, which does what the test says.
private actor ValueCell: ValueStorage {
    enum Fault: Error {
        case refused
    }

    /// What becomes of the next call of `set`.
    enum Outcome {
        /// It is stored, and the answer is lost.
        case answerLost
        /// Nothing is stored, and it throws.
        case refused
        /// It is stored, and the storage repeats its call, which finds another value than before.
        case repeated
    }

    private(set) var stored: [UInt8]?
    private(set) var writes = 0
    private(set) var reads = 0
    private var outcomes: [Outcome] = []
    private var isAway = false
    private var hangs = false

    init(_ stored: [UInt8]? = nil) {
        self.stored = stored
    }

    func prepare(_ outcomes: Outcome...) { self.outcomes = outcomes }
    func setAway(_ isAway: Bool) { self.isAway = isAway }
    func setHanging(_ hangs: Bool) { self.hangs = hangs }
    func put(_ bytes: [UInt8]?) { stored = bytes }

    func value() async throws -> [UInt8]? {
        reads += 1
        if hangs { try await Task.sleep(for: .seconds(3600)) }
        if isAway { throw Fault.refused }
        return stored
    }

    func set(_ value: [UInt8], replacing current: [UInt8]?) async throws -> Bool {
        writes += 1
        if isAway { throw Fault.refused }
        let outcome = outcomes.isEmpty ? nil : outcomes.removeFirst()
        if outcome == .refused { throw Fault.refused }
        guard stored == current else { return false }
        stored = value
        if outcome == .answerLost { throw Fault.refused }
        return outcome != .repeated
    }
}

@Suite struct `A store in one value` {
    private static let tenant = TenantName("alpha")!

    private static func record(_ key: String = "k", version: Int64 = 1, sealed: [UInt8] = [1]) -> StoredRecord {
        StoredRecord(id: RecordID(.credentials, tenant, key: key), version: version, sealed: sealed)
    }

    private static func open(_ cell: ValueCell, isShared: Bool = false) -> ValueRecordStore {
        let clock: @Sendable () -> Timestamp = { Timestamp(milliseconds: WallClock.milliseconds) }
        return ValueRecordStore(cell, timeOfDay: isShared ? clock : nil) { try? await Task.sleep(for: .seconds(30)) }
    }

    private static func failure(_ body: () async throws -> Void) async -> StoreError? {
        await #expect(throws: StoreError.self) { try await body() }
    }

    @Test(arguments: StoreConformance.checks + StoreConformance.durableChecks)
    func `keeps the contract with one user`(check: StoreConformance) async throws {
        let cell = ValueCell()
        try await check.run { Self.open(cell) }
    }

    @Test(arguments: StoreConformance.checks + StoreConformance.durableChecks + StoreConformance.sharedChecks)
    func `keeps the contract with several users`(check: StoreConformance) async throws {
        let cell = ValueCell()
        try await check.run { Self.open(cell, isShared: true) }
    }

    // MARK: Other writers

    @Test(arguments: [false, true])
    func `a change is made on the value that another process has stored meanwhile`(isShared: Bool) async throws {
        let cell = ValueCell()
        let (first, second) = (Self.open(cell, isShared: isShared), Self.open(cell, isShared: isShared))
        try await first.commit([.insert(Self.record("a"))])
        try await second.commit([.insert(Self.record("b"))])
        try await first.commit([.insert(Self.record("c"))])
        #expect(try await Self.open(cell).everything().map(\.id.key) == ["a", "b", "c"])
        // The records that it names are another matter.
        try await first.commit([.replace(Self.record("a", version: 2), version: 1)])
        #expect(
            await Self.failure { try await second.commit([.replace(Self.record("a", version: 3), version: 1)]) }
                == .conflict)
        #expect(try await second.read(Self.record("a").id)?.version == 2)
    }

    @Test func `with one user the value is read once, and a change of nothing writes nothing`() async throws {
        let cell = ValueCell()
        let store = Self.open(cell)
        try await store.commit([.insert(Self.record())])
        for _ in 0..<5 { _ = try await store.read(Self.record().id) }
        #expect(try await store.removeExpired(before: .latest, limit: 10) == 0)
        #expect(try await store.trimLog(before: Timestamp(seconds: 0), keeping: 10, limit: 10) == 0)
        #expect(await cell.reads == 1)
        #expect(await cell.writes == 1)
    }

    // MARK: A storage that fails

    @Test func `a write whose answer is lost has succeeded`() async throws {
        let cell = ValueCell()
        let store = Self.open(cell)
        await cell.prepare(.answerLost, .repeated)
        try await store.commit([.insert(Self.record("a"))])
        try await store.commit([.insert(Self.record("b"))])
        #expect(await cell.writes == 2)
        #expect(try await Self.open(cell).everything().map(\.id.key) == ["a", "b"])
    }

    @Test func `a write that is refused changes nothing, and the next one succeeds`() async throws {
        let cell = ValueCell()
        let store = Self.open(cell)
        await cell.prepare(.refused)
        #expect(await Self.failure { try await store.commit([.insert(Self.record())]) } == .unavailable)
        #expect(try await store.read(Self.record().id) == nil)
        try await store.commit([.insert(Self.record())])
        #expect(try await store.read(Self.record().id) == Self.record())
    }

    @Test func `a storage that is away is unavailable, and with one user what was read is still there`() async throws {
        let cell = ValueCell()
        let (alone, shared) = (Self.open(cell), Self.open(cell, isShared: true))
        try await alone.commit([.insert(Self.record())])
        #expect(try await shared.read(Self.record().id) != nil)
        await cell.setAway(true)
        #expect(try await alone.read(Self.record().id) != nil)
        #expect(await Self.failure { try await alone.commit([.insert(Self.record("b"))]) } == .unavailable)
        #expect(await Self.failure { _ = try await shared.read(Self.record().id) } == .unavailable)
        #expect(await Self.failure { try await alone.check() } == .unavailable)
        await cell.setAway(false)
        #expect(try await shared.read(Self.record().id) != nil)
        try await alone.check()
    }

    @Test(.timeLimit(.minutes(1)))
    func `a storage that does not answer is unavailable after its time`() async throws {
        let cell = ValueCell()
        await cell.setHanging(true)
        let store = ValueRecordStore(cell, timeOfDay: nil, expire: {})
        #expect(await Self.failure { _ = try await store.read(Self.record().id) } == .unavailable)
    }

    @Test func `a closed store is unavailable`() async throws {
        let store = Self.open(ValueCell())
        try await store.commit([.insert(Self.record())])
        await store.close()
        #expect(await Self.failure { _ = try await store.read(Self.record().id) } == .unavailable)
        #expect(await Self.failure { try await store.commit([.insert(Self.record("b"))]) } == .unavailable)
    }

    // MARK: The value

    @Test func `a value that was cut or changed is damaged, wherever that is`() async throws {
        let cell = ValueCell()
        let store = Self.open(cell)
        try await store.commit([
            .insert(Self.record()), .append(StoreSampleEntry.entry),
            .insert(StoredRecord(id: RecordID(.login, Self.tenant, key: "l"), version: 1, sealed: [], lookup: [9])),
        ])
        let bytes = try #require(await cell.stored)
        for count in 0..<bytes.count {
            #expect(throws: FramedFile.Failure.self) { try ValueDocument(decoding: Array(bytes.prefix(count))) }
            var changed = bytes
            changed[count] ^= 1
            #expect(throws: FramedFile.Failure.self) { try ValueDocument(decoding: changed) }
        }
        await cell.put(Array(bytes.dropLast()))
        let later = Self.open(cell)
        guard case .damaged = await Self.failure({ _ = try await later.read(Self.record().id) }) else {
            Issue.record("not damaged")
            return
        }
    }

    @Test func `a value of a later build is not taken for this one's`() async throws {
        let later = FramedFile.encode(mark: "TBvd", format: 2, [1])
        #expect(throws: FramedFile.Failure.newerFormat) { try ValueDocument(decoding: later) }
        let longer = FramedFile.encode(mark: "TBvd", format: 1, [UInt8](repeating: 0, count: 64))
        #expect(throws: FramedFile.Failure.newerFormat) { try ValueDocument(decoding: longer) }
    }

    @Test func `two values of the same records differ`() async throws {
        #expect(try ValueDocument().encoded() != ValueDocument().encoded())
    }

    @Test func `keys are made once, and stay with the records`() async throws {
        let cell = ValueCell()
        let keys = try #require(try await Self.open(cell).ownKeys())
        _ = try Keyring(parsing: keys)
        let store = Self.open(cell)
        try await store.commit([.insert(Self.record())])
        #expect(try await Self.open(cell).ownKeys() == keys)
        // A value whose keys were given has none.
        let other = ValueCell()
        try await Self.open(other).commit([.insert(Self.record())])
        #expect(try await Self.open(other).ownKeys() == nil)
    }
}

private enum StoreSampleEntry {
    static let entry = StoredLogEntry(
        tenant: TenantName("alpha")!, key: "e", version: 1, time: Timestamp(seconds: 1), sealed: [7, 8])
}
