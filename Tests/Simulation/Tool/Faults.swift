import Reactor

/// What goes wrong in a world, and when: drawn from its seed.
///
/// Unchecked: everything of a world runs on one thread.
final class Faults: @unchecked Sendable {
    enum Episode: String, CaseIterable {
        case crash, stop, pause
        case cutTo = "cut-to"
        case cutFrom = "cut-from"
        case cut
        case cutFromProvider = "cut-from-provider"
        case databasePaused = "database-paused"
        case databaseDown = "database-down"
        case clockStep = "clock-step"
        case providerDown = "provider-down"
        case configuration
        case journalFull = "journal-full"
        /// The database refuses commits for a reason of its operator's, such as a missing privilege.
        case commitsRefused = "commits-refused"
        /// All processes are killed, and started one after the other.
        case staggeredStart = "staggered-start"
        case goBack = "go-back"
    }

    /// What can happen to a single message.
    enum Message: String, CaseIterable {
        case statement, call
    }

    private unowned let world: World
    /// The world's draws but the order of jobs.
    var chance: Chance
    private let kinds: [Episode]
    private let interval: Duration
    private let probabilities: [Message: Double]
    private(set) var isProviderDown = false
    private(set) var isOver = false
    private(set) var counts: [Episode: Int] = [:]
    /// What became of single messages.
    private(set) var messages: [String: Int] = [:]

    init(_ world: World, _ chance: Chance, _ options: Options) {
        self.world = world
        self.chance = chance
        kinds = Episode.allCases.filter { episode in
            options.faults.map { $0.contains(episode.rawValue) } ?? (episode != .goBack)
        }
        interval = self.chance.pick([.seconds(2), .seconds(4), .seconds(8), .seconds(15)])
        func allows(_ message: Message) -> Bool { options.faults?.contains(message.rawValue) ?? true }
        probabilities = [
            .statement: allows(.statement) ? self.chance.pick([0, 0.0002, 0.001]) : 0,
            .call: allows(.call) ? self.chance.pick([0.01, 0.05, 0.1]) : 0,
        ]
    }

    func strikes(_ message: Message) -> Bool {
        !isOver && chance.happens(probabilities[message] ?? 0)
    }

    func count(_ message: String, _ fate: String?) {
        if let fate { messages["\(message) \(fate)", default: 0] += 1 }
    }

    func begin() { if !kinds.isEmpty { later() } }

    private func later() {
        world.executor.after(chance.span(.milliseconds(100), interval * 2)) { [self] in
            if isOver { return }
            strike(chance.pick(kinds))
            later()
        }
    }

    /// From now on nothing goes wrong, and what did is mended.
    func end() {
        isOver = true
        world.note { "the faults end" }
        isProviderDown = false
        world.database.setPaused(false)
        world.database.setDown(false)
        world.database.refusal = nil
        for replica in world.replicas {
            replica.goOn()
            replica.cut(to: false, from: false)
            replica.isCutFromProvider = false
            replica.isJournalFull = false
            replica.clockError = 0
            if replica.process.isDead { replica.start() }
        }
        world.updateAbility()
    }

    /// Does `mend` after a while, unless the faults are over by then, when everything is mended.
    private func mend(_ shortest: Duration, _ longest: Duration, _ mend: @escaping () -> Void) {
        world.executor.after(chance.span(shortest, longest)) { [self] in if !isOver { mend() } }
    }

    private func strike(_ episode: Episode) {
        counts[episode, default: 0] += 1
        let replica = chance.pick(world.replicas)
        world.executor.note(Int64(replica.index))
        switch episode {
        case .crash:
            if replica.process.isDead { return }
            replica.crash()
            mend(.milliseconds(200), .seconds(15)) { if replica.process.isDead { replica.start() } }
        case .stop:
            if !replica.isServing { return }
            replica.stop { [self] in
                world.executor.after(chance.span(.milliseconds(200), .seconds(2))) {
                    if replica.process.isDead { replica.start() }
                }
            }
        case .pause:
            if replica.process.isDead || replica.process.isPaused { return }
            replica.pause()
            mend(.milliseconds(500), .seconds(25)) { replica.goOn() }
        case .cutTo, .cutFrom, .cut:
            replica.cut(to: episode != .cutFrom, from: episode != .cutTo)
            mend(.milliseconds(500), .seconds(20)) { replica.cut(to: false, from: false) }
        case .cutFromProvider:
            world.note { "\(replica.process.name) is cut off from the provider" }
            replica.isCutFromProvider = true
            mend(.milliseconds(500), .seconds(20)) { replica.isCutFromProvider = false }
        case .databasePaused:
            if world.database.isPaused { return }
            world.note { "the database stands still" }
            world.database.setPaused(true)
            world.updateAbility()
            mend(.milliseconds(500), .seconds(12)) { [self] in
                world.note { "the database goes on" }
                world.database.setPaused(false)
                world.updateAbility()
            }
        case .databaseDown:
            if world.database.isDown { return }
            world.note { "the database is down" }
            world.database.setDown(true)
            world.updateAbility()
            mend(.milliseconds(500), .seconds(12)) { [self] in
                world.note { "the database is up" }
                world.database.setDown(false)
                world.updateAbility()
            }
        case .clockStep:
            replica.clockError = chance.span(.seconds(-120), .seconds(120))
            world.note { "the clock of \(replica.process.name) is wrong by \(Judge.text(replica.clockError))" }
        case .providerDown:
            world.note { "the provider is down" }
            isProviderDown = true
            world.updateAbility()
            mend(.milliseconds(500), .seconds(10)) { [self] in
                world.note { "the provider is up" }
                isProviderDown = false
                world.updateAbility()
            }
        case .configuration: world.configureAnew()
        case .journalFull:
            replica.isJournalFull = true
            mend(.seconds(2), .seconds(20)) { replica.isJournalFull = false }
        case .commitsRefused:
            if world.database.refusal != nil { return }
            let refusal = chance.pick(SimulatedDatabase.Refusal.allCases)
            world.note { "the database refuses \(refusal.rawValue)" }
            world.database.refusal = refusal
            world.updateAbility()
            mend(.milliseconds(500), .seconds(20)) { [self] in
                world.note { "the database refuses nothing" }
                world.database.refusal = nil
                world.updateAbility()
            }
        case .staggeredStart: startAnew()
        case .goBack: goBack()
        }
    }

    private func goBack() { world.goBack(by: chance.span(.milliseconds(50), .seconds(2))) }

    /// Kills all processes; where the database may go back, it does so in half of the cases before any of them starts.
    private func startAnew() {
        for replica in world.replicas where !replica.process.isDead { replica.crash() }
        if kinds.contains(.goBack), chance.happens(0.5) { goBack() }
        for replica in world.replicas {
            mend(.milliseconds(200), .seconds(15)) { if replica.process.isDead { replica.start() } }
        }
    }
}
