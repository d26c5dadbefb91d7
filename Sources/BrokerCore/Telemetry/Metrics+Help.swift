/// What the metrics are, in the order in which `GET /metrics` shows them.
extension Metrics {
    /// What is counted here.
    static let help: [(name: String, type: String, text: String)] = [
        ("http_requests_total", "counter", "Requests answered, by route, method and status."),
        ("http_request_duration_seconds", "histogram", "From a request's last byte to its answer."),
        ("token_reads_total", "counter", "GET /credentials, by how it was answered."),
        ("refresh_total", "counter", "Renewals of credentials, by grant and how they ended."),
        ("refresh_duration_seconds", "histogram", "Renewals of credentials, retries included."),
        (
            "refresh_outcome_unknown_total", "counter",
            "Refresh tokens presented again because the answer to an earlier call was lost."
        ),
        (
            "client_refused_total", "counter",
            "Requests for renewals that providers refused because of the client's registration."
        ),
        ("subject_changed_total", "counter", "Refreshes that brought another user's token, which was dropped."),
        ("refresh_lease_wait_seconds", "histogram", "Waits for another replica's renewal."),
        ("proactive_refresh_total", "counter", "Renewals before expiry without a caller's request, by how they ended."),
        ("provider_requests_total", "counter", "Requests to providers, by endpoint and status."),
        ("provider_request_duration_seconds", "histogram", "One exchange with a provider."),
        (
            "provider_calls_spared_total", "counter",
            "Calls that were not made because the provider had left the last ones without an answer."
        ),
        ("credentials_held_total", "counter", "Credentials held because a provider refused many users at once."),
        ("logins_total", "counter", "Logins, by flow and how they ended."),
        ("device_polls_total", "counter", "Polls for device logins, by answer."),
        ("quota_refusals_total", "counter", "Requests answered 429, by the limit that they exceeded."),
        ("store_failures_total", "counter", "Calls of the store while it was away, by what was asked of it."),
        ("authentication_failures_total", "counter", "Requests without a valid key, by how they were answered."),
        (
            "workload_tokens_unverified_total", "counter",
            "Tokens of workloads that were answered 503, because no key was there that could verify them."
        ),
        (
            "login_failures_untold_total", "counter",
            "Failures of logins that browsers without a key had begun, beyond those that events tell of."
        ),
        ("records_put_back_total", "counter", "Records found in the store that had ended before, and were not used."),
    ]

    /// A metric that its owner counts; see `show`. Those whose names end with `_total` are counters, the others gauges.
    package enum Shown: String, CaseIterable {
        case providerCircuit = "provider_circuit"
        case waves
        case providerPlacesInUse = "provider_places_in_use"
        case providerPlacesWaiting = "provider_places_waiting"
        case journalEntries = "journal_entries"
        case journalsAwaited = "journals_awaited"
        case eventListeners = "event_listeners"
        case publicBaseURLDiffers = "public_base_url_differs"
        case eventsSent = "events_sent_total"
        case cacheEntries = "cache_entries"
        case cacheBytes = "cache_bytes"
        case cacheEvictions = "cache_evictions_total"
        case cacheRenewals = "cache_renewals_total"
        case changeFeedFollowing = "change_feed_following"
        case changesMissed = "changes_missed_total"
        case httpConnections = "http_connections"
        case httpConnectionsTotal = "http_connections_total"
        case httpConnectionsRefused = "http_connections_refused_total"
        case httpConnectionsEvicted = "http_connections_evicted_total"
        case httpRequestsRefused = "http_requests_refused_total"
        case httpConnectionsStalled = "http_connections_stalled_total"
        case operationsConnectionsRefused = "operations_connections_refused_total"
        case tlsCertificateExpirySeconds = "tls_certificate_expiry_seconds"

        var type: String { rawValue.utf8.suffix(6).elementsEqual("_total".utf8) ? "counter" : "gauge" }

        var help: String {
            switch self {
            case .providerCircuit: "Clients whose token endpoint has left their last calls without an answer, by state."
            case .waves: "Tenants whose provider refuses the refresh tokens of many users at once."
            case .providerPlacesInUse: "Renewals that have a place at their provider."
            case .providerPlacesWaiting: "Renewals that wait for a place."
            case .journalEntries: "New credentials that wait in the journal for the store."
            case .journalsAwaited:
                "Journals of replicas that do not run, for which refreshes wait because the database has lost commits."
            case .eventListeners: "Open streams of events."
            case .publicBaseURLDiffers:
                "Whether another replica of the store has another public base URL than this one."
            case .eventsSent: "Events sent, once for each listener, by kind."
            case .cacheEntries: "Records of the store that are cached in memory."
            case .cacheBytes: "Memory that the cached records use, as their limit counts it."
            case .cacheEvictions: "Cache entries that were removed to make room for others."
            case .cacheRenewals: "Cache entries that were found unchanged in the store before they expired."
            case .changeFeedFollowing: "Whether the store tells of other replicas' commits at present."
            case .changesMissed:
                "Changes of cached records that were found by a check, before the store's notice of them arrived."
            case .httpConnections: "Connections that are open."
            case .httpConnectionsTotal: "Connections accepted."
            case .httpConnectionsRefused: "Connections refused because of a limit, by limit."
            case .httpConnectionsEvicted: "Connections closed to make room for another one, by their state."
            case .httpRequestsRefused: "Requests answered 503 before they were routed, by reason."
            case .httpConnectionsStalled:
                "Connections reset because their peer did not read, by the limit that was reached."
            case .operationsConnectionsRefused:
                "Connections that the listener for probes and metrics refused because of its limit."
            case .tlsCertificateExpirySeconds: "When the listener's certificate expires, in seconds since 1970."
            }
        }
    }
}
