package import OAuth
internal import Synchronization

/// Tells of commits in this process: that the log of events has grown, and when something of it falls due.
///
/// Whoever announces is in the middle of serving a caller, so those who hear of it return at once.
package final class EventBus: Sendable {
    private struct Hearers {
        var growth: (@Sendable (TenantName) -> Void)?
        var due: (@Sendable (Timestamp) -> Void)?
    }

    private let hearers = Mutex(Hearers())

    package init() {}

    /// Something of the tenant's was committed to the log.
    package func announce(_ tenant: TenantName) {
        hearers.withLock { $0.growth }?(tenant)
    }

    /// A record with that due mark was committed.
    package func announce(due: Timestamp) {
        hearers.withLock { $0.due }?(due)
    }

    /// Has `hear` called after each commit to the log from now on, and nobody else.
    func onGrowth(_ hear: @escaping @Sendable (TenantName) -> Void) {
        hearers.withLock { $0.growth = hear }
    }

    /// Has `hear` called after each commit of a due mark from now on, and nobody else.
    func onDue(_ hear: @escaping @Sendable (Timestamp) -> Void) {
        hearers.withLock { $0.due = hear }
    }
}
