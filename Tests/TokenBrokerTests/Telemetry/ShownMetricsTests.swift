import BrokerCore
import BrokerTesting
import CredentialStore
import HTTPCodec
import HTTPServer
import OAuth
import Testing
import TokenBroker

/// The part of `/metrics` that is read from the parts of the broker which count it.
@Suite struct `Metrics that their owners count` {
    private static let beforeEvents = """
        # HELP token_broker_provider_circuit Clients whose token endpoint has left their last calls without an \
        answer, by state.
        # TYPE token_broker_provider_circuit gauge
        # HELP token_broker_waves Tenants whose provider refuses the refresh tokens of many users at once.
        # TYPE token_broker_waves gauge
        token_broker_waves 0
        # HELP token_broker_provider_places_in_use Renewals that have a place at their provider.
        # TYPE token_broker_provider_places_in_use gauge
        token_broker_provider_places_in_use 0
        # HELP token_broker_provider_places_waiting Renewals that wait for a place.
        # TYPE token_broker_provider_places_waiting gauge
        token_broker_provider_places_waiting 0
        # HELP token_broker_journal_entries New credentials that wait in the journal for the store.
        # TYPE token_broker_journal_entries gauge
        token_broker_journal_entries 0
        # HELP token_broker_journals_awaited Journals of replicas that do not run, for which refreshes wait \
        because the database has lost commits.
        # TYPE token_broker_journals_awaited gauge
        token_broker_journals_awaited 0
        # HELP token_broker_event_listeners Open streams of events.
        # TYPE token_broker_event_listeners gauge
        token_broker_event_listeners 0
        # HELP token_broker_public_base_url_differs Whether another replica of the store has another public \
        base URL than this one.
        # TYPE token_broker_public_base_url_differs gauge
        token_broker_public_base_url_differs 0
        # HELP token_broker_events_sent_total Events sent, once for each listener, by kind.
        # TYPE token_broker_events_sent_total counter
        """

    private static let fromCaches = """
        # HELP token_broker_cache_entries Records of the store that are cached in memory.
        # TYPE token_broker_cache_entries gauge
        token_broker_cache_entries{cache="credentials"} 0
        token_broker_cache_entries{cache="tenants"} 0
        token_broker_cache_entries{cache="api_keys"} 0
        # HELP token_broker_cache_bytes Memory that the cached records use, as their limit counts it.
        # TYPE token_broker_cache_bytes gauge
        token_broker_cache_bytes{cache="credentials"} 0
        token_broker_cache_bytes{cache="tenants"} 0
        token_broker_cache_bytes{cache="api_keys"} 0
        # HELP token_broker_cache_evictions_total Cache entries that were removed to make room for others.
        # TYPE token_broker_cache_evictions_total counter
        token_broker_cache_evictions_total{cache="credentials"} 0
        token_broker_cache_evictions_total{cache="tenants"} 0
        token_broker_cache_evictions_total{cache="api_keys"} 0
        # HELP token_broker_cache_renewals_total Cache entries that were found unchanged in the store before \
        they expired.
        # TYPE token_broker_cache_renewals_total counter
        token_broker_cache_renewals_total{cache="credentials"} 0
        token_broker_cache_renewals_total{cache="tenants"} 0
        token_broker_cache_renewals_total{cache="api_keys"} 0
        # HELP token_broker_change_feed_following Whether the store tells of other replicas' commits at present.
        # TYPE token_broker_change_feed_following gauge
        token_broker_change_feed_following 0
        # HELP token_broker_changes_missed_total Changes of cached records that were found by a check, before \
        the store's notice of them arrived.
        # TYPE token_broker_changes_missed_total counter
        token_broker_changes_missed_total 0
        # HELP token_broker_http_connections Connections that are open.
        # TYPE token_broker_http_connections gauge
        token_broker_http_connections 3
        # HELP token_broker_http_connections_total Connections accepted.
        # TYPE token_broker_http_connections_total counter
        token_broker_http_connections_total 5
        # HELP token_broker_http_connections_refused_total Connections refused because of a limit, by limit.
        # TYPE token_broker_http_connections_refused_total counter
        token_broker_http_connections_refused_total{reason="connections"} 2
        token_broker_http_connections_refused_total{reason="source"} 6
        # HELP token_broker_http_connections_evicted_total Connections closed to make room for another one, by \
        their state.
        # TYPE token_broker_http_connections_evicted_total counter
        token_broker_http_connections_evicted_total{state="waiting"} 4
        token_broker_http_connections_evicted_total{state="in_use"} 8
        # HELP token_broker_http_requests_refused_total Requests answered 503 before they were routed, by reason.
        # TYPE token_broker_http_requests_refused_total counter
        token_broker_http_requests_refused_total{reason="overload"} 7
        token_broker_http_requests_refused_total{reason="contents"} 0
        # HELP token_broker_http_connections_stalled_total Connections reset because their peer did not read, \
        by the limit that was reached.
        # TYPE token_broker_http_connections_stalled_total counter
        token_broker_http_connections_stalled_total{reason="time"} 10
        token_broker_http_connections_stalled_total{reason="answers"} 9
        # HELP token_broker_operations_connections_refused_total Connections that the listener for probes and \
        metrics refused because of its limit.
        # TYPE token_broker_operations_connections_refused_total counter
        token_broker_operations_connections_refused_total 8
        # HELP token_broker_tls_certificate_expiry_seconds When the listener's certificate expires, in seconds \
        since 1970.
        # TYPE token_broker_tls_certificate_expiry_seconds gauge
        token_broker_tls_certificate_expiry_seconds 1700000000
        """

    @Test func `are shown with these names and texts, in this order`() async throws {
        let broker = try await BrokerHarness(store: FaultyStore(revalidateAfter: .seconds(5)))
        broker.broker.observe {
            var counts = ServerStatistics()
            (counts.connectionsOpen, counts.connectionsAccepted, counts.connectionsEvicted) = (3, 5, 4)
            counts.refusals = [.connections: 2, .source: 6, .displacement: 8, .overload: 7, .answers: 9]
            counts.connectionsStalled = 10
            return counts
        }
        broker.broker.observeOperations {
            var counts = ServerStatistics()
            counts.refusals = [.connections: 2, .source: 6]
            return counts
        }
        broker.broker.observeCertificate { Timestamp(seconds: 1_700_000_000) }
        let lines = await broker.call(.get, "/metrics", key: nil).text.split(separator: "\n").map(String.init)
        let first = try #require(lines.firstIndex { $0.hasPrefix("# HELP token_broker_provider_circuit ") })
        let events = BrokerEvent.Kind.allCases.map { "token_broker_events_sent_total{kind=\"\($0.rawValue)\"} 0" }
        let wanted =
            Self.beforeEvents.split(separator: "\n").map(String.init) + events
            + Self.fromCaches.split(separator: "\n").map(String.init)
        // Other tests of this process have read profiles.
        #expect(lines[first...].filter { !$0.hasPrefix("token_broker_provider_circuit{") } == wanted)
    }

    @Test func `are left out where there is nothing that counts them`() async throws {
        let text = await (try await BrokerHarness()).call(.get, "/metrics", key: nil).text
        for name in [
            "change_feed_following", "changes_missed_total", "http_connections", "tls_certificate_expiry_seconds",
        ] {
            #expect(!text.contains("token_broker_\(name) "), "\(name)")
        }
        #expect(text.contains("token_broker_waves 0"))
    }

    @Test func `are those of the owner that was registered last, while it lives`() {
        final class Owner: Sendable {}
        let metrics = Metrics()
        metrics.show(.waves) { 1 }
        var owner: Owner? = Owner()
        metrics.show(.waves) { [weak owner] in owner.map { _ in 2 } }
        #expect(metrics.text().hasSuffix("\ntoken_broker_waves 2\n"))
        owner = nil
        #expect(!metrics.text().contains("token_broker_waves"))
    }
}
