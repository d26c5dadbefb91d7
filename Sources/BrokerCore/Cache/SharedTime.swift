package import CredentialStore
package import OAuth
package import Reactor
import Synchronization

/// The time of day that all replicas share: the database's clock as it was last read, plus what this process's monotonic clock
/// has counted since. The machine's wall clock is read once, when the process starts, and is used until the database's clock has
/// been read; setting it later changes nothing. While the database does not answer, only the monotonic clock counts.
///
/// The time follows the database's clock forward and back, since replicas that start later know no other time. One answer of the
/// database does not move the time: a second answer, requested at once, must confirm it.
///
/// A store of one writer has no clock of its own. There the time follows the wall clock, forward only: if it followed a wall
/// clock that is set back, expired tokens would count as valid. The process uses its monotonic clock until the wall clock has
/// caught up, or until it is restarted.
///
/// A step forward by more than a minute must last for some minutes before the time follows it: sessions, codes and quarantined
/// credentials are ended and removed by the time, and a clock that was set wrongly for a moment must not do that. The monotonic
/// clock counts on while a machine is suspended, so only a clock that was set makes such a step.
package final class SharedTime: Time {
    /// The result of a comparison of the time with its source.
    package enum Adjustment: Sendable, Equatable {
        /// The source confirms the time, or does not disprove it.
        case unchanged
        /// The time was set to the database's clock, and changed by so much.
        case movedByDatabase(Duration)
        /// The time, with a store of one writer, was set to the wall clock, and changed by so much.
        case movedByWallClock(Duration)
        /// The wall clock, with a store of one writer, is ahead by so much, and not yet for long enough to be believed.
        case behindWallClock(Duration)
        /// The wall clock was set back. The time, with a store of one writer, stays ahead of it by so much.
        case aheadOfWallClock(Duration)
    }

    /// The pause between two comparisons with the source. It bounds how late this process learns of a step of the database's
    /// clock, and of time that has passed while a virtual machine was suspended.
    private static let interval: Duration = .seconds(5)
    /// Smaller changes are not logged: clocks drift, and a host's clock is corrected in small steps.
    private static let leastLogged: Duration = .milliseconds(200)
    /// By how much the time may be wrong when the process begins to serve.
    private static let leastProof: Duration = .seconds(1)
    /// The pause after a store failed, before the process begins to serve.
    private static let retryInterval: Duration = .milliseconds(500)
    /// By how much an answer may be wrong in either direction, in milliseconds: the store and this process round their clocks.
    private static let rounding: Int64 = 1

    private let base: any Time
    /// The difference between the time of day and the monotonic clock, in milliseconds.
    private let offset: Atomic<Int64>
    /// The lead over the wall clock that was last logged, in milliseconds.
    private let loggedLead = Atomic<Int64>(0)
    /// The step of the wall clock that is not believed yet.
    private let doubt = Mutex<Doubt?>(nil)

    private struct Doubt {
        /// What the offset would be, in milliseconds.
        let offset: Int64
        let since: MonotonicInstant
        var isLogged = false
    }

    /// Larger steps forward of the wall clock are believed only once they have lasted.
    static let largestBelieved: Duration = .seconds(60)
    static let confirmation: Duration = .seconds(180)

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

    /// Takes the time from its source. To be called before the first caller is served, since the wall clock may be wrong. A store
    /// that fails, or whose answers are too inexact, is asked again.
    /// - Parameter patience: for how long it is asked again. After that, any answer is good enough.
    /// - Throws: where the store has not answered.
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
        case .behindWallClock(let difference):
            let isLogged = doubt.withLock { doubt in
                defer { doubt?.isLogged = true }
                return doubt?.isLogged ?? true
            }
            if !isLogged { log.warning("wall_clock_doubted", [.difference(difference)]) }
        case .aheadOfWallClock(let difference): lead = difference
        }
        let logged = Duration.milliseconds(loggedLead.load(ordering: .relaxed))
        guard (lead - logged).magnitude > Self.leastLogged else { return }
        loggedLead.store(lead.milliseconds, ordering: .relaxed)
        if lead > logged { log.warning("wall_clock_set_back", [.difference(lead)]) }
    }

    /// Compares the time with its source once.
    ///
    /// The time moves only as far as two successive answers prove. So neither a slow answer, which is inexact, nor a single wrong
    /// answer changes it.
    package func adjust(by vault: Vault) async throws(StoreError) -> Adjustment { try await compare(with: vault).0 }

    /// - Returns: the result, and by how much the time may still be wrong; nil where the answers do not say.
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

    /// The offsets that an answer of the store allows: the store has read its clock between the request and the answer. Nil for
    /// a store without a clock.
    private func measure(_ vault: Vault) async throws(StoreError) -> ClosedRange<Int64>? {
        let asked = base.monotonic
        guard let time = try await vault.clock() else { return nil }
        let answered = base.monotonic
        return Self.offset(of: time, at: answered) - Self.rounding...Self.offset(of: time, at: asked) + Self.rounding
    }

    private func followWallClock() -> Adjustment {
        // The wall clock is read first: if the thread is suspended between the two, the wall clock seems late, never early.
        let wallClock = base.now
        let found = Self.offset(of: wallClock, at: base.monotonic)
        let known = offset.load(ordering: .relaxed)
        let step = Duration.milliseconds(found - known)
        if step > Self.largestBelieved, !isConfirmed(found) { return .behindWallClock(step) }
        doubt.withLock { $0 = nil }
        if found == known { return .unchanged }
        if found < known { return .aheadOfWallClock(.milliseconds(known - found)) }
        offset.store(found, ordering: .relaxed)
        return .movedByWallClock(step)
    }

    /// Whether the wall clock has been as far ahead for long enough, each time that it was looked at.
    private func isConfirmed(_ found: Int64) -> Bool {
        let now = base.monotonic
        return doubt.withLock { doubt in
            if let known = doubt, Duration.milliseconds(found - known.offset).magnitude <= Self.largestBelieved {
                return known.since.advanced(by: Self.confirmation) <= now
            }
            doubt = Doubt(offset: found, since: now)
            return false
        }
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
