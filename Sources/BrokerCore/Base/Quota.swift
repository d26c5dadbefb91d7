import Reactor

/// A limit on what one caller or one tenant may use of the broker. The raw value is the label in the metrics.
package enum Quota: String, Sendable, CaseIterable {
    case logins = "login_rate"
    case deviceLogins = "device_login_rate"
    case writes = "write_rate"
    case requests = "request_rate"
    case requestsOfTenant = "tenant_request_rate"
    case requestsFromAddress = "address_request_rate"
    case pendingLogins = "pending_logins"
    case pendingDeviceLogins = "pending_device_logins"
    case pendingAppLogins = "pending_app_logins"
    case streamsOfKey = "event_streams_per_key"
    case streamsOfTenant = "event_streams_per_tenant"
    case authenticationFailures = "authentication_failure_rate"
    case appRequestsPerAddress = "app_requests_per_address"
    case appRequestsPerUser = "app_requests_per_user"

    /// The text for a refused caller.
    private var detail: String {
        switch self {
        case .logins: "The API key begins more logins a second than it may. Begin the next one later."
        case .deviceLogins: "The API key begins more device logins a second than it may. Begin the next one later."
        case .writes: "The API key changes or refreshes more credentials a second than it may. Try again later."
        case .requests: "The API key makes more requests a second than it may. Try again later."
        case .requestsOfTenant:
            "The tenant's API keys together make more requests a second than they may. Try again later."
        case .requestsFromAddress: "This address makes more requests a second than it may. Try again later."
        case .pendingLogins: "The tenant has as many pending logins as it may have. Try again when some have ended."
        case .pendingDeviceLogins:
            "The tenant has as many pending device logins as it may have. Try again when some have ended."
        case .pendingAppLogins:
            "Too many logins of the tenant's apps have come back without success, in all or from this address. Try again later."
        case .streamsOfKey:
            "The API key has as many event streams at this process as it may have. End one, or try again later."
        case .streamsOfTenant:
            "This process has as many event streams of the tenant as it takes. Listen elsewhere, or later."
        case .authenticationFailures:
            "Too many requests without a valid API key come from this address. Try again later, with a valid key."
        case .appRequestsPerAddress, .appRequestsPerUser: "rate limit exceeded, please try again later."
        }
    }

    /// The refusal of a request over this limit.
    /// - Parameter retryAfter: when the limit allows the next request; sent in whole seconds, rounded up.
    package func exceeded(retryAfter: Duration) -> BrokerError {
        let nanoseconds = max(0, retryAfter.nanoseconds)
        let seconds = max(1, (nanoseconds + 999_999_999) / 1_000_000_000)
        var error = BrokerError(.tooManyRequests, detail, retryAfter: Int(seconds))
        error.quota = self
        return error
    }
}
