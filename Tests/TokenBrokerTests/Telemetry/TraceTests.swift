import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import OAuth
import Reactor
import Testing
import TokenBroker

@Suite struct `Traces` {
    private static let trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    private static let parent = "00f067aa0ba902b7"
    private static let field = "00-\(trace)-\(parent)-01"

    private static func expired() async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1", lifetime: .seconds(1))
        return broker
    }

    /// The lines that were written since, with their traces.
    private static func traces(_ lines: some Sequence<String>) -> [String?] {
        lines.map { line in (try? JSONValue(parsing: Array(line.utf8)))?["trace_id"]?.text }
    }

    // H108
    @Test func `a request's trace is in each line that it causes, and in its calls to the provider`() async throws {
        let broker = try await Self.expired()
        broker.transport.enqueue(.json(503, "{}"), .json(200, BrokerHarness.token("a2", refresh: "r2")))
        let before = broker.log.count
        let answer = await broker.get("policy=local_force_refresh", fields: ["traceparent": Self.field])
        #expect(answer.token == "a2")
        let lines = broker.log.dropFirst(before)
        #expect(lines.contains { $0.contains("credentials_renewed") })
        #expect(Set(Self.traces(lines)) == [Self.trace])
        let sent = broker.transport.seen.compactMap { $0.fields["traceparent"]?.text }
        #expect(sent.count == 2)
        for text in sent {
            #expect(text.wholeMatch(of: /00-4bf92f3577b34da6a3ce929d0e0e4736-[0-9a-f]{16}-01/) != nil, "\(text)")
            #expect(!text.contains(Self.parent) && !text.contains("-0000000000000000-"))
        }
        #expect(Set(sent).count == 2)
    }

    @Test func `a request without one is logged and passed on without one`() async throws {
        let broker = try await Self.expired()
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        _ = await broker.get("policy=local_force_refresh")
        #expect(Self.traces(broker.log).allSatisfy { $0 == nil })
        #expect(broker.transport.seen.allSatisfy { !$0.fields.contains("traceparent") })
    }

    @Test func `whether the caller records the trace is passed on, and nothing else of the flags`() async throws {
        for (flags, passed) in [("00", "00"), ("01", "01"), ("03", "01"), ("fe", "00"), ("ff", "01")] {
            let broker = try await Self.expired()
            broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
            _ = await broker.get(fields: ["traceparent": "00-\(Self.trace)-\(Self.parent)-\(flags)"])
            let sent = try #require(broker.transport.seen.first?.fields["traceparent"]?.text)
            #expect(sent.hasSuffix("-\(passed)"), "\(flags)")
        }
    }

    // H108
    @Test(arguments: [
        "", "x", "00", trace, "00-\(trace)-\(parent)", "00-\(trace)-\(parent)-1", "00-\(trace)-\(parent)-01-",
        "00-\(trace)-\(parent)-01-more", "00-\(trace)-\(parent)-0g", "ff-\(trace)-\(parent)-01",
        "00-\(trace.uppercased())-\(parent)-01", "00-00000000000000000000000000000000-\(parent)-01",
        "00-\(trace)-0000000000000000-01", "00_\(trace)-\(parent)-01", "0-\(trace)-\(parent)-01",
        "00-\(trace)a-\(parent)-01", "01-\(trace)-\(parent)-01x", "00-\(trace)-\(parent)-01, 00-\(trace)-\(parent)-01",
        "\u{0}0-\(trace)-\(parent)-01", "01-\(trace)-\(parent)-01-\(String(repeating: "a", count: 600))",
    ])
    func `one that is not well-formed is as good as none`(text: String) async throws {
        #expect(TraceContext(["traceparent": text]) == nil)
        let broker = try await Self.expired()
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get(fields: ["traceparent": text]).token == "a2")
        #expect(Self.traces(broker.log).allSatisfy { $0 == nil })
        #expect(broker.transport.seen.allSatisfy { !$0.fields.contains("traceparent") })
    }

    @Test func `a later version may say more, and two fields say nothing`() {
        let later = TraceContext(["traceparent": "01-\(Self.trace)-\(Self.parent)-01-more"])
        #expect(later?.traceID == Self.trace)
        #expect(TraceContext(["traceparent": "cc-\(Self.trace)-\(Self.parent)-01"])?.traceID == Self.trace)
        #expect(TraceContext(["traceparent": Self.field, "Traceparent": Self.field]) == nil)
        #expect(TraceContext(Fields()) == nil)
    }

    @Test func `a device login's polls belong to no caller's request`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        broker.time.holdSleeps()
        broker.transport.enqueue(
            .json(
                200,
                #"{"device_code": "d", "user_code": "u", "verification_uri": "https://v.example", "expires_in": 300, "#
                    + #""interval": 5}"#))
        let begun = await broker.call(
            .post, "/device", tenant: "t1", body: "{}", fields: ["traceparent": Self.field])
        #expect(begun.status == 201)
        #expect(broker.transport.seen.last?.fields["traceparent"]?.text.contains(Self.trace) == true)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a1", refresh: "r1")))
        await broker.time.sleepers(of: .seconds(5))
        broker.time.advance(by: .seconds(5))
        let handle = try #require(begun.json["device_code"]?.text)
        #expect(await broker.call(.get, "/device/\(handle)?wait=60", tenant: "t1").json["status"]?.text == "completed")
        let poll = try #require(broker.transport.seen.last)
        #expect(poll.form["grant_type"] == "urn:ietf:params:oauth:grant-type:device_code")
        #expect(!poll.fields.contains("traceparent"))
    }
}

@Suite struct `A request's line` {
    @Test func `has the API key's identifier, its tenant and the address that the request came from`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let made = await broker.call(
            .post, "/tenants/t1/api-keys", body: #"{"name": "k", "permissions": ["credentials:read"]}"#)
        let id = try #require(made.json["id"]?.text)
        let secret = try #require(made.json["api_key"]?.text)
        let request = Request(
            method: .get, path: "/credentials/status", fields: ["Authorization": "Bearer \(secret)"],
            client: NetworkAddress(parsing: Array("2001:db8::7".utf8)[...]))
        #expect(await broker.service.respond(to: request).status == .ok)
        let line = try #require(broker.log.last)
        #expect(line.contains(#""peer":"2001:db8::7","api_key":"\#(id)","tenant":"t1""#))
        #expect(!line.contains(secret))
    }

    @Test(arguments: [(NetworkAddress.unspecified, #""peer":"unix""#), (nil, "")] as [(NetworkAddress?, String)])
    func `says where a peer has no address`(address: NetworkAddress?, text: String) async throws {
        let broker = try await BrokerHarness()
        _ = await broker.service.respond(to: Request(method: .get, path: "/livez", client: address))
        let line = try #require(broker.log.last)
        #expect(text.isEmpty ? !line.contains("peer") : line.contains(text))
    }

    @Test(
        arguments: [
            ("/credentials/status", "t1", true), ("/credentials/status", "t9", false), ("/tenants/t1", nil, true),
            ("/tenants", nil, false), ("/credentials/status", "\"}{", false),
        ] as [(String, String?, Bool)])
    func `has the tenant that an operator's request names, where there is one`(
        path: String, tenant: String?, isTold: Bool
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        _ = await broker.call(.get, path, tenant: tenant)
        let line = try #require(broker.log.last)
        #expect(line.contains(#""admin":"admin""#))
        #expect(line.contains(#""tenant":"\#(tenant ?? "t1")""#) == isTold)
    }

    @Test func `of a change to API keys names the key`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let made = await broker.call(
            .post, "/tenants/t1/api-keys", body: #"{"name": "k", "permissions": ["login"]}"#)
        let id = try #require(made.json["id"]?.text)
        #expect(await broker.call(.post, "/tenants/t1/api-keys/\(id)/rotate").status == 201)
        #expect(await broker.call(.delete, "/tenants/t1/api-keys/\(id)").status == 204)
        for event in ["api_key_created", "api_key_rotated", "api_key_deleted"] {
            #expect(broker.log.contains { $0.contains(#""event":"\#(event)","tenant":"t1","api_key":"\#(id)""#) })
        }
    }
}
