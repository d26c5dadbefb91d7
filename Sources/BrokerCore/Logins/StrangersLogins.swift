import ExternalText
import OAuth
import Reactor
import Synchronization

/// Bounds how many logins for the apps of a tenant browsers without a key may have brought back to one process without success, or
/// begun by the address for a new login after a session's end, within ten minutes: for each tenant, and for each address a tenth
/// of that. Each of them has stored a record, and its code, which may be made up, is presented to the provider. They do not count
/// as the tenant's pending logins, so that its own API keys are not refused for what strangers bring.
///
/// A login counts until it succeeds, or ten minutes have passed. That it has succeeded at another replica shows when there are too
/// many (`sample`). One that has only begun does not count: it has stored nothing (`CarriedLogin`).
final class StrangersLogins: Sendable {
    private struct Pending {
        /// In the order in which they end. Those that have succeeded stay until they would have ended, or are half of all.
        var brought: [(id: WireText, end: MonotonicInstant)] = []
        var first = 0
        var open: [WireText: NetworkSource] = [:]
        /// When other logins were last looked at, to make room.
        var sampled: MonotonicInstant?
        var ofSource: [NetworkSource: Int] = [:]

        mutating func close(_ id: WireText) {
            guard let source = open.removeValue(forKey: id) else { return }
            let rest = ofSource[source, default: 1] - 1
            ofSource[source] = rest == 0 ? nil : rest
            if brought.count - first > 2 * open.count + 16 {
                brought = brought[first...].filter { open[$0.id] != nil }
                first = 0
            }
        }

        mutating func expire(at now: MonotonicInstant) {
            while first < brought.count, brought[first].end <= now {
                first += 1
                close(brought[first - 1].id)
            }
            if first > brought.count / 2 {
                brought.removeFirst(first)
                first = 0
            }
        }
    }

    private static let retryAfter: Duration = .seconds(10)
    /// Nil for no limit.
    private let limit: Int?
    private let time: any Time
    private let metrics: Metrics
    private let tenants = Mutex<[TenantName: Pending]>([:])

    init(limit: Int?, time: any Time, metrics: Metrics) {
        self.limit = limit
        self.time = time
        self.metrics = metrics
    }

    /// To be called before a login is stored. A login that is brought again, after the store has failed, counts once.
    /// - Parameter source: `.unknown` counts for the tenant only.
    /// - Returns: whether the tenant and the address may have one more.
    func admit(_ id: WireText, of tenant: TenantName, from source: NetworkSource) -> Bool {
        guard let limit else { return true }
        let now = time.monotonic
        return tenants.withLock { tenants in
            var pending = tenants.removeValue(forKey: tenant) ?? Pending()
            defer { tenants[tenant] = pending.brought.isEmpty ? nil : pending }
            pending.expire(at: now)
            if pending.open[id] != nil { return true }
            let ofSource = pending.ofSource[source, default: 0]
            guard pending.open.count < limit, source == .unknown || ofSource < Self.ofSource(limit) else {
                return false
            }
            pending.brought.append((id, now.advanced(by: PendingLogin.validity)))
            pending.open[id] = source
            pending.ofSource[source] = ofSource + 1
            return true
        }
    }

    /// How many of a tenant's an address may have.
    private static func ofSource(_ limit: Int) -> Int { max(1, limit / 10) }

    /// For whom `admit` refuses.
    func refusal() -> BrokerError {
        metrics.refused(over: .pendingAppLogins)
        return Quota.pendingAppLogins.exceeded(retryAfter: Self.retryAfter)
    }

    /// Some logins of those that leave no room, to be asked whether they have succeeded at other replicas. None where some were
    /// asked for within the last second.
    func sample(of tenant: TenantName) -> [WireText] {
        let now = time.monotonic
        return tenants.withLock { tenants in
            guard var pending = tenants.removeValue(forKey: tenant) else { return [] }
            defer { tenants[tenant] = pending }
            if let sampled = pending.sampled, sampled.advanced(by: .seconds(1)) > now { return [] }
            pending.sampled = now
            // In random order, so that logins which never succeed do not hide the others; of all addresses, so that one cannot
            // take the looks of the others.
            return Array(pending.open.keys.shuffled().prefix(Self.sampleSize))
        }
    }

    private static let sampleSize = 64

    /// The login has ended well.
    func succeeded(_ id: WireText, of tenant: TenantName) {
        tenants.withLock { tenants in
            guard var pending = tenants.removeValue(forKey: tenant) else { return }
            pending.close(id)
            tenants[tenant] = pending.brought.isEmpty ? nil : pending
        }
    }
}
