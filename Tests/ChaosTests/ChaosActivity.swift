import BrokerTesting
import DevelopmentProvider
import HTTPCodec
import Reactor
import Synchronization

/// What goes on in a run: readers at all replicas, users who log in and out, and faults.
struct ChaosActivity {
    let cluster: ChaosCluster

    private var settings: ChaosSettings { cluster.settings }

    /// Kinds of generators, so that none takes lots from another.
    private enum Lot: UInt64 {
        case readers = 1000
        case writers = 1
        case faults = 2
        case provider = 3
    }

    private func generator(_ lot: Lot, _ number: Int = 0) -> SplitMix64 {
        SplitMix64(seed: settings.seed &+ (lot.rawValue &+ UInt64(number)) &* 0x1_0000_0001)
    }

    /// Goes on for the settings' time, then heals everything.
    func run() async throws {
        if settings.faults.contains(.answers) {
            cluster.provider.provider.disturbAtRandom(
                RandomFaults(
                    seed: generator(.provider).state(), grant: .refreshToken,
                    perMille: [
                        .answer: 15, .answerAfterWork: 10, .dropBeforeWork: 5, .dropAfterWork: 10, .malformed: 5,
                    ],
                    delayedPerMille: 10, answerDelayedPerMille: 10, longestDelay: .milliseconds(3000)))
        }
        let end = MonotonicInstant.after(.seconds(settings.seconds))
        try await withThrowingTaskGroup(of: Void.self) { group in
            for replica in 0..<cluster.replicas.count {
                for number in 0..<settings.readersPerReplica {
                    group.addTask { try await read(at: replica, number, until: end) }
                }
            }
            if settings.faults.contains(.logins) { group.addTask { try await logInAndOut(until: end) } }
            let momentary = FaultKind.momentary.filter(settings.faults.contains)
            if !momentary.isEmpty { group.addTask { try await disturb(by: momentary, until: end) } }
            try await group.waitForAll()
        }
        cluster.provider.provider.disturbAtRandom(nil)
        cluster.provider.provider.removeFaults()
        try await cluster.waitUntilReady(within: .seconds(60))
    }

    /// - Parameter part: each has lots of its own.
    private func disturbAnswers(_ part: Int) {
        guard settings.faults.contains(.answers) else { return }
        cluster.provider.provider.disturbAtRandom(
            RandomFaults(
                seed: generator(.provider, part).state(), grant: .refreshToken,
                perMille: [.answer: 15, .answerAfterWork: 10, .dropBeforeWork: 5, .dropAfterWork: 10, .malformed: 5],
                delayedPerMille: 10, answerDelayedPerMille: 10, longestDelay: .milliseconds(3000)))
    }

    // MARK: Users

    private func read(at replica: Int, _ number: Int, until end: MonotonicInstant) async throws {
        var generator = generator(.readers, replica * 100 + number)
        while MonotonicInstant.now < end {
            // A few users are asked for by many at once.
            let isBusy = Int.random(in: 0..<6, using: &generator) == 0
            let user = Int.random(in: 0..<(isBusy ? min(3, settings.users) : settings.users), using: &generator)
            let read = await cluster.read(user, at: replica)
            let pause = read.outcome == .unreachable ? 50 : Int.random(in: 0...30, using: &generator)
            try await Task.sleep(for: .milliseconds(pause))
        }
    }

    /// One after the other, for each user; a few users at a time.
    private func logInAndOut(until end: MonotonicInstant) async throws {
        let presence = Presence()
        try await withThrowingTaskGroup(of: Void.self) { group in
            for writer in 0..<3 {
                group.addTask {
                    var generator = generator(.writers, writer)
                    while MonotonicInstant.now < end {
                        try await Task.sleep(for: .milliseconds(Int.random(in: 300...1500, using: &generator)))
                        let user = Int.random(in: 0..<settings.users, using: &generator)
                        let lot = Int.random(in: 0..<100, using: &generator)
                        let replica = Int.random(in: 0..<cluster.replicas.count, using: &generator)
                        guard let isOut = presence.take(user) else { continue }
                        let deadline = MonotonicInstant.after(.seconds(60))
                        if isOut || lot < 70 {
                            try await cluster.logIn(user, first: replica, until: deadline)
                            presence.release(user, isOut: false)
                        } else {
                            try await cluster.logOut(user, first: replica, until: deadline)
                            presence.release(user, isOut: true)
                        }
                    }
                }
            }
            try await group.waitForAll()
        }
    }

    /// Who is logged out, and with whom a writer is busy.
    private final class Presence: Sendable {
        private let state = Mutex((busy: Set<Int>(), out: Set<Int>()))

        /// Whether the user is logged out; nil where another writer is busy with them.
        func take(_ user: Int) -> Bool? {
            state.withLock { state in state.busy.insert(user).inserted ? state.out.contains(user) : nil }
        }

        func release(_ user: Int, isOut: Bool) {
            state.withLock { state in
                state.busy.remove(user)
                if isOut { state.out.insert(user) } else { state.out.remove(user) }
            }
        }
    }

    // MARK: Faults

    /// What is drawn for one fault, all of it at once: what comes of one must not change what is drawn for the next.
    private struct Draw {
        let kind: FaultKind
        let replica: Int
        let lot: Int
        /// Whether it is to hit refreshes under way, and how long after the first of them has reached the provider.
        let aim: Int?

        init(_ kinds: [FaultKind], _ replicas: Int, _ generator: inout SplitMix64) {
            kind = kinds.randomElement(using: &generator) ?? .kill
            replica = Int.random(in: 0..<replicas, using: &generator)
            lot = Int.random(in: 0..<1000, using: &generator)
            let isAimed = Int.random(in: 0..<10, using: &generator) < 6
            let delay = Int.random(in: 0..<1000, using: &generator)
            aim = isAimed && ![.provider, .listen, .outage].contains(kind) ? delay : nil
        }
    }

    private func disturb(by kinds: [FaultKind], until end: MonotonicInstant) async throws {
        var generator = generator(.faults)
        while true {
            let pause = Int.random(in: 200...2500, using: &generator)
            let first = Draw(kinds, cluster.replicas.count, &generator)
            let second = Draw(kinds, cluster.replicas.count, &generator)
            let isDouble = Int.random(in: 0..<5, using: &generator) == 0
            try await Task.sleep(for: .milliseconds(pause))
            guard MonotonicInstant.now < end else { return }
            var drawn = [first]
            // One process cannot be killed twice, and one provider script would end the other.
            // And nothing covers what is under way when an outage begins, but a process that lives.
            if isDouble, second.kind != first.kind, second.replica != first.replica, first.kind != .outage,
                second.kind != .outage
            {
                drawn.append(second)
            }
            try await withThrowingTaskGroup(of: Void.self) { group in
                for draw in drawn { group.addTask { try await disturb(draw) } }
                try await group.waitForAll()
            }
            try await cluster.waitUntilReady(within: .seconds(60))
            if drawn.contains(where: { $0.kind == .kill || $0.kind == .stop }) {
                // What was under way there is taken up again once its lease has run out. Another fault on top, again
                // and again, would outlast the provider's grace period, and what is lost then nobody can keep.
                try await Task.sleep(for: .seconds(ChaosCluster.providerTimeoutSeconds + 2))
            }
        }
    }

    private func disturb(_ draw: Draw) async throws {
        if let delay = draw.aim {
            // The next refreshes stay under way for a while, in half of the cases with the work done.
            let wait = Duration.milliseconds(1200)
            cluster.provider.provider.script(
                draw.lot % 2 == 0
                    ? Fault(.token, grant: .refreshToken, times: 6, answerDelay: wait)
                    : Fault(.token, grant: .refreshToken, times: 6, delay: wait))
            try await waitForRefresh(within: .seconds(3))
            try await Task.sleep(for: .milliseconds(delay))
        }
        try await disturb(draw.kind, draw.replica, draw.lot)
    }

    /// Returns when the next refresh has reached the provider, or when none has in that time.
    private func waitForRefresh(within time: Duration) async throws {
        let provider = cluster.provider.provider
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

    /// - Parameter lot: from 0 to 999, for whatever a fault leaves open.
    private func disturb(_ kind: FaultKind, _ index: Int, _ lot: Int) async throws {
        let replica = cluster.replicas[index]
        let records = cluster.records
        switch kind {
        case .kill:
            let place = records.begin(.kill, replica: index, "SIGKILL")
            await replica.kill()
            try await replica.start()
            records.end(place)
        case .term:
            let place = records.begin(.term, replica: index, "SIGTERM")
            _ = await replica.terminate()
            try await replica.start()
            records.end(place)
        case .stop:
            // Longer than a lease, shorter than the grace period.
            let milliseconds = 4200 + lot * 3
            let place = records.begin(.stop, replica: index, "SIGSTOP for \(milliseconds) ms")
            await replica.pause()
            try await Task.sleep(for: .milliseconds(milliseconds))
            await replica.resume()
            records.end(place)
        case .postgres:
            let shutdown: PostgresServer.Shutdown = lot < 500 ? .fast : .immediate
            let place = records.begin(.postgres, "PostgreSQL restarted (\(shutdown.rawValue))")
            let postgres = cluster.postgres
            // On a thread of its own: it waits for programs.
            try await Task.detached {
                try postgres.stop(shutdown)
                try await Task.sleep(for: .milliseconds(lot))
                try postgres.start()
            }.value
            records.end(place)
        case .outage:
            let provider = cluster.provider.provider
            // Nobody can keep a session whose answer is lost while the database is away for longer than the grace
            // period: answers are not lost in this time, and what was lost before is made good first.
            provider.disturbAtRandom(nil)
            try await Task.sleep(for: .seconds(4))
            provider.script(
                Fault(.token, grant: .refreshToken, times: 12, answerDelay: .milliseconds(800 + lot)))
            try await waitForRefresh(within: .seconds(5))
            let place = records.begin(.outage, "PostgreSQL away for \(11_000 + lot * 3) ms")
            let postgres = cluster.postgres
            try await Task.detached {
                try postgres.stop(.fast)
                try await Task.sleep(for: .milliseconds(11_000 + lot * 3))
                try postgres.start()
            }.value
            records.end(place)
            provider.removeFaults()
            disturbAnswers(lot)
        case .cut:
            let place = records.begin(.cut, replica: index, "database connections cut")
            await cluster.relays[index].cutAll()
            await cluster.listenRelays[index].cutAll()
            records.end(place)
        case .listen:
            if lot < 300 {
                let place = records.begin(.listen, replica: index, "LISTEN connection cut")
                await cluster.listenRelays[index].cutAll()
                records.end(place)
            } else {
                let place = records.begin(.listen, replica: index, "notifications lost for \(lot * 6) ms")
                await cluster.listenRelays[index].set(.swallow)
                try await Task.sleep(for: .milliseconds(lot * 6))
                await cluster.listenRelays[index].set(.forward)
                records.end(place)
            }
        default:
            let provider = cluster.provider.provider
            let milliseconds = 500 + lot * 2
            let place: Int
            if lot < 500 {
                place = records.begin(.provider, "provider answers 503 for \(milliseconds) ms")
                provider.script(
                    Fault(.token, grant: .refreshToken, times: 1_000_000, status: .serviceUnavailable))
            } else {
                place = records.begin(.provider, "provider answers too late for \(milliseconds) ms")
                provider.script(
                    Fault(.token, grant: .refreshToken, times: 1_000_000, answerDelay: .milliseconds(2500)))
            }
            try await Task.sleep(for: .milliseconds(milliseconds))
            provider.removeFaults()
            records.end(place)
        }
    }
}

extension SplitMix64 {
    /// A number to seed another with.
    fileprivate func state() -> UInt64 {
        var copy = self
        return copy.next()
    }
}
