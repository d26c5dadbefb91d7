package import OAuth

/// Tells listeners in this process that the log of events has grown.
package final class EventBus: Sendable {
    private let signals = Signals<TenantName>()

    package init() {}

    /// Something of the tenant's was committed to the log.
    package func announce(_ tenant: TenantName) {
        signals.signal(tenant)
    }
}
