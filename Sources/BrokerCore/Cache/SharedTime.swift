package import CredentialStore
package import OAuth
package import Reactor
internal import Synchronization

/// The time of day that all replicas share: the database's clock as it was read last, carried on by this process's
/// monotonic clock. The machine's wall clock is read once, when the process starts, and counts until the database's
/// clock has been read; setting it afterwards changes nothing. Without a database for a long time, the monotonic clock
/// alone carries the time on.
///
/// The database is followed in both directions, because replicas that start later know no other time. One answer does
/// not move the time: a second one, asked for at once, must show the same.
///
/// A store of one writer has no clock of its own. There the wall clock is followed forward only: a wall clock that is set
/// back would make tokens count as good that have expired. The process goes by its monotonic clock until the wall clock
/// has caught up, or until it is started again.
package final class SharedTime: Time {
    /// What a comparison of the time with its source has led to.
    package enum Adjustment: Sendable, Equatable {
        /// The time is right, as far as its source shows.
        case unchanged
        /// The time was moved to that of the database's clock.
        case movedByDatabase(Duration)
        /// The time of a store of one writer was moved to that of the wall clock.
        case movedByWallClock(Duration)
        /// The wall clock was set back, and the time of a store of one writer stays ahead of it by so much.
        case aheadOfWallClock(Duration)
    }

    /// How often the time is compared with its source. It bounds for how long a step of the database's clock, and time
    /// that passed while all clocks of a virtual machine stood still, are not known.
    private static let interval: Duration = .seconds(5)
    /// Smaller changes are not logged: clocks drift, and a host's clock is corrected in small steps.
    private static let leastLogged: Duration = .milliseconds(200)
    /// How far the time may be off at most when the process begins to serve.
    private static let leastProof: Duration = .seconds(1)
    /// How long a store that failed is left alone before the process begins to serve.
    private static let retryInterval: Duration = .milliseconds(500)
    /// The store rounds its clock to a millisecond, and so does this process: by this, in milliseconds, an answer may be
    /// off in either direction.
    private static let rounding: Int64 = 1

    private let base: any Time
    /// What is added to the monotonic clock to get the time of day, in milliseconds.
    private let offset: Atomic<Int64>
    /// The lead over the wall clock that the log was last told of, in milliseconds.
    private let loggedLead = Atomic<Int64>(0)

    package init(_ base: any Time = SystemTime()) {
        self.base = base
        offset = Atomic(Self.offset(of: base.now, at: base.monotonic))
    }

    package var now: Timestamp { now(at: base.monotonic) }

    package var monotonic: MonotonicInstant { base.monotonic }

    package var clocks: (now: Timestamp, monotonic: MonotonicInstant) {
        let monotonic = base.monotonic
        return (now(at: monotonic), monotonic)
    }

    package func sleep(for duration: Duration) async throws(CancellationError) {
        try await base.sleep(for: duration)
    }

    package func tick(for duration: Duration) async { await base.tick(for: duration) }

    private func now(at instant: MonotonicInstant) -> Timestamp {
        Timestamp(milliseconds: Self.milliseconds(instant) + offset.load(ordering: .relaxed))
    }

    // MARK: Following the source

    /// Takes the time from its source before anything is served by it: a process would go by a wall clock that is wrong until
    /// it has read the database's. A store that fails, or whose answers prove too little, is asked again.
    /// - Parameter patience: for how long. After that, what the last answer proved is good enough.
    /// - Throws: where no answer came.
    package func begin(with vault: Vault, within patience: Duration, _ log: Log) async throws(StoreError) {
        let start = base.monotonic
        while true {
            let isOver = start.duration(to: base.monotonic) >= patience
            do throws(StoreError) {
                let (adjustment, uncertainty) = try await compare(with: vault)
                tell(adjustment, log)
                if isOver || uncertainty.map({ $0 <= Self.leastProof }) ?? false { return }
            } catch {
                log.storeFailed(error)
                if isOver || error != .unavailable { throw error }
            }
            try? await base.sleep(for: Self.retryInterval)
            if Task.isCancelled { throw .unavailable }
        }
    }

    /// Compares the time with its source every five seconds, until the task is cancelled.
    package func follow(_ vault: Vault, _ log: Log) async {
        while (try? await sleep(for: Self.interval)) != nil { await adjust(by: vault, log) }
    }

    /// Compares the time with its source once, and logs what has changed. A store that does not answer changes nothing.
    package func adjust(by vault: Vault, _ log: Log) async {
        do throws(StoreError) {
            tell(try await adjust(by: vault), log)
        } catch {
            log.storeFailed(error)
        }
    }

    private func tell(_ adjustment: Adjustment, _ log: Log) {
        var lead = Duration.zero
        switch adjustment {
        case .unchanged: break
        case .movedByDatabase(let change):
            if change.magnitude > Self.leastLogged { log.warning("clock_differs_from_database", [.difference(change)]) }
            return
        case .movedByWallClock(let change):
            if change > Self.leastLogged { log.warning("wall_clock_set_forward", [.difference(change)]) }
        case .aheadOfWallClock(let difference): lead = difference
        }
        let logged = Duration.milliseconds(loggedLead.load(ordering: .relaxed))
        guard (lead - logged).magnitude > Self.leastLogged else { return }
        loggedLead.store(lead.milliseconds, ordering: .relaxed)
        if lead > logged { log.warning("wall_clock_set_back", [.difference(lead)]) }
    }

    /// Compares the time with its source once.
    ///
    /// The time moves no further than two answers in a row prove. So a slow answer, which proves little, changes nothing,
    /// and neither does a single answer that is wrong.
    package func adjust(by vault: Vault) async throws(StoreError) -> Adjustment { try await compare(with: vault).0 }

    /// - Returns: what came of it, and how far the time may still be off by the answers; nil where they do not tell.
    private func compare(with vault: Vault) async throws(StoreError) -> (Adjustment, Duration?) {
        guard let first = try await measure(vault) else { return (followWallClock(), .zero) }
        let known = offset.load(ordering: .relaxed)
        if first.contains(known) { return (.unchanged, first.length) }
        guard let second = try await measure(vault), !second.contains(known), first.overlaps(second) else {
            return (.unchanged, nil)
        }
        let proven = first.clamped(to: second)
        let corrected = min(max(known, proven.lowerBound), proven.upperBound)
        offset.store(corrected, ordering: .relaxed)
        return (.movedByDatabase(.milliseconds(corrected - known)), proven.length)
    }

    /// The offsets that an answer of the store allows: it read its clock at some moment between the question and the
    /// answer. Nil for a store without a clock.
    private func measure(_ vault: Vault) async throws(StoreError) -> ClosedRange<Int64>? {
        let asked = base.monotonic
        guard let time = try await vault.clock() else { return nil }
        let answered = base.monotonic
        return Self.offset(of: time, at: answered) - Self.rounding...Self.offset(of: time, at: asked) + Self.rounding
    }

    private func followWallClock() -> Adjustment {
        // The wall clock first: a thread that is stopped between the two finds it behind, never ahead.
        let wallClock = base.now
        let found = Self.offset(of: wallClock, at: base.monotonic)
        let known = offset.load(ordering: .relaxed)
        if found == known { return .unchanged }
        if found < known { return .aheadOfWallClock(.milliseconds(known - found)) }
        offset.store(found, ordering: .relaxed)
        return .movedByWallClock(.milliseconds(found - known))
    }

    private static func offset(of time: Timestamp, at instant: MonotonicInstant) -> Int64 {
        time.milliseconds - milliseconds(instant)
    }

    private static func milliseconds(_ instant: MonotonicInstant) -> Int64 { instant.nanoseconds / 1_000_000 }
}

extension ClosedRange<Int64> {
    fileprivate var length: Duration { .milliseconds(upperBound - lowerBound) }
}

extension Duration {
    fileprivate var magnitude: Duration { self < .zero ? .zero - self : self }
}
