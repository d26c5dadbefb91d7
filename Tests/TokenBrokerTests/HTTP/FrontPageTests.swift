import BrokerTesting
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import Testing
import TokenBroker

@Suite struct `The page at the root` {
    @Test func `leads a browser on`() async throws {
        let broker = try await BrokerHarness { $0.version = "1.2.3" }
        let answer = await broker.call(.get, "/", key: nil, fields: ["Accept": "text/html,*/*;q=0.8"])
        #expect(answer.status == 200)
        #expect(answer.fields["Content-Type"] == "text/html; charset=utf-8")
        for path in ["/docs", "/openapi.yaml", "/healthz", "/metrics"] {
            #expect(answer.text.contains("href=\"\(path)\""), "\(path)")
        }
        #expect(answer.text.contains("Version 1.2.3"))
        // Those of the pages of logins.
        let page = await broker.call(.get, "/login/callback", key: nil, fields: ["Accept": "text/html"])
        for name in ["Cache-Control", "Referrer-Policy", "Content-Security-Policy"] {
            #expect(answer.fields[name] != nil && answer.fields[name] == page.fields[name], "\(name)")
        }
        #expect(!answer.text.contains("http") || !answer.text.contains("://"))
        #expect(await broker.call(.head, "/", key: nil).status == 200)
    }

    @Test(arguments: ["text/html", "application/json", nil])
    func `says that it depends on what the client takes`(accept: String?) async throws {
        let broker = try await BrokerHarness()
        let fields: Fields = accept.map { ["Accept": $0] } ?? [:]
        for path in ["/", "/login/callback?code=c", "/login/callback/t1?error=e"] {
            let answer = await broker.call(.get, path, key: nil, fields: fields)
            #expect(answer.fields["Vary"] == "Accept", "\(path) \(answer.status)")
        }
    }

    @Test func `is JSON for who prefers it`() async throws {
        let broker = try await BrokerHarness { $0.version = "1.2.3" }
        let answer = await broker.call(.get, "/", key: nil, fields: ["Accept": "application/json"])
        #expect(answer.status == 200)
        #expect(answer.fields["Content-Type"] == "application/json")
        #expect(
            answer.text
                == #"{"service":"token-broker","version":"1.2.3","docs":"/docs","openapi":"/openapi.yaml","#
                + #""healthz":"/healthz","readyz":"/readyz","metrics":"/metrics"}"#)
    }

    @Test func `names no probes where another listener answers them, and is not there`() async throws {
        let broker = try await BrokerHarness { $0.hasOperationsListener = true }
        let answer = await broker.call(.get, "/", key: nil, fields: ["Accept": "application/json"])
        #expect(answer.text == #"{"service":"token-broker","docs":"/docs","openapi":"/openapi.yaml"}"#)
        let operations = Service(broker.broker, scope: .operations)
        #expect(await operations.respond(to: Request(method: .get, path: "/")).status == .notFound)
        #expect(await broker.call(.get, "/?a=b", key: nil).status == 400)
        #expect(await broker.call(.post, "/", key: nil).code == "method_not_allowed")
    }
}
