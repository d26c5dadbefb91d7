import BrokerTesting
import DevelopmentProvider
import HTTPCodec
import Reactor
import Synchronization

/// What goes on in a run: readers at all replicas, users who log in and out, and faults.
struct ChaosActivity {
    let cluster: ChaosCluster

    var settings: ChaosSettings { cluster.settings }

    /// Kinds of generators, so that none takes lots from another.
    enum Lot: UInt64 {
        case readers = 1000
        case writers = 1
        case faults = 2
        case provider = 3
        case apps = 100_000
    }

    func generator(_ lot: Lot, _ number: Int = 0) -> SplitMix64 {
        SplitMix64(seed: settings.seed &+ (lot.rawValue &+ UInt64(number)) &* 0x1_0000_0001)
    }

    /// Goes on for the settings' time, then heals everything.
    func run() async throws {
        disturbAnswers(0)
        let end = MonotonicInstant.after(.seconds(settings.seconds))
        try await withThrowingTaskGroup(of: Void.self) { group in
            for replica in 0..<cluster.replicas.count {
                for number in 0..<settings.readersPerReplica {
                    group.addTask { try await read(at: replica, number, until: end) }
                }
            }
            for app in cluster.apps.values { group.addTask { try await refresh(app, until: end) } }
            if settings.faults.contains(.logins) { group.addTask { try await logInAndOut(until: end) } }
            let momentary = FaultKind.momentary.filter(settings.faults.contains)
            if !momentary.isEmpty {
                group.addTask { try await ChaosFaults(activity: self).disturb(by: momentary, until: end) }
            }
            try await group.waitForAll()
        }
        cluster.provider.provider.disturbAtRandom(nil)
        cluster.provider.provider.removeFaults()
        try await cluster.waitUntilReady(within: .seconds(60))
    }

    /// - Parameter part: each has lots of its own.
    func disturbAnswers(_ part: Int) {
        guard settings.faults.contains(.answers) else { return }
        // Where each answer that is lost after the work loses its user, few are lost: others are to stay.
        let share = settings.graceSeconds < 5 ? 5 : 1
        cluster.provider.provider.disturbAtRandom(
            RandomFaults(
                seed: generator(.provider, part).state(),
                perMille: [
                    .answer: 15, .answerAfterWork: 10 / share, .dropBeforeWork: 5, .dropAfterWork: 10 / share,
                    .malformed: 10 / share,
                ],
                delayedPerMille: 10, answerDelayedPerMille: 10 / share, longestDelay: .milliseconds(3000)))
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

    /// Refreshes at any replica, repeats what had no answer, and logs in again when the session is over.
    private func refresh(_ app: ChaosApp, until end: MonotonicInstant) async throws {
        var generator = generator(.apps, app.user)
        while MonotonicInstant.now < end {
            let replica = Int.random(in: 0..<cluster.replicas.count, using: &generator)
            let isLost = Int.random(in: 0..<10, using: &generator) == 0
            let pause = Int.random(in: 100...1500, using: &generator)
            switch await cluster.refresh(app, at: replica, isLost: isLost)?.outcome {
            case .refused: try await cluster.logIn(app.user, first: replica, until: .after(.seconds(60)))
            case .later, .unreachable: try await Task.sleep(for: .milliseconds(pause / 5))
            case .granted, nil: try await Task.sleep(for: .milliseconds(pause))
            }
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
                        let user = Int.random(in: 0..<(settings.users - settings.probes), using: &generator)
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
}

extension SplitMix64 {
    /// A number to seed another with.
    fileprivate func state() -> UInt64 {
        var copy = self
        return copy.next()
    }
}
