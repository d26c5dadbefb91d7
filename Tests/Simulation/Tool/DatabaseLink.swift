import CredentialStore
import OAuth
import Reactor

/// One process's way to the database, which delays and loses what goes over it, and the news that come back.
///
/// It fails as the PostgreSQL store does: a call ends after five seconds at the latest; what was sent may take effect
/// although its sender has given up; and news come in their order, or it is told that some may be missing. A database that
/// goes back ends all connections with what is under way on them, and each new one is asked for its lineage first.
///
/// Unchecked: everything of a world runs on one thread.
final class DatabaseLink: RecordStore, @unchecked Sendable {
    /// What becomes of a call.
    private enum Fate {
        case passes
        case refused
        case requestLost
        case answerLost
        /// It takes effect this many nanoseconds after it was sent, when its sender no longer waits.
        case late(Int64)
    }

    static let statementTimeout: Duration = .seconds(5)
    private static let aliveInterval: Duration = .seconds(2)
    private static let aliveLimit: Duration = .seconds(3)
    private static let longestPause: Duration = .seconds(1)

    let process: SimulatedProcess
    private let executor: Executor
    private let database: SimulatedDatabase
    private let world: World
    /// Nothing arrives at the database.
    private(set) var isCutTo = false
    /// Nothing arrives from it.
    private(set) var isCutFrom = false
    private var notify: (@Sendable (StoreNotification) -> Void)?
    private var isListening = false
    /// When the news that were sent last arrive: none overtakes another.
    private var lastArrival: Int64 = 0
    /// Sent while nothing arrives; delivered when it does again, where the connection is still there.
    private var stuck: [StoreNotification] = []
    /// The history of commits that its connections lead to.
    private var timeline: Int64
    /// Of which connection news are.
    private var connection = 0
    private var isClosed = false

    init(_ world: World, _ process: SimulatedProcess) {
        self.world = world
        self.process = process
        executor = world.executor
        database = world.database
        timeline = world.database.timeline
    }

    var isUp: Bool { !isCutTo && !isCutFrom && !database.isPaused && !database.isDown }

    func cut(to: Bool, from: Bool) {
        let arrives = isCutFrom && !from
        (isCutTo, isCutFrom) = (to, from)
        guard arrives else { return }
        let news = stuck
        stuck = []
        for news in news { deliver(news) }
    }

    // MARK: Calls

    /// Resumes the caller once.
    ///
    /// Unchecked: everything of a world runs on one thread.
    @safe private final class Exchange<Value: Sendable>: @unchecked Sendable {
        private var continuation: UnsafeContinuation<Result<Value, StoreError>, Never>?
        /// Whether the database has done what it was asked.
        var isDone = false

        init(_ continuation: UnsafeContinuation<Result<Value, StoreError>, Never>) {
            unsafe self.continuation = continuation
        }

        func end(_ result: Result<Value, StoreError>) {
            unsafe continuation?.resume(returning: result)
            unsafe continuation = nil
        }
    }

    private func call<Value: Sendable>(
        isCommit: Bool = false, _ name: StaticString, about record: RecordID? = nil, isAbandoned: Bool = false,
        _ body: @escaping @Sendable (SimulatedDatabase) async throws(StoreError) -> Value,
        then done: @escaping @Sendable (Value) -> Void = { _ in }
    ) async throws(StoreError) -> Value {
        let result = await unsafe withUnsafeContinuation {
            (continuation: UnsafeContinuation<Result<Value, StoreError>, Never>) in
            begin(unsafe Exchange(continuation), isCommit, name, record, isAbandoned, body, done)
        }
        return try result.get()
    }

    private func begin<Value: Sendable>(
        _ exchange: Exchange<Value>, _ isCommit: Bool, _ name: StaticString, _ record: RecordID?,
        _ isAbandoned: Bool,
        _ body: @escaping @Sendable (SimulatedDatabase) async throws(StoreError) -> Value,
        _ done: @escaping @Sendable (Value) -> Void
    ) {
        let start = executor.now
        let end = start + Self.statementTimeout.nanoseconds
        let fate = fate(isCommit)
        compareLineage()
        let timeline = timeline
        switch fate {
        case .passes, .refused: break
        case .requestLost, .answerLost, .late:
            // A look that hangs is followed by another one.
            let hangs = isAbandoned ? min(Self.statementTimeout, .seconds(1)) : Self.statementTimeout
            world.judge.disturb(process, record.flatMap { world.user($0) }, until: start + hangs.nanoseconds)
        }
        if case .passes = fate {
        } else {
            world.faults.count("statement", Self.name(fate))
            let told = "\(process.name): \(name) of the database \(Self.text(fate))"
            if let record { world.note(record) { told } } else { world.note(World.nobody) { told } }
        }
        func giveUp() {
            let (process, executor) = (process, executor)
            executor.at(end, process) {
                // Where it can be seen that the commit took place, the store sees it.
                if exchange.isDone, isCommit, self.isUp, timeline == self.database.timeline, let value = () as? Value {
                    exchange.end(.success(value))
                } else {
                    exchange.end(.failure(.unavailable))
                }
            }
        }
        let way = world.faults.chance.span(.microseconds(100), .milliseconds(1))
        let arrival: Int64
        switch fate {
        case .refused:
            return executor.after(way, process) { exchange.end(.failure(.unavailable)) }
        case .requestLost: return giveUp()
        case .late(let delay):
            giveUp()
            arrival = start + delay
        case .answerLost:
            giveUp()
            arrival = start + way
        case .passes: arrival = start + way
        }
        executor.at(arrival, executor.world) { [self] in
            // What waits for a paused database has been given up when that goes on, and takes effect all the same.
            if database.isPaused { giveUp() }
            database.whenRunning { [self] in
                if timeline != database.timeline {
                    // Its connection is gone.
                    return executor.after(way, process) { exchange.end(.failure(.unavailable)) }
                }
                Task { [self] in
                    let result: Result<Value, StoreError>
                    do throws(StoreError) {
                        result = .success(try await body(database))
                    } catch {
                        result = .failure(error)
                    }
                    if case .success(let value) = result {
                        exchange.isDone = true
                        // The word of a commit is the sender's to send, who may not live to do it.
                        if !process.isDead { done(value) }
                    }
                    var isLost = isCutFrom
                    if case .answerLost = fate { isLost = true }
                    if case .late = fate { isLost = true }
                    if isLost { return giveUp() }
                    executor.after(world.faults.chance.span(.microseconds(100), .milliseconds(2)), process) {
                        exchange.end(result)
                    }
                }
            }
        }
    }

    /// Tells whether a new connection leads to another history of commits.
    private func compareLineage() {
        guard isUp, timeline != database.timeline else { return }
        timeline = database.timeline
        notify?(.rolledBack)
    }

    private func fate(_ isCommit: Bool) -> Fate {
        if database.isDown { return .refused }
        if isCutTo { return world.faults.chance.happens(0.5) ? .requestLost : .refused }
        guard world.faults.strikes(.statement) else { return .passes }
        switch world.faults.chance.below(4) {
        case 0: return .requestLost
        case 1: return .answerLost
        case 2: return .refused
        default: return isCommit ? .late(world.faults.chance.span(.seconds(1), .seconds(15))) : .answerLost
        }
    }

    private static func name(_ fate: Fate) -> String {
        if case .late = fate { return "takes effect late" }
        return text(fate)
    }

    private static func text(_ fate: Fate) -> String {
        switch fate {
        case .passes: "passes"
        case .refused: "is refused"
        case .requestLost: "does not arrive"
        case .answerLost: "is done and its answer lost"
        case .late(let delay): "takes effect \(Double(delay / 1_000_000) / 1000) s late"
        }
    }

    // MARK: News

    func watch(_ notify: @escaping @Sendable (StoreNotification) -> Void) {
        self.notify = notify
        connect()
    }

    private func connect() {
        executor.after(world.faults.chance.span(.milliseconds(1), .milliseconds(5))) { [self] in
            if process.isDead || isClosed { return }
            guard isUp else {
                let pause = world.faults.chance.span(.milliseconds(100), Self.longestPause)
                return executor.after(pause) { self.connect() }
            }
            connection += 1
            isListening = true
            stuck = []
            compareLineage()
            deliver(.following)
            lookWhetherAlive(connection)
        }
    }

    private func lookWhetherAlive(_ number: Int) {
        executor.after(Self.aliveInterval.nanoseconds) { [self] in
            if process.isDead || isClosed || number != connection || !isListening { return }
            if isUp {
                deliver(.alive)
                return lookWhetherAlive(number)
            }
            // No answer comes to the question whether it is alive.
            executor.after(Self.aliveLimit.nanoseconds) { [self] in
                if process.isDead || isClosed || number != connection || !isListening { return }
                if isUp {
                    deliver(.alive)
                    return lookWhetherAlive(number)
                }
                loseConnections()
            }
        }
    }

    /// The connection that news come by is gone, with what was on its way.
    func loseConnections() {
        guard isListening else { return }
        isListening = false
        connection += 1
        stuck = []
        let notify = notify
        executor.at(max(lastArrival, executor.now), process) { notify?(.lost) }
        connect()
    }

    /// Sends news.
    func tell(_ news: StoreNotification) {
        if isListening, !isClosed, !process.isDead { deliver(news) }
    }

    private func deliver(_ news: StoreNotification) {
        if isCutFrom {
            stuck.append(news)
            return
        }
        let isSlow = world.faults.chance.happens(0.01)
        let way = world.faults.chance.span(.microseconds(200), isSlow ? .milliseconds(300) : .milliseconds(3))
        lastArrival = max(lastArrival, executor.now + way)
        let (number, notify) = (connection, notify)
        executor.at(lastArrival, process) { [self] in
            if number == connection { notify?(news) }
        }
    }

    // MARK: The store

    var revalidateAfter: Duration? { .seconds(5) }

    func read(_ id: RecordID) async throws(StoreError) -> StoredRecord? {
        try await call("a read", about: id) { database throws(StoreError) in try await database.records.read(id) }
    }

    func read(_ id: RecordID, with others: [RecordID]) async throws(StoreError) -> (
        record: StoredRecord, versions: [Int64?]
    )? {
        try await call("a read", about: id) { database throws(StoreError) in
            try await database.records.read(id, with: others)
        }
    }

    func find(_ kind: RecordKind, lookup: [UInt8]) async throws(StoreError) -> StoredRecord? {
        try await call("a look-up") { database throws(StoreError) in
            try await database.records.find(kind, lookup: lookup)
        }
    }

    func versions(of ids: [RecordID]) async throws(StoreError) -> [Int64?] {
        try await call("a question for versions") { database throws(StoreError) in
            try await database.records.versions(of: ids)
        }
    }

    func list(
        _ kind: RecordKind, tenant: TenantName?, after: RecordID?, limit: Int
    ) async throws(StoreError) -> [StoredRecord] {
        try await call("a list") { database throws(StoreError) in
            try await database.records.list(kind, tenant: tenant, after: after, limit: limit)
        }
    }

    func commit(_ changes: [RecordChange]) async throws(StoreError) {
        let database = database
        let record = changes.lazy.compactMap(\.record).first { $0.kind == .credentials }
        let carriedOut = world.broken(changes)
        try await call(isCommit: true, "a commit", about: record) { [self] database throws(StoreError) in
            try await database.commit(carriedOut, asked: changes, by: self)
        } then: {
            database.tell(changes)
        }
    }

    func lapsed(_ kind: RecordKind, limit: Int) async throws(StoreError) -> [LapsedLease] {
        try await call("a look at lapsed leases", isAbandoned: true) { database throws(StoreError) in
            try await database.records.lapsed(kind, limit: limit)
        }
    }

    func removeExpired(before now: Timestamp, limit: Int) async throws(StoreError) -> Int {
        try await call("a removal of expired records") { database throws(StoreError) in
            try await database.removeExpired(before: now, limit: limit)
        }
    }

    func due(_ kind: RecordKind, before now: Timestamp, limit: Int) async throws(StoreError) -> [StoredRecord] {
        try await call("a look at due records") { database throws(StoreError) in
            try await database.records.due(kind, before: now, limit: limit)
        }
    }

    func nextDue(_ kind: RecordKind) async throws(StoreError) -> Timestamp? {
        try await call("a question for the next due mark") { database throws(StoreError) in
            try await database.records.nextDue(kind)
        }
    }

    func countDue(
        _ kind: RecordKind, tenant: TenantName, after now: Timestamp, limit: Int
    ) async throws(StoreError) -> Int {
        try await call("a count of due records") { database throws(StoreError) in
            try await database.records.countDue(kind, tenant: tenant, after: now, limit: limit)
        }
    }

    func entries(
        after sequence: Int64, tenant: TenantName?, limit: Int
    ) async throws(StoreError) -> [PlacedLogEntry] {
        try await call("a read of the log") { database throws(StoreError) in
            try await database.records.entries(after: sequence, tenant: tenant, limit: limit)
        }
    }

    func contains(_ entry: StoredLogEntry) async throws(StoreError) -> Bool {
        try await call("a search of the log") { database throws(StoreError) in
            try await database.records.contains(entry)
        }
    }

    func logBounds() async throws(StoreError) -> LogBounds {
        try await call("a look at the log") { database throws(StoreError) in try await database.records.logBounds() }
    }

    func reseal(_ changes: [Reseal]) async throws(StoreError) -> Int {
        try await call("a reseal") { database throws(StoreError) in try await database.records.reseal(changes) }
    }

    func trimLog(before time: Timestamp, keeping count: Int, limit: Int) async throws(StoreError) -> Int {
        try await call("a trim of the log") { database throws(StoreError) in
            try await database.trimLog(before: time, keeping: count, limit: limit)
        }
    }

    func auditChains(
        _ order: AuditOrder, since: Timestamp?, after place: AuditPlace?, limit: Int
    ) async throws(StoreError) -> AuditPage {
        try await call("a look at the audit log") { database throws(StoreError) in
            try await database.records.auditChains(order, since: since, after: place, limit: limit)
        }
    }

    func auditBlocks(of chain: String, after first: Int64, limit: Int) async throws(StoreError) -> [AuditBlock] {
        try await call("a read of the audit log") { database throws(StoreError) in
            try await database.records.auditBlocks(of: chain, after: first, limit: limit)
        }
    }

    func removeAuditChain(_ chain: String) async throws(StoreError) {
        try await call("a removal from the audit log") { database throws(StoreError) in
            try await database.records.removeAuditChain(chain)
        }
    }

    func clock() async throws(StoreError) -> Timestamp? {
        let executor = executor
        return try await call("a question for the time") { _ throws(StoreError) in
            SimulatedTime.time(at: executor.now)
        }
    }

    func lineage() async throws(StoreError) -> StoreLineage? {
        try await call("a question for the lineage", isAbandoned: true) { database throws(StoreError) in
            StoreLineage(system: 1, timeline: database.timeline, position: 0)
        }
    }

    func check() async throws(StoreError) {
        try await call("a check") { database throws(StoreError) in try await database.records.check() }
    }

    func close() async { isClosed = true }
}

extension RecordChange {
    /// What it changes; nil for an entry of the log and a condition.
    fileprivate var record: RecordID? {
        switch self {
        case .insert(let record), .replace(let record, _, _): record.id
        case .remove(let id, _), .settleDue(let id, _, _, _), .claim(let id, _, _), .release(let id, _, _, _): id
        case .require, .removeAll, .append, .audit: nil
        }
    }
}
