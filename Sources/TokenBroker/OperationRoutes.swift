internal import BrokerCore
internal import HTTPCodec
internal import HTTPServer
internal import JSON
internal import OAuth

/// Probes, metrics and the description of the API.
struct OperationRoutes {
    private let broker: Broker
    /// Whether only operators can reach the listener. They are shown reasons that callers are not.
    private let isForOperators: Bool

    init(_ broker: Broker, isForOperators: Bool) {
        self.broker = broker
        self.isForOperators = isForOperators
    }

    var all: [Route] {
        [
            Route(.get, "/", .open, front),
            Route(.get, "/livez", .open, live),
            Route(.get, "/healthz", .open, live),
            Route(.get, "/readyz", .open, ready),
            Route(.get, "/metrics", .open, metrics),
            Route(.get, "/openapi.yaml", .open, openAPI),
            Route(.get, "/docs", .open, page),
        ]
    }

    /// The answer of `/`: a page for browsers, JSON for programs.
    private func front(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        return FrontPage.response(
            version: broker.settings.version, hasProbes: !broker.settings.hasOperationsListener,
            prefersJSON: Accept.prefersJSON(call.request.fields)
        ).varyingByAccept
    }

    private func live(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        return Self.state(.ok, "live")
    }

    private func ready(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        switch await broker.health.readiness() {
        case .ready: return Self.state(.ok, "ready")
        case .draining: return Self.state(.serviceUnavailable, "draining")
        case .storeUnavailable:
            return Self.state(
                .serviceUnavailable, "store_unavailable", reason: isForOperators ? broker.health.reason : nil)
        }
    }

    private static func state(_ status: Status, _ text: String, reason: String? = nil) -> Response {
        Response(
            status, fields: ["Content-Type": "application/json"],
            body: JSONWriter.object { json in
                json.member("status", text)
                json.memberIfPresent("reason", reason)
            })
    }

    private func metrics(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let places = broker.core.budget.usage
        let circuits = broker.core.providers.circuitCounts
        var gauges: [Metrics.Reading] = [
            (
                "provider_circuit", "gauge",
                "Clients whose token endpoint has left their last calls without an answer, by state.",
                circuits.flatMap { provider, count in
                    [("open", count.open), ("half_open", count.halfOpen)].map { state, value in
                        (#"provider="\#(provider)",state="\#(state)""#, value)
                    }
                }
            ),
            (
                "waves", "gauge", "Tenants whose provider refuses the refresh tokens of many users at once.",
                [("", broker.core.renewer.waves.count)]
            ),
            (
                "provider_places_in_use", "gauge", "Renewals that have a place at their provider.",
                [("", places.inUse)]
            ),
            ("provider_places_waiting", "gauge", "Renewals that wait for a place.", [("", places.waiting)]),
            (
                "journal_entries", "gauge", "New credentials that wait in the journal for the store.",
                [("", broker.credentials.countInJournal)]
            ),
            (
                "journals_awaited", "gauge",
                "Journals of replicas that do not run, for which refreshes wait because the database has lost commits.",
                [("", broker.core.journals.awaitedCount)]
            ),
            ("event_listeners", "gauge", "Open streams of events.", [("", broker.events.listenerCount)]),
            (
                "public_base_url_differs", "gauge",
                "Whether another replica of the store has another public base URL than this one.",
                [("", broker.core.hasOtherBaseURL ? 1 : 0)]
            ),
            (
                "events_sent_total", "counter", "Events sent, once for each listener, by kind.",
                broker.events.sent.map { (#"kind="\#($0.kind.rawValue)""#, $0.count) }
            ),
        ]
        let caches = [
            ("credentials", broker.credentials.cacheStatistics), ("tenants", broker.tenants.statistics),
            ("api_keys", broker.keys.statistics),
        ]
        func reading(_ value: (CacheStatistics) -> Int) -> [(labels: String, value: Int)] {
            caches.map { name, statistics in (#"cache="\#(name)""#, value(statistics)) }
        }
        gauges += [
            ("cache_entries", "gauge", "Records of the store that are cached in memory.", reading(\.entries)),
            ("cache_bytes", "gauge", "Memory that the cached records use, as their limit counts it.", reading(\.bytes)),
            (
                "cache_evictions_total", "counter", "Cache entries that were removed to make room for others.",
                reading(\.evictions)
            ),
            (
                "cache_renewals_total", "counter",
                "Cache entries that were found unchanged in the store before they expired.",
                reading(\.revalidations)
            ),
        ]
        if broker.core.bus.cacheValidity.lifetime != nil {
            let isFollowing = broker.core.bus.cacheValidity.isFeedAlive(at: broker.time.monotonic)
            gauges.append(
                (
                    "change_feed_following", "gauge", "Whether the store tells of other replicas' commits at present.",
                    [("", isFollowing ? 1 : 0)]
                ))
            gauges.append(
                (
                    "changes_missed_total", "counter",
                    "Changes of cached records that were found by a check, before the store's notice of them arrived.",
                    [("", broker.core.cacheRevalidation.missedChangeCount)]
                ))
        }
        if let server = broker.currentServerStatistics {
            gauges += [
                ("http_connections", "gauge", "Connections that are open.", [("", server.connectionsOpen)]),
                ("http_connections_total", "counter", "Connections accepted.", [("", server.connectionsAccepted)]),
                (
                    "http_connections_refused_total", "counter", "Connections refused because of a limit, by limit.",
                    [Refusal.connections, .source].map { (#"reason="\#($0.name)""#, server.refusals[$0] ?? 0) }
                ),
                (
                    "http_connections_evicted_total", "counter",
                    "Connections closed to make room for another one, by their state.",
                    [
                        (#"state="waiting""#, server.connectionsEvicted),
                        (#"state="in_use""#, server.refusals[.displacement] ?? 0),
                    ]
                ),
                (
                    "http_requests_refused_total", "counter",
                    "Requests answered 503 before they were routed, by reason.",
                    [Refusal.overload, .contents].map { (#"reason="\#($0.name)""#, server.refusals[$0] ?? 0) }
                ),
                (
                    "http_connections_stalled_total", "counter",
                    "Connections reset because their peer did not read, by the limit that was reached.",
                    [
                        (#"reason="time""#, server.connectionsStalled),
                        (#"reason="answers""#, server.refusals[.answers] ?? 0),
                    ]
                ),
            ]
        }
        if let server = broker.currentOperationsStatistics {
            gauges.append(
                (
                    "operations_connections_refused_total", "counter",
                    "Connections that the listener for probes and metrics refused because of its limit.",
                    [("", (server.refusals[.connections] ?? 0) + (server.refusals[.source] ?? 0))]
                ))
        }
        if let expires = broker.currentCertificateExpiry {
            gauges.append(
                (
                    "tls_certificate_expiry_seconds", "gauge",
                    "When the listener's certificate expires, in seconds since 1970.", [("", Int(expires.seconds))]
                ))
        }
        return Response(
            .ok, fields: ["Content-Type": "text/plain; version=0.0.4; charset=utf-8"],
            body: Array(broker.metrics.text(gauges: gauges).utf8))
    }

    private func openAPI(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        return Response(.ok, fields: ["Content-Type": "application/yaml"], body: OpenAPIDescription.bytes)
    }

    private func page(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        return DescriptionPage.response
    }
}
