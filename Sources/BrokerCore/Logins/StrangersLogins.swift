internal import ExternalText
internal import OAuth
internal import Reactor
internal import Synchronization

/// Bounds how many logins for the apps of a tenant browsers without a key may have brought back to one process without success, or
/// begun by the address for a new login after a session's end, within ten minutes: for each tenant, and for each address a tenth
/// of that. Each of them has stored a record, and its code, which may be made up, is presented to the provider. They do not count
/// as the tenant's pending logins, so that its own API keys are not refused for what strangers bring.
///
/// A login counts until it succeeds at this process, or ten minutes have passed. One that has only begun does not count: it
/// has stored nothing (`CarriedLogin`).
final class StrangersLogins: Sendable {
    private struct Pending {
        /// In the order in which they end. Those that have succeeded stay until they would have ended, or are half of all.
        var brought: [(id: WireText, end: MonotonicInstant)] = []
        var first = 0
        var open: [WireText: NetworkSource] = [:]
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
    /// - Throws: `too_many_requests` where the tenant or the address has as many as it may have.
    func admit(_ id: WireText, of tenant: TenantName, from source: NetworkSource) throws(BrokerError) {
        guard let limit else { return }
        let now = time.monotonic
        let isAdmitted = tenants.withLock { tenants in
            var pending = tenants.removeValue(forKey: tenant) ?? Pending()
            defer { tenants[tenant] = pending.brought.isEmpty ? nil : pending }
            pending.expire(at: now)
            if pending.open[id] != nil { return true }
            let ofSource = pending.ofSource[source, default: 0]
            guard pending.open.count < limit, source == .unknown || ofSource < max(1, limit / 10) else { return false }
            pending.brought.append((id, now.advanced(by: PendingLogin.validity)))
            pending.open[id] = source
            pending.ofSource[source] = ofSource + 1
            return true
        }
        if isAdmitted { return }
        metrics.refused(over: .pendingAppLogins)
        throw Quota.pendingAppLogins.exceeded(retryAfter: Self.retryAfter)
    }

    /// The login has ended well.
    func succeeded(_ id: WireText, of tenant: TenantName) {
        tenants.withLock { tenants in
            guard var pending = tenants.removeValue(forKey: tenant) else { return }
            pending.close(id)
            tenants[tenant] = pending.brought.isEmpty ? nil : pending
        }
    }
}
