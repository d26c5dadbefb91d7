internal import OAuth
internal import Reactor

/// Until when the leases last that this process has given, by its own clock: all that a store of one writer needs. A
/// lease that an earlier process gave has run out, for its holder is dead.
struct LeaseTimes {
    private var ends: [RecordID: MonotonicInstant] = [:]
    private let now: @Sendable () -> MonotonicInstant

    init(now: @escaping @Sendable () -> MonotonicInstant = { .now }) {
        self.now = now
    }

    /// `record` with what is left of its lease now.
    func timed(_ record: StoredRecord) -> StoredRecord {
        var record = record
        if record.lease != nil { record.lease?.remaining = remaining(record.id) }
        return record
    }

    func remaining(_ id: RecordID) -> Duration {
        ends[id].map { max(.zero, now().duration(to: $0)) } ?? .zero
    }

    /// When the lease has run out; the far past for one of an earlier process.
    func end(_ id: RecordID) -> MonotonicInstant { ends[id] ?? MonotonicInstant(nanoseconds: .min) }

    /// A commit has written or removed the record.
    mutating func note(_ id: RecordID, _ record: StoredRecord?) {
        ends[id] = record?.lease.map { now().advanced(by: $0.remaining) }
    }
}
