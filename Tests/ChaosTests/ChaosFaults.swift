import BrokerTesting
import DevelopmentProvider
import HTTPCodec
import Reactor

/// The faults that happen at a moment: which, when, to whom, and how each is done.
struct ChaosFaults {
    let activity: ChaosActivity

    private var cluster: ChaosCluster { activity.cluster }
    private var records: ChaosRecords { cluster.records }
    private var provider: DevelopmentProvider { cluster.provider.provider }

    init(activity: ChaosActivity) {
        self.activity = activity
    }

    /// What is drawn for one fault, all of it at once: what comes of one must not change what is drawn for the next.
    private struct Draw {
        let kind: FaultKind
        let replica: Int
        let lot: Int
        /// Whether it is to hit refreshes under way, and how long after the first of them has reached the provider.
        let aim: Int?

        init(_ kind: FaultKind, _ replicas: Int, _ generator: inout SplitMix64) {
            self.kind = kind
            replica = Int.random(in: 0..<replicas, using: &generator)
            lot = Int.random(in: 0..<1000, using: &generator)
            let isAimed = Int.random(in: 0..<10, using: &generator) < 6
            let delay = Int.random(in: 0..<1000, using: &generator)
            aim = isAimed && !kind.scriptsProvider && kind != .listen ? delay : nil
        }

        /// Whether both can be done at one time.
        func fits(_ other: Draw) -> Bool {
            if kind == other.kind || replica == other.replica { return false }
            if kind.takesDatabase, other.kind.takesDatabase { return false }
            if kind.scriptsProvider, other.kind.scriptsProvider || other.aim != nil { return false }
            if other.kind.scriptsProvider, aim != nil { return false }
            if kind.restarts, other.kind.restarts { return false }
            if [kind, other.kind].contains(.failover), kind.changesConfiguration || other.kind.changesConfiguration {
                return false
            }
            // Nothing covers what is under way when a long outage begins, but a process that lives.
            return ![kind, other.kind].contains { $0 == .outage || $0 == .journal }
        }
    }

    func disturb(by kinds: [FaultKind], until end: MonotonicInstant) async throws {
        var generator = activity.generator(.faults)
        // Each kind comes once before any comes again.
        var stack: [FaultKind] = []
        while true {
            let pause = Int.random(in: 200...2500, using: &generator)
            if stack.isEmpty { stack = kinds.shuffled(using: &generator) }
            let first = Draw(stack.removeLast(), cluster.replicas.count, &generator)
            let other = kinds.randomElement(using: &generator) ?? first.kind
            let second = Draw(other, cluster.replicas.count, &generator)
            let isDouble = Int.random(in: 0..<5, using: &generator) == 0
            try await Task.sleep(for: .milliseconds(pause))
            guard MonotonicInstant.now < end else { return }
            var drawn = [first]
            if isDouble, first.fits(second) { drawn.append(second) }
            try await withThrowingTaskGroup(of: Void.self) { group in
                for draw in drawn { group.addTask { try await disturb(draw) } }
                try await group.waitForAll()
            }
            try await cluster.recover(from: rightNow(), drawn.map(\.kind))
            try await cluster.waitUntilReady(within: .seconds(60))
        }
    }

    private func disturb(_ draw: Draw) async throws {
        // Before what the fault is aimed at: it takes some seconds.
        if draw.kind == .failover { try await cluster.database.makeStandby() }
        if let delay = draw.aim {
            // The next refreshes stay under way for a while, in half of the cases with the work done.
            let wait = Duration.milliseconds(1200)
            provider.script(
                draw.lot % 2 == 0
                    ? Fault(.token, grant: .refreshToken, times: 6, answerDelay: wait)
                    : Fault(.token, grant: .refreshToken, times: 6, delay: wait))
            try await waitForRefresh(within: .seconds(3))
            try await Task.sleep(for: .milliseconds(delay))
        }
        switch draw.kind {
        case .kill, .term, .stop, .holder, .step, .masterkeys: try await disturbProcess(draw)
        case .postgres, .outage, .pause, .journal: try await disturbDatabase(draw)
        case .failover: try await failOver(draw)
        case .cut, .oneway, .late, .listen: try await disturbConnections(draw)
        case .provider, .link: try await disturbProvider(draw)
        case .scopes, .secrets: try await changeTenants(draw)
        case .answers, .clock, .logins: preconditionFailure("\(draw.kind) goes on all through a run")
        }
    }

    /// Returns when the next refresh has reached the provider, or when none has in that time.
    private func waitForRefresh(within time: Duration) async throws {
        let provider = provider
        let count = provider.counters.requests(.refreshToken) + 1
        try await withThrowingTaskGroup(of: Void.self) { group in
            group.addTask {
                do {
                    try await provider.waitForRequests(count, at: .token, grant: .refreshToken)
                } catch is CancellationError {
                    // The time was over first.
                }
            }
            group.addTask { try? await Task.sleep(for: time) }
            try await group.next()
            group.cancelAll()
            try await group.waitForAll()
        }
    }

    // MARK: Processes

    private func disturbProcess(_ draw: Draw) async throws {
        let (index, lot) = (draw.replica, draw.lot)
        let replica = cluster.replicas[index]
        switch draw.kind {
        case .kill:
            try await records.during(.kill, replica: index, "SIGKILL") {
                await replica.kill()
                try await replica.start()
            }
        case .term:
            try await records.during(.term, replica: index, "SIGTERM") {
                await replica.terminate()
                try await replica.start()
            }
        case .stop:
            // Longer than a lease, shorter than ten seconds.
            let milliseconds = 4200 + lot * 3
            try await records.during(.stop, replica: index, "SIGSTOP for \(milliseconds) ms") {
                await replica.pause()
                try await Task.sleep(for: .milliseconds(milliseconds))
                await replica.resume()
            }
        case .holder:
            try await loseHolder(replica, lot)
        case .step:
            guard let clock = replica.clock else { return }
            let seconds = [15, -15, 90, -90][lot % 4]
            try await records.during(.step, replica: index, "clock steps by \(seconds) s") {
                try clock.set(step: seconds)
                try await Task.sleep(for: .milliseconds(3000 + lot * 8))
                try clock.set(step: 0)
            }
        default:
            try await changeMasterKeys(lot)
        }
    }

    /// The answers to refreshes of this replica are lost after the work, and then it is killed.
    private func loseHolder(_ replica: ChaosReplica, _ lot: Int) async throws {
        provider.script(Fault(.token, times: 4, mode: lot % 2 == 0 ? .dropAfterWork : .answerAfterWork))
        let users = (0..<3).map { (lot + $0 * 7) % activity.settings.users }
        let cluster = cluster
        try await withThrowingTaskGroup(of: Void.self) { group in
            for user in users {
                group.addTask { await cluster.read(user, at: replica.index, isForced: true) }
            }
            try await waitForRefresh(within: .seconds(3))
            try await Task.sleep(for: .milliseconds(lot % 700))
            try await records.during(.holder, replica: replica.index, "SIGKILL after answers were lost") {
                await replica.kill()
                provider.removeFaults()
                try await replica.start()
            }
            try await group.waitForAll()
        }
    }

    /// As the operators' guide says: behind the others first, and in front once all replicas have it.
    private func changeMasterKeys(_ lot: Int) async throws {
        var generator = SplitMix64(seed: activity.settings.seed &+ UInt64(lot))
        cluster.changes.addMasterKey((0..<32).map { _ in UInt8.random(in: .min ... .max, using: &generator) })
        try await records.during(.masterkeys, "a new master key, one replica after the other") {
            for isLast in [false, true] {
                if isLast { cluster.changes.useMasterKey() }
                for replica in cluster.replicas {
                    await replica.set("MASTER_KEYS", cluster.changes.masterKeys)
                    await replica.terminate()
                    try await replica.start()
                }
            }
        }
    }

    // MARK: The database

    private func disturbDatabase(_ draw: Draw) async throws {
        let (postgres, lot) = (cluster.postgres, draw.lot)
        func stop(_ shutdown: PostgresServer.Shutdown, forMilliseconds time: Int) async throws {
            try await postgres.stop(shutdown)
            try await Task.sleep(for: .milliseconds(time))
            try await postgres.start()
        }
        switch draw.kind {
        case .postgres:
            let shutdown: PostgresServer.Shutdown = lot < 500 ? .fast : .immediate
            try await records.during(.postgres, "PostgreSQL restarted (\(shutdown.rawValue))") {
                try await stop(shutdown, forMilliseconds: lot)
            }
        case .pause:
            let milliseconds = 1000 + lot * 7
            try await records.during(.pause, "PostgreSQL stands still for \(milliseconds) ms") {
                try postgres.pause()
                defer { postgres.resume() }
                try await Task.sleep(for: .milliseconds(milliseconds))
            }
        case .outage:
            // No replica can keep a session whose answer is lost while the database is away for longer than the grace
            // period: answers are not lost in this time, and what was lost before is made good first.
            provider.disturbAtRandom(nil)
            try await Task.sleep(for: .seconds(4))
            provider.script(Fault(.token, times: 12, answerDelay: .milliseconds(800 + lot)))
            try await waitForRefresh(within: .seconds(5))
            let milliseconds = 11_000 + lot * 3
            try await records.during(.outage, "PostgreSQL away for \(milliseconds) ms") {
                try await stop(.fast, forMilliseconds: milliseconds)
            }
            provider.removeFaults()
            activity.disturbAnswers(lot + 1)
        default:
            let milliseconds = 1500 + lot * 2
            try await records.during(.journal, "journals full, PostgreSQL away for \(milliseconds) ms") {
                for replica in cluster.replicas { try await replica.fillDisk(true) }
                provider.script(Fault(.token, times: 12, answerDelay: .milliseconds(800)))
                try await waitForRefresh(within: .seconds(3))
                try await stop(.fast, forMilliseconds: milliseconds)
                provider.removeFaults()
                for replica in cluster.replicas { try await replica.fillDisk(false) }
            }
        }
    }

    /// The standby is cut off, users are refreshed at all replicas, the server is killed, and the standby takes its place.
    private func failOver(_ draw: Draw) async throws {
        let lag = 200 + draw.lot * 9 / 5
        let (cluster, database) = (cluster, cluster.database)
        let cutOff = rightNow()
        try await database.cutOffStandby()
        try await withThrowingTaskGroup(of: Void.self) { group in
            for number in 0..<9 {
                let user = (draw.lot + number * 7) % activity.settings.users
                group.addTask { await cluster.read(user, at: number % cluster.replicas.count, isForced: true) }
            }
            try await Task.sleep(for: .milliseconds(lag))
            try await records.during(.failover, "PostgreSQL fails over to a standby that is \(lag) ms behind") {
                let ended = try await database.failOver()
                let (versions, last) = try await database.contents()
                records.add(Failover(cutOff: cutOff, ended: ended, versions: versions, lastSequence: last))
                try await cluster.leadToDatabase()
            }
            try await group.waitForAll()
        }
    }

    // MARK: Connections to it

    private func disturbConnections(_ draw: Draw) async throws {
        let (index, lot) = (draw.replica, draw.lot)
        let (relay, listenRelay) = (cluster.relays[index], cluster.listenRelays[index])
        switch draw.kind {
        case .cut:
            try await records.during(.cut, replica: index, "database connections cut") {
                await relay.cutAll()
                await listenRelay.cutAll()
            }
        case .oneway:
            let mode: ChaosRelay.Mode = lot % 3 == 0 ? .loseRequests : .loseAnswers
            let milliseconds = 1000 + lot * 6
            try await records.during(
                .oneway, replica: index, "database connections one way (\(mode)) for \(milliseconds) ms"
            ) {
                await relay.set(mode)
                await listenRelay.set(mode)
                try await Task.sleep(for: .milliseconds(milliseconds))
                await relay.set(.forward)
                await listenRelay.set(.forward)
            }
        case .late:
            // A statement is given up after five seconds.
            let delay = 5200 + lot * 2
            let milliseconds = 200 + lot
            try await records.during(
                .late, replica: index, "what is sent to the database within \(milliseconds) ms comes \(delay) ms late"
            ) {
                await relay.set(.delayRequests(.milliseconds(delay)))
                try await Task.sleep(for: .milliseconds(milliseconds))
                await relay.set(.forward)
                try await Task.sleep(for: .milliseconds(delay))
            }
        default:
            if lot < 300 {
                try await records.during(.listen, replica: index, "LISTEN connection cut") {
                    await listenRelay.cutAll()
                }
            } else {
                try await records.during(.listen, replica: index, "notifications lost for \(lot * 6) ms") {
                    await listenRelay.set(.swallow)
                    try await Task.sleep(for: .milliseconds(lot * 6))
                    await listenRelay.set(.forward)
                }
            }
        }
    }

    // MARK: The provider

    private func disturbProvider(_ draw: Draw) async throws {
        let lot = draw.lot
        let milliseconds = 500 + lot * 2
        switch (draw.kind, lot % 5) {
        case (.link, 0):
            try await records.during(.link, "connections to the provider cut") {
                await cluster.providerRelay.cutAll()
            }
        case (.link, let choice):
            let mode: ChaosRelay.Mode =
                switch choice {
                case 1: .loseAnswers
                case 2: .loseRequests
                case 3: .swallow
                default: .truncateAnswers
                }
            try await records.during(.link, "the way to the provider: \(mode) for \(milliseconds) ms") {
                await cluster.providerRelay.set(mode)
                try await Task.sleep(for: .milliseconds(milliseconds))
                await cluster.providerRelay.set(.forward)
            }
        default:
            let isDown = lot < 500
            let text = isDown ? "provider answers 503" : "provider answers too late"
            try await records.during(.provider, "\(text) for \(milliseconds) ms") {
                provider.script(
                    isDown
                        ? Fault(.token, times: 1_000_000, status: .serviceUnavailable)
                        : Fault(.token, times: 1_000_000, answerDelay: .milliseconds(2500)))
                try await Task.sleep(for: .milliseconds(milliseconds))
                provider.removeFaults()
            }
        }
    }

    // MARK: Tenants

    private func changeTenants(_ draw: Draw) async throws {
        if draw.kind == .scopes {
            let tenant = draw.lot % cluster.tenantCount
            let isWide = cluster.changes.changeScopes(of: tenant)
            try await records.during(.scopes, "tenant \(tenant) \(isWide ? "gains" : "loses") a scope") {
                try await cluster.putTenant(tenant, first: draw.replica, until: .after(.seconds(60)))
            }
            return
        }
        try await records.during(.secrets, "a new client secret") {
            cluster.changes.changeSecret(at: provider)
            for tenant in 0..<cluster.tenantCount
            where ChaosChanges.clientID(of: tenant) == ChaosChanges.secretClient {
                try await Task.sleep(for: .milliseconds(draw.lot))
                try await cluster.putTenant(tenant, first: draw.replica, until: .after(.seconds(60)))
            }
        }
    }
}
