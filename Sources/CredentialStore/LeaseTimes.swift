import OAuth
import Reactor

/// The times of the leases that this process has granted, by its own clock. A store with one writer needs no others:
/// the lease that an earlier process granted has expired, because its holder died with that process.
struct LeaseTimes {
    struct Entry {
        /// Kept here because a store may keep only some members of the lease.
        var lease: Lease
        var end: MonotonicInstant
        var firstUse: MonotonicInstant?
        var failureEnd: MonotonicInstant?
        /// When a replica should take the lease over; nil for never.
        var recovery: MonotonicInstant?
    }

    private(set) var entries: [RecordID: Entry] = [:]
    private let now: @Sendable () -> MonotonicInstant

    /// - Parameter entries: the times of leases that were granted before, by the same clock.
    init(entries: [RecordID: Entry] = [:], now: @escaping @Sendable () -> MonotonicInstant = { .now }) {
        self.entries = entries
        self.now = now
    }

    /// `record` with the remaining time of its lease.
    func timed(_ record: StoredRecord) -> StoredRecord {
        guard var lease = record.lease else { return record }
        var record = record
        let (now, entry) = (now(), entries[record.id])
        if let entry { lease = entry.lease }
        lease.remaining = lease.wasGivenUp ? .zero : entry.map { now.duration(to: $0.end) } ?? .zero
        lease.sinceFirstUse = entry?.firstUse.map { $0.duration(to: now) }
        let failureRemaining = entry?.failureEnd.map { now.duration(to: $0) } ?? .zero
        if failureRemaining > .zero { lease.failure?.remaining = failureRemaining } else { lease.failure = nil }
        record.lease = lease
        return record
    }

    /// The time from which a replica should take the lease over; nil when that time has not come or there is none. The
    /// far past for a lease of an earlier process that did not give it up.
    func lapse(_ id: RecordID, wasGivenUp: Bool) -> MonotonicInstant? {
        guard let entry = entries[id] else { return wasGivenUp ? nil : MonotonicInstant(nanoseconds: .min) }
        return entry.recovery.flatMap { $0 <= now() ? $0 : nil }
    }

    /// To be called when a commit has written or removed the record.
    /// - Parameter recovery: nil for a commit that gave no lease up; else after how long a replica should take the
    ///   lease over, with nil for never.
    mutating func note(_ id: RecordID, record: StoredRecord?, recovery: Duration?? = nil) {
        guard let lease = record?.lease else {
            entries[id] = nil
            return
        }
        let now = now()
        let end = now.advanced(by: lease.remaining)
        entries[id] = Entry(
            lease: lease, end: end, firstUse: lease.sinceFirstUse.map { now.advanced(by: .zero - $0) },
            failureEnd: lease.failure.map { now.advanced(by: $0.remaining) },
            recovery: !lease.wasGivenUp
                ? end : recovery.map { $0.map { now.advanced(by: $0) } } ?? entries[id]?.recovery)
    }
}
