import BrokerCore
import Testing

@Suite struct `Series that are known in advance` {
    private static func requests(_ metrics: Metrics) -> [String] {
        metrics.text().split(separator: "\n").filter { $0.contains("http_requests_total{") }.map(String.init)
    }

    @Test func `are in each text with 0, whenever their routes were made known`() {
        let metrics = Metrics()
        metrics.expect([("/early", "GET")])
        let first = Self.requests(metrics)
        #expect(first.contains(#"token_broker_http_requests_total{route="/early",method="GET",code="200"} 0"#))
        metrics.expect([("/late", "PUT")])
        let second = Self.requests(metrics)
        #expect(second.contains(#"token_broker_http_requests_total{route="/late",method="PUT",code="200"} 0"#))
        #expect(second.count == 2 * first.count)
        #expect(Self.requests(metrics) == second)
    }

    @Test func `keep what was counted before the first text`() {
        let metrics = Metrics()
        metrics.expect([("/a", "GET")])
        metrics.requestAnswered(route: "/a", method: "GET", status: 200, took: .zero)
        metrics.refused(over: .requests)
        let text = metrics.text()
        #expect(text.contains(#"token_broker_http_requests_total{route="/a",method="GET",code="200"} 1"#))
        #expect(text.contains(#"token_broker_http_requests_total{route="/a",method="GET",code="201"} 0"#))
        #expect(text.contains("token_broker_quota_refusals_total{") && text.contains("token_broker_logins_total{"))
    }
}
