internal import ExternalText
internal import OAuth
internal import Reactor
internal import Synchronization

/// Bounds how many logins browsers without a key may have begun for the apps of a tenant at one process, of the last ten
/// minutes: for each tenant, and for each address a tenth of that. They do not count as the tenant's pending logins, so that
/// its own API keys are not refused for what strangers begin.
///
/// A login counts until its browser has come back to this process, or its state has expired.
final class StrangersLogins: Sendable {
    private struct Begun {
        let id: WireText
        let source: NetworkSource
        let end: MonotonicInstant
    }

    private struct Pending {
        /// In the order in which they end. Those that have come back stay until they would have ended.
        var begun: [Begun] = []
        var first = 0
        var open: Set<WireText> = []
        var ofSource: [NetworkSource: Int] = [:]

        mutating func close(_ login: Begun) {
            guard open.remove(login.id) != nil else { return }
            let rest = ofSource[login.source, default: 1] - 1
            ofSource[login.source] = rest == 0 ? nil : rest
        }

        mutating func expire(at now: MonotonicInstant) {
            while first < begun.count, begun[first].end <= now {
                close(begun[first])
                first += 1
            }
            if first > begun.count / 2 {
                begun.removeFirst(first)
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

    /// To be called before a login is stored.
    /// - Parameter source: `.unknown` counts for the tenant only.
    /// - Throws: `too_many_requests` where the tenant or the address has as many as it may have.
    func admit(_ id: WireText, of tenant: TenantName, from source: NetworkSource) throws(BrokerError) {
        guard let limit else { return }
        let now = time.monotonic
        let isAdmitted = tenants.withLock { tenants in
            var pending = tenants.removeValue(forKey: tenant) ?? Pending()
            defer { tenants[tenant] = pending.begun.isEmpty ? nil : pending }
            pending.expire(at: now)
            let ofSource = pending.ofSource[source, default: 0]
            guard pending.open.count < limit, source == .unknown || ofSource < max(1, limit / 10) else { return false }
            pending.begun.append(Begun(id: id, source: source, end: now.advanced(by: PendingLogin.validity)))
            pending.open.insert(id)
            pending.ofSource[source] = ofSource + 1
            return true
        }
        if isAdmitted { return }
        metrics.refused(over: .pendingAppLogins)
        throw Quota.pendingAppLogins.exceeded(retryAfter: Self.retryAfter)
    }

    /// The login's browser has come back.
    func cameBack(_ id: WireText, of tenant: TenantName) {
        tenants.withLock { tenants in
            guard var pending = tenants[tenant], pending.open.contains(id) else { return }
            tenants[tenant] = nil
            if let login = pending.begun[pending.first...].first(where: { $0.id == id }) { pending.close(login) }
            tenants[tenant] = pending
        }
    }
}
