import Containers
import OAuth
import Reactor
import Synchronization

/// How many refreshes of each tenant have succeeded at this replica lately, in memory only.
final class RenewalCounts: Sendable {
    /// The successes of one tenant, in slots of equal length. A slot is used again when its time is over. An object, so that a refresh
    /// changes one number and copies no slots.
    private final class Slots {
        /// The length of a slot, in milliseconds.
        let length: Int64
        /// For each slot, the number of its period, and its successes.
        private var slots = [(period: Int64, count: Int)](repeating: (.min, 0), count: RenewalCounts.slots)

        init(length: Int64) { self.length = length }

        func add(at now: Timestamp) {
            let period = now.milliseconds / length
            let index = Int(period % Int64(slots.count))
            if slots[index].period == period { slots[index].count += 1 } else { slots[index] = (period, 1) }
        }

        /// The successes since that time, to the slot.
        func count(since beginning: Timestamp, at now: Timestamp) -> Int {
            let (first, last) = (beginning.milliseconds / length, now.milliseconds / length)
            return slots.reduce(0) { first...max(first, last) ~= $1.period ? $0 + $1.count : $0 }
        }
    }

    /// One more than fit the window, so that the slot in which it begins counts as a whole.
    private static let slots = 21
    /// The tenants that are counted. One that is forgotten counts from zero again: then fewer refusals are a wave.
    private let tenants = Mutex(BoundedTable<TenantName, Slots>(capacity: 16_384))

    /// A refresh has succeeded.
    func add(_ tenant: TenantName, _ window: Duration, at now: Timestamp) {
        let length = Self.length(window)
        tenants.withLock { tenants in
            let slots = tenants[tenant].flatMap { $0.length == length ? $0 : nil } ?? Slots(length: length)
            slots.add(at: now)
            tenants.setNewest(slots, forKey: tenant)
        }
    }

    func count(_ tenant: TenantName, _ window: Duration, since beginning: Timestamp, at now: Timestamp) -> Int {
        let length = Self.length(window)
        return tenants.withLock { tenants in
            guard let slots = tenants[tenant], slots.length == length else { return 0 }
            return slots.count(since: beginning, at: now)
        }
    }

    private static func length(_ window: Duration) -> Int64 { max(1, window.milliseconds / Int64(slots - 1)) }
}
