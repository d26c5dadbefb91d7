internal import BrokerCore
internal import CredentialStore
internal import Cryptography
internal import HTTPSClient
internal import OAuth
internal import Reactor

/// A place where one process of the broker runs after the other, with the disk of its journal and the clock of its machine.
///
/// Unchecked: everything of a world runs on one thread.
final class Replica: @unchecked Sendable {
    static let masterKeys = "k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
    private static let clockInterval: Duration = .seconds(5)

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

    // Spans of time in which it could have renewed something.
    private var ableSince: Int64?
    private var ableSpans: [(from: Int64, to: Int64)] = []
    private var disturbedUntil: Int64 = 0

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
        _ = try? await time.adjust(by: vault)
        var kept: Journal?
        if let journal {
            let disk = JournalDisk(world, process, journal) { [weak self] in self?.isJournalFull ?? false }
            kept = Journal(vault: Vault(store: disk, keyring: keyring))
        }
        let world = world
        let name = process.name
        let log = Log(threshold: world.isRecording ? .debug : .error, time: machine) { line in
            world.note(name, logs: line)
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

    /// Whether it could renew something now, as far as the world lets it.
    private var isAble: Bool {
        isServing && !process.isPaused && link?.isUp == true && !isCutFromProvider && !world.faults.isProviderDown
            && disturbedUntil <= world.executor.now
    }

    /// What decides it has changed.
    func update() {
        let now = world.executor.now
        if isAble {
            if ableSince == nil { ableSince = now }
            return
        }
        guard let since = ableSince else { return }
        ableSince = nil
        ableSpans.append((since, now))
        if ableSpans.count > 100 { ableSpans.removeFirst(50) }
    }

    func disturb(for span: Int64) {
        disturbedUntil = max(disturbedUntil, world.executor.now + span)
        update()
        world.executor.after(span) { self.update() }
    }

    /// The longest span within the two times in which nothing kept it from renewing.
    func longestAbility(from: Int64, to: Int64) -> (from: Int64, to: Int64) {
        var best: (from: Int64, to: Int64) = (from, from)
        var spans = ableSpans
        if let ableSince { spans.append((ableSince, to)) }
        for span in spans {
            let part = (from: max(span.from, from), to: min(span.to, to))
            if part.to - part.from > best.to - best.from { best = part }
        }
        return best
    }

    /// Whether the journal holds something for the credentials that is not stored yet.
    func journalHolds(_ id: CredentialsID) async -> Bool {
        guard let journal else { return false }
        let record = try? await journal.read(
            RecordID(.unpublished, id.tenant, key: id.storageKey.description))
        return record != nil
    }
}
