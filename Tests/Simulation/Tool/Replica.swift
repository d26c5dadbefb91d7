import BrokerCore
import CredentialStore
import Cryptography
import ExternalText
import HTTPSClient
import JSON
import OAuth
import Reactor

/// A place where one process of the broker runs after the other, with the disk of its journal and the clock of its machine.
///
/// Unchecked: everything of a world runs on one thread.
final class Replica: @unchecked Sendable {
    static let masterKeys = "k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
    private static let clockInterval: Duration = .seconds(5)
    private static let patience: Duration = .seconds(60)

    let index: Int
    private let world: World
    private let journal: MemoryRecordStore?
    private(set) var process: SimulatedProcess
    private(set) var link: DatabaseLink?
    /// Nil until it serves.
    private(set) var broker: CredentialsBroker?
    private(set) var vault: Vault?
    var isCutFromProvider = false { didSet { update() } }
    var isJournalFull = false
    /// By how much the machine's wall clock is wrong.
    var clockError: Int64 = 0
    private var starts = 0
    /// When the process was told to go on last.
    private(set) var lastResumption: Int64 = -1
    /// Objects of dead processes: what they refer to may not be let go of in an orderly way.
    private var dead: [AnyObject] = []

    /// In which it could have renewed something, and in which it reached the database.
    private var ability = Spans()
    private var reach = Spans()
    /// While statements of the process hung: by the user that they were about, nil for all.
    private var disturbances: [(user: Int?, from: Int64, to: Int64)] = []

    init(_ world: World, _ index: Int, hasJournal: Bool) {
        self.world = world
        self.index = index
        journal = hasJournal ? MemoryRecordStore { MonotonicInstant(nanoseconds: 0) } : nil
        process = SimulatedProcess("replica \(index + 1)", number: index + 1)
    }

    var isServing: Bool { broker != nil && !process.isDead }

    // MARK: Life

    func start() {
        starts += 1
        process = SimulatedProcess("replica \(index + 1)/\(starts)", number: index + 1)
        let link = DatabaseLink(world, process)
        if let before = self.link { link.cut(to: before.isCutTo, from: before.isCutFrom) }
        self.link = link
        world.database.add(link)
        world.note { "\(self.process.name) starts" }
        let process = process
        world.executor.run(as: process) {
            Task { [self] in
                while await !serve(link, process) {
                    try? await SimulatedTime(world.executor, process, origin: 0) { 0 }.sleep(for: .seconds(1))
                }
            }
        }
    }

    private func serve(_ link: DatabaseLink, _ process: SimulatedProcess) async -> Bool {
        guard let keyring = try? Keyring(parsing: Self.masterKeys) else { preconditionFailure("the key is not usable") }
        let vault = Vault(store: link, keyring: keyring)
        guard (try? await vault.unlock()) != nil else { return false }
        let machine = SimulatedTime(
            world.executor, process, origin: 1_000_000_000 * Int64(1 + index)
        ) { [weak self] in self?.clockError ?? 0 }
        let time = SharedTime(machine)
        let world = world
        let name = process.name
        let log = Log(threshold: world.isRecording ? .debug : .error, time: machine) { line in
            world.note(name, logs: line)
        }
        guard (try? await time.begin(with: vault, within: Self.patience, log)) != nil else { return false }
        var kept: Journal?
        if let journal {
            let disk = JournalDisk(world, process, journal) { [weak self] in self?.isJournalFull ?? false }
            kept = Journal(vault: Vault(store: disk, keyring: keyring))
        }
        var settings = CredentialsBroker.Settings()
        settings.providerTargets = .everything
        settings.providerTimeout = ProviderLink.timeout
        let broker = CredentialsBroker(
            settings: settings, vault: vault, journal: kept, transport: ProviderLink(world, self, process), time: time,
            log: log)
        do throws(BrokerError) {
            try await broker.takeUpJournal()
        } catch {
            return false
        }
        broker.start()
        Task {
            while (try? await machine.sleep(for: Self.clockInterval)) != nil { _ = try? await time.adjust(by: vault) }
        }
        (self.broker, self.vault) = (broker, vault)
        world.note { "\(name) serves" }
        update()
        world.replicaServes(self)
        return true
    }

    /// As a kill does, at whatever its tasks are doing.
    func crash() {
        world.note { "\(self.process.name) is killed" }
        leave()
    }

    /// As a signal to end does.
    func stop(then done: @escaping @Sendable () -> Void) {
        guard let broker, !process.isDead else { return done() }
        world.note { "\(self.process.name) is told to end" }
        let process = process
        self.broker = nil
        update()
        broker.beginDraining()
        let (world, executor) = (world, world.executor)
        world.executor.run(as: process) {
            Task { [self] in
                await broker.finish(within: .seconds(25))
                world.note { "\(process.name) ends" }
                executor.after(0) { [self] in
                    if self.process === process, !process.isDead {
                        dead.append(broker)
                        leave()
                    }
                    done()
                }
            }
        }
    }

    private func leave() {
        process.die()
        if let link {
            world.database.remove(link)
            dead.append(link)
        }
        if let broker { dead.append(broker) }
        broker = nil
        update()
        world.processLeft(process)
    }

    func pause() {
        world.note { "\(self.process.name) stands still" }
        process.pause()
        update()
    }

    func goOn() {
        if process.isDead || !process.isPaused { return }
        world.note { "\(self.process.name) goes on" }
        lastResumption = world.executor.now
        world.executor.resume(process)
        update()
    }

    /// The way to the database.
    func cut(to: Bool, from: Bool) {
        world.note { "\(self.process.name): to the database \(to ? "cut" : "open"), from it \(from ? "cut" : "open")" }
        link?.cut(to: to, from: from)
        update()
    }

    // MARK: What it could have done

    /// Whether it reaches the database, which takes what it stores.
    private var reaches: Bool {
        !process.isDead && !process.isPaused && link?.isUp == true && vault != nil && world.database.refusal == nil
    }

    /// Whether it could renew something now, as far as the world lets it.
    private var isAble: Bool {
        isServing && reaches && !isCutFromProvider && !world.faults.isProviderDown
    }

    /// What decides it has changed.
    func update() {
        ability.note(isAble, at: world.executor.now)
        reach.note(reaches, at: world.executor.now)
    }

    func disturb(_ user: Int?, until end: Int64) {
        disturbances.append((user, world.executor.now, end))
        if disturbances.count > 400 { disturbances.removeFirst(200) }
    }

    /// The longest span within the two times in which nothing kept it from renewing a user's token.
    /// - Parameter calls: calls about that user. Those of another process kept it from that, too.
    func longestAbility(
        for user: Int, from: Int64, to: Int64, without calls: [SimulatedProvider.VainCall]
    ) -> (from: Int64, to: Int64) {
        let others = calls.filter { $0.process !== process }.map { (from: $0.from, to: $0.to) }
        return ability.longest(from: from, to: to, without: hung(user) + others)
    }

    private func hung(_ user: Int) -> [(from: Int64, to: Int64)] {
        disturbances.filter { $0.user == nil || $0.user == user }.map { (from: $0.from, to: $0.to) }
    }

    /// The longest span within the two times in which it reached the database.
    func longestReach(from: Int64, to: Int64) -> (from: Int64, to: Int64) {
        reach.longest(from: from, to: to, without: [])
    }

    /// The same, without the time in which statements about a user hung.
    func longestReach(for user: Int, from: Int64, to: Int64) -> (from: Int64, to: Int64) {
        reach.longest(from: from, to: to, without: hung(user))
    }

    /// Spans of time in which something held.
    private struct Spans {
        private var since: Int64?
        private var spans: [(from: Int64, to: Int64)] = []

        mutating func note(_ holds: Bool, at now: Int64) {
            if holds {
                since = since ?? now
            } else if let since {
                spans.append((since, now))
                if spans.count > 100 { spans.removeFirst(50) }
                self.since = nil
            }
        }

        func longest(
            from: Int64, to: Int64, without gaps: [(from: Int64, to: Int64)]
        ) -> (from: Int64, to: Int64) {
            var parts = spans
            if let since { parts.append((since, to)) }
            for gap in gaps {
                parts = parts.flatMap { part in
                    if gap.to <= part.from || gap.from >= part.to { return [part] }
                    return [(part.from, min(part.to, gap.from)), (max(part.from, gap.to), part.to)]
                }
            }
            var best = (from: from, to: from)
            for part in parts {
                let part = (from: max(part.from, from), to: min(part.to, to))
                if part.to - part.from > best.to - best.from { best = part }
            }
            return best
        }
    }

    /// Whether the journal has one of these refresh tokens.
    func journalHolds(_ tokens: [String], of id: CredentialsID) async -> Bool {
        guard let journal, let keyring = try? Keyring(parsing: Self.masterKeys) else { return false }
        let place = RecordID(.unpublished, id.tenant, key: id.storageKey.description)
        guard let entry = try? await Vault(store: journal, keyring: keyring).read(place),
            let text = (try? JSONValue(parsing: entry.content.revealedBytes))?["record"]?.string?.text,
            let bytes = Base64URL.decode(text), let held = CredentialRecord(decoding: bytes)?.held
        else { return false }
        return tokens.contains { $0 == held.refreshToken?.revealedText }
    }
}
