import CredentialStore
import OAuth
import Reactor

/// The store that the replicas share: real records and leases in memory, in the world's time, with what the judge wants to
/// know of each commit.
///
/// Unchecked: everything of a world runs on one thread.
final class SimulatedDatabase: @unchecked Sendable {
    /// What it refuses to take, as it does while a role lacks a privilege.
    enum Refusal: String, CaseIterable {
        case events = "the events of commits"
        case commits = "all commits"
    }

    private let executor: Executor
    private let judge: Judge
    private(set) var records: MemoryRecordStore
    /// Rises whenever it goes back.
    private(set) var timeline: Int64 = 1
    private var links: [DatabaseLink] = []
    private(set) var isPaused = false
    /// Whether it refuses connections.
    private(set) var isDown = false
    var refusal: Refusal?
    private var waiting: [() -> Void] = []
    /// What changed the records, for a world in which the database goes back; nil in another.
    private var history: [(time: Int64, step: Step)]?
    private let clock: Clock

    private enum Step {
        case commit([RecordChange])
        case removal(before: Timestamp, limit: Int)
        case trim(before: Timestamp, keeping: Int, limit: Int)
    }

    /// Measures leases: the world's time, or an earlier one while commits are made again.
    private final class Clock: @unchecked Sendable {
        let executor: Executor
        var replayed: Int64?

        init(_ executor: Executor) {
            self.executor = executor
        }

        var now: MonotonicInstant { MonotonicInstant(nanoseconds: replayed ?? executor.now) }
        var timeOfDay: Timestamp { SimulatedTime.time(at: replayed ?? executor.now) }
    }

    init(_ executor: Executor, judge: Judge, goesBack: Bool) {
        let clock = Clock(executor)
        self.executor = executor
        self.judge = judge
        self.clock = clock
        history = goesBack ? [] : nil
        records = Self.records(clock)
    }

    private static func records(_ clock: Clock) -> MemoryRecordStore {
        MemoryRecordStore(now: { clock.now }, timeOfDay: { clock.timeOfDay })
    }

    func add(_ link: DatabaseLink) { links.append(link) }

    func remove(_ link: DatabaseLink) { links.removeAll { $0 === link } }

    /// Calls `body` when the database answers.
    func whenRunning(_ body: @escaping () -> Void) {
        if isPaused { waiting.append(body) } else { body() }
    }

    func setPaused(_ isPaused: Bool) {
        self.isPaused = isPaused
        if isPaused { return }
        let calls = waiting
        waiting = []
        for call in calls { call() }
    }

    /// Ends all connections and takes no new ones, or takes them again.
    func setDown(_ isDown: Bool) {
        self.isDown = isDown
        if isDown { for link in links { link.loseConnections() } }
    }

    // MARK: What changes records

    /// - Parameter asked: what the replica asked for; the same unless the world has a broken store.
    func commit(
        _ changes: [RecordChange], asked: [RecordChange], by sender: DatabaseLink
    ) async throws(StoreError) {
        if refuses(changes) { throw .unavailable }
        let records = records
        try await records.commit(changes)
        // The database went back meanwhile, and the connection is gone.
        guard records === self.records else { throw .unavailable }
        history?.append((executor.now, .commit(changes)))
        judge.committed(asked, by: sender.process)
    }

    private func refuses(_ changes: [RecordChange]) -> Bool {
        switch refusal {
        case nil: false
        case .commits: true
        case .events: changes.contains { if case .append = $0 { true } else { false } }
        }
    }

    /// Lets go of the records of a world that is over.
    func clear() {
        records = MemoryRecordStore()
        history = nil
        links = []
        waiting = []
    }

    /// Tells every replica that listens, as a commit is followed by a notification.
    func tell(_ changes: [RecordChange]) {
        let told = changes.compactMap(\.told)
        if told.isEmpty { return }
        for link in links { link.tell(.changed(told)) }
    }

    func removeExpired(before now: Timestamp, limit: Int) async throws(StoreError) -> Int {
        history?.append((executor.now, .removal(before: now, limit: limit)))
        return try await records.removeExpired(before: now, limit: limit)
    }

    func trimLog(before time: Timestamp, keeping count: Int, limit: Int) async throws(StoreError) -> Int {
        history?.append((executor.now, .trim(before: time, keeping: count, limit: limit)))
        return try await records.trimLog(before: time, keeping: count, limit: limit)
    }

    /// Undoes what was committed after `time`, as a failover does to a standby that had not received it, and ends all
    /// connections.
    /// - Returns: how many commits are gone.
    func goBack(to time: Int64) async throws(StoreError) -> Int {
        guard let history else { return 0 }
        let kept = history.prefix { $0.time <= time }
        let clock = clock
        let records = Self.records(clock)
        for entry in kept {
            clock.replayed = entry.time
            switch entry.step {
            case .commit(let changes): try await records.commit(changes)
            case .removal(let before, let limit): _ = try await records.removeExpired(before: before, limit: limit)
            case .trim(let before, let count, let limit):
                _ = try await records.trimLog(before: before, keeping: count, limit: limit)
            }
        }
        clock.replayed = nil
        self.records = records
        self.history = Array(kept)
        timeline += 1
        for link in links { link.loseConnections() }
        return history.count - kept.count
    }
}

extension RecordChange {
    /// What a store tells of it.
    fileprivate var told: StoreChange? {
        switch self {
        case .insert(let record), .replace(let record, _, _): .written(record.id, version: record.version)
        case .remove(let id, _): .removed(id)
        case .removeAll(let tenant): .tenantRemoved(tenant)
        case .release(let id, let version, _, _): .written(id, version: version)
        case .append(let entry): .logGrown(entry.tenant)
        case .require, .settleDue, .claim, .audit: nil
        }
    }
}
