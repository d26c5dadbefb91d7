import Cryptography
package import OAuth
import Reactor
import Synchronization
import Waiting

/// One value of a storage that is not the broker's: an entry of a keychain, for example.
package protocol ValueStorage: Sendable {
    /// The value; nil where there is none.
    func value() async throws -> [UInt8]?

    /// Stores a value in place of another one, durably.
    /// - Parameter current: what must be stored; nil for nothing.
    /// - Returns: whether that was stored. Otherwise nothing has changed.
    func set(_ value: [UInt8], replacing current: [UInt8]?) async throws -> Bool
}

/// Records as one value of a storage that a program brings. Each write reads, changes and replaces the whole value, so a commit is
/// complete or absent after a crash at any moment, and meant for the records of few users.
///
/// A value that another process has replaced meanwhile is read again, and the changes are tried on it: they are a conflict only if
/// the records that they name are. `.unavailable` means that the storage has thrown an error, has not answered in time, or is
/// always written to by others; `.damaged` that the value is not what a store has written.
package final class ValueRecordStore: RecordStore {
    private struct Held: Sendable {
        let store: MemoryRecordStore
        /// The value that the storage has; nil for none.
        let bytes: [UInt8]?
        let keys: String?
    }

    private struct State {
        /// What the storage had last. With one user of the storage, it has that still.
        var held: Held?
        /// Whether another process may have replaced the value since. `held` still has the times of this process's leases.
        var isStale = false
        /// The calls of the storage that have not returned.
        var calls = 0
        var isClosed = false
    }

    /// How often changes are tried on a value that others replace.
    private static let mostTries = 100
    /// How many calls of the storage may be late at once. More are not made.
    private static let mostCalls = 8

    private let storage: any ValueStorage
    private let timeOfDay: (@Sendable () -> Timestamp)?
    private let expire: @Sendable () async -> Void
    private let turns = Turns<Int>()
    private let state = Mutex(State())

    /// - Parameters:
    ///   - timeOfDay: the clock that all processes which use the storage share; nil for a storage with one user at a time.
    ///   - expire: suspends for as long as a call of the storage may take.
    package init(
        _ storage: any ValueStorage, timeOfDay: (@Sendable () -> Timestamp)?,
        expire: @escaping @Sendable () async -> Void
    ) {
        self.storage = storage
        self.timeOfDay = timeOfDay
        self.expire = expire
    }

    private var isShared: Bool { timeOfDay != nil }

    // MARK: The keys

    /// The keys that the storage has beside the records. New ones are made and stored where the storage is empty. Nil where it has
    /// records and no keys.
    package func ownKeys() async throws(StoreError) -> String? {
        try await inTurn { () async throws(StoreError) -> String? in
            for _ in 0..<Self.mostTries {
                let held = try await load()
                if held.keys != nil || held.bytes != nil { return held.keys }
                let keys: String
                do throws(CryptographyError) {
                    keys = try Keyring.generate(id: "k1")
                } catch {
                    throw .unavailable
                }
                if try await replace(held, by: held.store, keys: keys) { return keys }
            }
            throw .unavailable
        }
    }

    // MARK: The value

    /// What the storage has now. With one user of the storage, it is read once.
    private func load() async throws(StoreError) -> Held {
        let (known, isStale) = state.withLock { ($0.held, $0.isStale) }
        if let known, !isShared, !isStale { return known }
        let bytes = try await ask { storage in try await storage.value() }
        var held = known
        if held == nil || held?.bytes != bytes { held = try decode(bytes, after: known) }
        guard let held else { throw .unavailable }
        state.withLock { ($0.held, $0.isStale) = (held, false) }
        return held
    }

    /// - Parameter known: what this process knew before; the value has no times of leases where there is one user.
    private func decode(_ bytes: [UInt8]?, after known: Held? = nil) throws(StoreError) -> Held {
        var document = ValueDocument()
        do throws(FramedFile.Failure) {
            if let bytes { document = try ValueDocument(decoding: bytes) }
        } catch {
            switch error {
            case .damaged: throw .damaged("the value in the program's storage is not what was stored there")
            case .newerFormat: throw .damaged("a later build has written the value in the program's storage")
            }
        }
        if let known, !isShared { document.keepLeases(of: known.store) }
        guard let store = MemoryRecordStore(document, now: leaseClock, timeOfDay: timeOfDay) else {
            throw .damaged("the value in the program's storage contradicts itself")
        }
        return Held(store: store, bytes: bytes, keys: document.keys)
    }

    /// What measures leases: the time of day where other processes measure them, too.
    private var leaseClock: @Sendable () -> MonotonicInstant {
        guard let timeOfDay else { return { .now } }
        return { MonotonicInstant(nanoseconds: timeOfDay().milliseconds * 1_000_000) }
    }

    /// Stores the content of `next` if the storage still has that of `held`. Returns whether it did.
    private func replace(_ held: Held, by next: MemoryRecordStore, keys: String?) async throws(StoreError) -> Bool {
        let bytes: [UInt8]
        do throws(CryptographyError) {
            bytes = try next.document(keys: keys, isShared: isShared).encoded()
        } catch {
            throw .unavailable
        }
        guard bytes.count <= ValueDocument.countLimit else { throw .unavailable }
        let current = held.bytes
        let isStored = try? await ask { storage in try await storage.set(bytes, replacing: current) }
        if isStored != true {
            // The call may have arrived, although it has failed or was repeated.
            state.withLock { $0.isStale = true }
            let found = try await ask { storage in try await storage.value() }
            guard found == bytes else {
                if isStored == nil { throw .unavailable }
                return false
            }
        }
        state.withLock { ($0.held, $0.isStale) = (Held(store: next, bytes: bytes, keys: keys), false) }
        return true
    }

    /// A call of the storage. The caller's cancellation does not end it: a write would then have an unknown outcome.
    private func ask<R: Sendable>(
        _ body: @escaping @Sendable (any ValueStorage) async throws -> R
    ) async throws(StoreError) -> R {
        let mayCall = state.withLock { state in
            guard state.calls < Self.mostCalls, !state.isClosed else { return false }
            state.calls += 1
            return true
        }
        guard mayCall else { throw .unavailable }
        let flight = SingleFlight<Int, Result<R, any Error>>()
        let call = Task { [storage, expire] in
            await flight.run(0, within: expire) {
                defer { self.state.withLock { $0.calls -= 1 } }
                do {
                    return .success(try await body(storage))
                } catch {
                    return .failure(error)
                }
            }
        }
        guard let answer = await call.value, case .success(let result) = answer.value else {
            flight.cancelAll()
            throw .unavailable
        }
        return result
    }

    private func inTurn<R: Sendable>(
        _ body: () async throws(StoreError) -> R
    ) async throws(StoreError) -> R {
        try await turns.take(0) { () async throws(StoreError) -> R in
            if state.withLock({ $0.isClosed }) { throw .unavailable }
            return try await body()
        }
    }

    // MARK: Reading and writing

    private func reading<R: Sendable>(
        _ body: (MemoryRecordStore) async throws(StoreError) -> R
    ) async throws(StoreError) -> R {
        let known = state.withLock { $0.isStale || $0.isClosed ? nil : $0.held }
        if let known, !isShared { return try await body(known.store) }
        let held = try await inTurn { () async throws(StoreError) -> Held in try await load() }
        return try await body(held.store)
    }

    /// - Parameter isChange: whether a result of `body` means that it has changed something.
    private func writing<R: Sendable>(
        _ body: (MemoryRecordStore) async throws(StoreError) -> R, isChange: (R) -> Bool = { _ in true }
    ) async throws(StoreError) -> R {
        try await inTurn { () async throws(StoreError) -> R in
            for _ in 0..<Self.mostTries {
                let held = try await load()
                let next = held.store.copy()
                let result: R
                do throws(StoreError) {
                    result = try await body(next)
                } catch {
                    // The caller reads again, and must see what another process may have stored.
                    state.withLock { $0.isStale = true }
                    throw error
                }
                if !isChange(result) { return result }
                if try await replace(held, by: next, keys: held.keys) { return result }
            }
            throw .unavailable
        }
    }

    // MARK: The contract

    package var revalidateAfter: Duration? { isShared ? .seconds(5) : nil }

    package func read(_ id: RecordID) async throws(StoreError) -> StoredRecord? {
        try await reading { store throws(StoreError) in try await store.read(id) }
    }

    package func read(_ id: RecordID, with others: [RecordID]) async throws(StoreError) -> (
        record: StoredRecord, versions: [Int64?]
    )? {
        try await reading { store throws(StoreError) in try await store.read(id, with: others) }
    }

    package func find(_ kind: RecordKind, lookup: [UInt8]) async throws(StoreError) -> StoredRecord? {
        try await reading { store throws(StoreError) in try await store.find(kind, lookup: lookup) }
    }

    package func versions(of ids: [RecordID]) async throws(StoreError) -> [Int64?] {
        try await reading { store throws(StoreError) in try await store.versions(of: ids) }
    }

    package func list(
        _ kind: RecordKind, tenant: TenantName?, after: RecordID?, limit: Int
    ) async throws(StoreError) -> [StoredRecord] {
        try await reading { store throws(StoreError) in
            try await store.list(kind, tenant: tenant, after: after, limit: limit)
        }
    }

    package func commit(_ changes: [RecordChange]) async throws(StoreError) {
        try await writing { store throws(StoreError) in try await store.commit(changes) }
    }

    package func reseal(_ changes: [Reseal]) async throws(StoreError) -> Int {
        try await writing { store throws(StoreError) in
            try await store.reseal(changes)
        } isChange: {
            $0 > 0
        }
    }

    package func lapsed(_ kind: RecordKind, limit: Int) async throws(StoreError) -> [LapsedLease] {
        try await reading { store throws(StoreError) in try await store.lapsed(kind, limit: limit) }
    }

    package func removeExpired(before now: Timestamp, limit: Int) async throws(StoreError) -> Int {
        try await writing { store throws(StoreError) in
            try await store.removeExpired(before: now, limit: limit)
        } isChange: {
            $0 > 0
        }
    }

    package func due(_ kind: RecordKind, before now: Timestamp, limit: Int) async throws(StoreError) -> [StoredRecord] {
        try await reading { store throws(StoreError) in try await store.due(kind, before: now, limit: limit) }
    }

    package func nextDue(_ kind: RecordKind) async throws(StoreError) -> Timestamp? {
        try await reading { store throws(StoreError) in try await store.nextDue(kind) }
    }

    package func countDue(
        _ kind: RecordKind, tenant: TenantName, after now: Timestamp, limit: Int
    ) async throws(StoreError) -> Int {
        try await reading { store throws(StoreError) in
            try await store.countDue(kind, tenant: tenant, after: now, limit: limit)
        }
    }

    package func entries(
        after sequence: Int64, tenant: TenantName?, limit: Int
    ) async throws(StoreError) -> [PlacedLogEntry] {
        try await reading { store throws(StoreError) in
            try await store.entries(after: sequence, tenant: tenant, limit: limit)
        }
    }

    package func contains(_ entry: StoredLogEntry) async throws(StoreError) -> Bool {
        try await reading { store throws(StoreError) in try await store.contains(entry) }
    }

    package func logBounds() async throws(StoreError) -> LogBounds {
        try await reading { store throws(StoreError) in try await store.logBounds() }
    }

    package func trimLog(before time: Timestamp, keeping count: Int, limit: Int) async throws(StoreError) -> Int {
        try await writing { store throws(StoreError) in
            try await store.trimLog(before: time, keeping: count, limit: limit)
        } isChange: {
            $0 > 0
        }
    }

    package func auditChains(
        _ order: AuditOrder, since: Timestamp?, after place: AuditPlace?, limit: Int
    ) async throws(StoreError) -> AuditPage {
        try await reading { store throws(StoreError) in
            try await store.auditChains(order, since: since, after: place, limit: limit)
        }
    }

    package func auditBlocks(
        of chain: String, after first: Int64, limit: Int
    ) async throws(StoreError) -> [AuditBlock] {
        try await reading { store throws(StoreError) in
            try await store.auditBlocks(of: chain, after: first, limit: limit)
        }
    }

    package func removeAuditChain(_ chain: String) async throws(StoreError) {
        try await writing { store throws(StoreError) in try await store.removeAuditChain(chain) }
    }

    /// The storage tells of no changes: other processes' commits are found when a cached value is revalidated.
    package func watch(_ notify: @escaping @Sendable (StoreNotification) -> Void) {}

    package func clock() async throws(StoreError) -> Timestamp? { timeOfDay?() }

    /// Reads the value. That it can be written shows with the next commit.
    package func check() async throws(StoreError) {
        try await inTurn { () async throws(StoreError) in
            let bytes = try await ask { storage in try await storage.value() }
            if state.withLock({ $0.held?.bytes }) != bytes { _ = try decode(bytes) }
        }
    }

    package func close() async {
        await turns.take(0) { state.withLock { ($0.held, $0.isClosed) = (nil, true) } }
    }
}
