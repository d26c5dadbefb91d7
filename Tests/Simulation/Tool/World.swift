import BrokerCore
import CSimulation
import CredentialStore
import Cryptography
import ExternalText
import OAuth
import Reactor

/// How a store can be broken.
enum Break: String, CaseIterable {
    /// It lets any number of holders have a lease at once.
    case leases
    /// It leaves out the events of some commits.
    case events
}

/// Everything that belongs to one seed.
///
/// Unchecked: everything of a world runs on one thread.
final class World: @unchecked Sendable {
    /// A call that hangs may take 10 s, and beyond the grace a holder is waited for for 30 s.
    private static let recoveryLimit: Duration = .seconds(55)

    let seed: UInt64
    let options: Options
    let grace: Duration
    let executor: Executor
    let isRecording: Bool
    private(set) var timeline: [(time: Int64, user: Int?, text: String)] = []
    // Made at the end of `init`, since they refer to the world.
    private var parts: (faults: Faults, judge: Judge, provider: SimulatedProvider, database: SimulatedDatabase)!
    var faults: Faults { parts.faults }
    var judge: Judge { parts.judge }
    var provider: SimulatedProvider { parts.provider }
    var database: SimulatedDatabase { parts.database }
    private(set) var replicas: [Replica] = []
    private(set) var users: [User] = []
    /// Whether faults have ended, and no user logs in or out any more.
    private(set) var isQuiet = false
    var calls = 0
    var failures: [String: Int] = [:]
    let pauseBetweenCalls: Duration
    private var isReady = false
    private var usersOfRecords: [RecordID: Int] = [:]
    private var usersOfDigests: [String: Int] = [:]
    private var usersOfRenewals: [String: Int] = [:]
    /// The name in an entry of the timeline that is about an unknown user.
    static let nobody = -1
    private let tenants: [TenantName]
    private var configurations = 0
    private var stays: [Int64] = []
    /// To when the database has gone back, and when.
    private(set) var timesBack: [(from: Int64, to: Int64)] = []
    private(set) var failure: String?
    var hasFailed: Bool { failure != nil || !judge.violations.isEmpty }
    private(set) var slowestRecovery: Int64 = 0
    private(set) var setting = ""

    init(seed: UInt64, _ options: Options, records isRecording: Bool = false) {
        self.seed = seed
        self.options = options
        self.isRecording = isRecording
        pauseBetweenCalls = options.pause
        csimulation_seed(seed)
        executor = Executor(seed: seed ^ 0x5555_5555_5555_5555)
        var chance = Chance(seed: seed)
        let count = options.replicas ?? chance.pick([1, 2, 3, 3])
        grace = options.grace ?? chance.pick([.zero, .seconds(10), .seconds(60)])
        let successor = chance.pick([SimulatedProvider.Successor.same, .another])
        let lifetime = chance.pick([Int64(20), 75, 120, 600, 3600])
        tenants = (1...2).compactMap { TenantName("t\($0)") }
        let journals = (0..<count).map { _ in chance.happens(0.7) }
        let goesBack = options.faults?.contains(Faults.Episode.goBack.rawValue) ?? true
        setting =
            "\(count) replicas, grace \(grace.milliseconds / 1000) s, \(successor.rawValue) successor, tokens of \(lifetime) s, "
            + "journals \(journals.map { $0 ? "yes" : "no" }.joined(separator: "/"))"
        stays = (0..<options.users).map { _ in chance.span(.seconds(20), .seconds(300)) }
        let judge = Judge(self)
        parts = (
            Faults(self, chance, options), judge,
            SimulatedProvider(
                executor, judge: judge, grace: grace, successor: successor, lifetimeSeconds: lifetime),
            SimulatedDatabase(executor, judge: judge, goesBack: goesBack)
        )
        replicas = journals.enumerated().map { Replica(self, $0.offset, hasJournal: $0.element) }
        for index in 0..<options.users {
            guard let storageKey = StorageKey("u\(index)") else { preconditionFailure("no storage key") }
            let id = CredentialsID(tenant: tenants[index % tenants.count], storageKey: storageKey)
            usersOfRecords[RecordID(.credentials, id.tenant, key: id.storageKey.description)] = index
            usersOfDigests[Hex.encode(Array(SHA256.digest(Array("u\(index)".utf8)).prefix(6)))] = index
            users.append(User(self, index, id, observers: 2))
        }
    }

    // MARK: Telling

    func note(_ user: Int? = nil, _ text: () -> String) {
        if isRecording { timeline.append((executor.now, user, text())) }
    }

    func note(_ record: RecordID, _ text: () -> String) {
        if isRecording { timeline.append((executor.now, usersOfRecords[record] ?? Self.nobody, text())) }
    }

    /// A line of a log; where it names credentials, it is their user's.
    func note(_ name: String, logs line: [UInt8]) {
        let text = String(decoding: line, as: UTF8.self)
        let user =
            usersOfDigests.first { text.contains($0.key) }?.value
            ?? usersOfRenewals.first { text.contains($0.key) }?.value
        note(user ?? Self.nobody) { "\(name) logs \(text)" }
    }

    /// Shows whose the log's lines are that bear the name of a renewal.
    func note(renewal name: String, of record: RecordID) {
        if isRecording { usersOfRenewals[name] = usersOfRecords[record] }
    }

    func user(_ record: RecordID) -> Int? { usersOfRecords[record] }

    // MARK: Life

    func run() {
        executor.takeOver()
        for replica in replicas { replica.start() }
        do throws(Executor.Failure) {
            try executor.run(until: 5_000_000_000)
            for user in users { user.start() }
            // The first logins are undisturbed.
            try executor.run(until: 8_000_000_000)
            faults.begin()
            try executor.run(until: 8_000_000_000 + options.duration.nanoseconds) { !judge.violations.isEmpty }
            if judge.violations.isEmpty { try recover() }
        } catch {
            failure = "\(error)"
        }
    }

    private func recover() throws(Executor.Failure) {
        faults.end()
        isQuiet = true
        let end = executor.now
        let limit = end + Self.recoveryLimit.nanoseconds
        try executor.run(until: limit) { isRecovered(since: end) || !judge.violations.isEmpty }
        if !judge.violations.isEmpty { return }
        slowestRecovery = executor.now - end
        for user in users where !isRecovered(user, since: end) {
            judge.violated(
                .notRecovered, user.index, "\(Self.recoveryLimit) after the last fault a user's token is not renewed")
        }
        // What is under way comes to its end, and leases of the dead run out.
        try executor.run(until: executor.now + 25_000_000_000) { !judge.violations.isEmpty }
        if !judge.violations.isEmpty { return }
        // No caller asks any more, and running renewals are stored.
        isClosed = true
        try executor.run(until: executor.now + 3_000_000_000)
        executor.run(as: executor.world) {
            Task { [self] in
                await judge.end()
                isJudged = true
            }
        }
        try executor.run(until: executor.now + 1_000_000) { isJudged }
    }

    private var isJudged = false
    /// Whether no caller asks any more.
    private(set) var isClosed = false

    private func isRecovered(since end: Int64) -> Bool { users.allSatisfy { isRecovered($0, since: end) } }

    private func isRecovered(_ user: User, since end: Int64) -> Bool {
        switch user.standing {
        case .loggedIn: user.observers.allSatisfy { $0.lastRenewal >= end }
        case .loggedOut, .lost: true
        case .unknown: false
        }
    }

    func replicaServes(_ replica: Replica) {
        if isReady { return }
        isReady = true
        configureAnew()
    }

    func processLeft(_ process: SimulatedProcess) {
        for user in users { user.processLeft(process) }
    }

    func anyServing() -> Replica? {
        let serving = replicas.filter(\.isServing)
        if serving.isEmpty || isClosed { return nil }
        return faults.chance.pick(serving)
    }

    func updateAbility() {
        for replica in replicas { replica.update() }
    }

    /// How long a user stays logged in.
    func users(leaveAfter index: Int) -> Int64 { stays[index] }

    /// What a broken store does in place of the changes.
    func broken(_ changes: [RecordChange]) -> [RecordChange] {
        var changes = changes
        if options.breaks.contains(.leases) {
            changes = changes.compactMap { change in
                switch change {
                case .claim, .release: nil
                case .replace(let record, let version, _): .replace(record, version: version)
                default: change
                }
            }
        }
        if options.breaks.contains(.events), faults.chance.happens(0.01) {
            changes.removeAll { if case .append = $0 { true } else { false } }
        }
        return changes
    }

    /// Lets go of most of what a world that is over has in memory. Not of what its replicas have: tasks that never end refer
    /// to that.
    func clear() {
        database.clear()
        judge.clear()
        executor.clear()
        timeline = []
    }

    // MARK: What operators do

    /// Configures all tenants anew, with another set of scopes than before.
    func configureAnew() {
        configurations += 1
        guard let replica = anyServing(), let broker = replica.broker,
            let scopes = ScopeSet(configurations.isMultiple(of: 2) ? ["r_usr", "w_usr"] : ["r_usr"])
        else { return }
        note { "\(replica.process.name) is told that the scopes are \(scopes)" }
        let (tenants, grace) = (tenants, grace)
        executor.run(as: replica.process) {
            Task {
                for (name, preset) in zip(tenants, [ProviderPreset.shipped("oidc"), .tidal]) {
                    var configuration = TenantConfiguration(
                        preset: preset,
                        client: ClientConfiguration(
                            clientID: "c1", clientSecret: nil, clientUniqueKey: nil, scopes: scopes))
                    configuration.reuseGrace = grace
                    configuration.endpoints.authorization = "https://provider.example/authorize"
                    configuration.endpoints.token = "https://provider.example/token"
                    // An operator whose call fails tries again.
                    for _ in 0..<3 {
                        if (try? await broker.tenants.put(name, configuration)) != nil { break }
                        guard (try? await broker.time.sleep(for: .seconds(1))) != nil else { return }
                    }
                }
            }
        }
    }

    /// The database fails over to one that had not received the last commits.
    func goBack(by span: Int64) {
        let time = executor.now - span
        executor.run(as: executor.world) {
            Task { [self] in
                guard let count = try? await database.goBack(to: time) else { return }
                timesBack.append((time, executor.now))
                note { "the database has gone back by \(Judge.text(span)): \(count) commits are gone" }
                var left: [RecordID: Int64] = [:]
                for tenant in tenants {
                    let records = try? await database.records.list(
                        .credentials, tenant: tenant, after: nil, limit: 10_000)
                    for record in records ?? [] { left[record.id] = record.version }
                }
                judge.wentBack(left)
            }
        }
    }
}
