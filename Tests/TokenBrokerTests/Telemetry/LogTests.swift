import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import HTTPSClient
import HTTPServer
import JSON
import OAuth
import Postgres
import Synchronization
import Testing
import TokenBroker

@Suite struct `Logging` {
    private final class Lines: Sendable {
        private let all = Mutex<[[UInt8]]>([])
        var bytes: [[UInt8]] { all.withLock { $0 } }
        func append(_ line: [UInt8]) { all.withLock { $0.append(line) } }
    }

    @Test func `a line is one JSON object with its time, level and event`() throws {
        let lines = Lines()
        let log = Log(threshold: .debug, time: ManualTime()) { lines.append($0) }
        log.info("something_happened", [.count(-3), .code(.gone), .status(Status(204)), .duration(.microseconds(7))])
        #expect(
            lines.bytes.map { String(decoding: $0, as: UTF8.self) } == [
                #"{"time":"2026-11-21T09:00:00Z","level":"info","event":"something_happened","count":-3,"#
                    + #""code":"gone","status":204,"duration_us":7}"#
            ])
    }

    @Test func `what a database meets again and again is told once a second, with how often that was`() {
        let (lines, time) = (Lines(), ManualTime())
        let log = Log(threshold: .debug, time: time) { lines.append($0) }
        let reports = DatabaseReports(log, time: time)
        func told(_ error: PostgresError) -> [Int64] {
            let before = lines.bytes.count
            reports.note(error)
            return lines.bytes[before...].compactMap { (try? JSONValue(parsing: $0))?["count"]?.integer }
        }
        // A job that is ended at a shutdown.
        #expect(told(.cancelled) == [])
        #expect(reports.lastReason == nil)
        #expect(told(.timedOut) == [1])
        for _ in 0..<3 { #expect(told(.timedOut) == []) }
        #expect(told(.server(sqlstate: "57P01")) == [1])
        time.advance(by: .milliseconds(999))
        #expect(told(.timedOut) == [])
        time.advance(by: .milliseconds(1))
        #expect(told(.timedOut) == [5])
        #expect(told(.timedOut) == [])
        #expect(told(.server(sqlstate: "57P01")) == [1])
        #expect(told(.server(sqlstate: "57P03")) == [1])
    }

    @Test(
        arguments: [
            (.json(400, #"{"error": "invalid_scope"}"#), "token_request_refused"),
            (.failure(.untrusted(.expired)), "token_request_failed"),
            (.json(200, "{}"), "token_response_unusable"),
        ] as [(ScriptedTransport.Step, String)])
    func `a token request that brings nothing is told with its tenant and its address, less the query`(
        step: ScriptedTransport.Step, event: String
    ) async throws {
        let endpoints = #""authorization": "https://id.example/a", "token": "https://id.example/t?key=hidden""#
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1", #"{"provider": "oidc", "client_id": "c1", "client_secret": "s1", "endpoints": {\#(endpoints)}}"#)
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        broker.transport.always(step)
        // By a refresh, and by a login.
        #expect(await broker.get().status >= 400)
        let login = await broker.beginLogin()
        _ = await broker.call(.get, "/login/callback?code=c&state=\(login.state)", key: nil)
        let lines = broker.log.filter { $0.contains(event) }
        #expect(lines.count >= 2)
        for line in lines {
            #expect(line.contains(#""tenant":"t1""#) && line.contains(#""address":"https://id.example/t""#), "\(line)")
            #expect(!line.contains("hidden"))
        }
    }

    @Test(arguments: LogLevel.allCases)
    func `lines below the threshold are not written`(threshold: LogLevel) {
        let lines = Lines()
        let log = Log(threshold: threshold, time: ManualTime()) { lines.append($0) }
        log.debug("debug", [])
        log.info("info", [])
        log.warning("warning", [])
        log.error("error", [])
        let expected = LogLevel.allCases.filter { $0 >= threshold }.map { "\"\($0.rawValue)\"" }
        #expect(lines.bytes.count == expected.count)
        for (line, level) in zip(lines.bytes, expected) {
            #expect(String(decoding: line, as: UTF8.self).contains(level))
        }
        for level in LogLevel.allCases { #expect(log.isEnabled(level) == (level >= threshold)) }
    }

    @Test func `a storage key is written as a digest, the same for the same key`() throws {
        let lines = Lines()
        let log = Log(threshold: .debug, time: ManualTime()) { lines.append($0) }
        let id = CredentialsID(
            tenant: try #require(TenantName("t1")), storageKey: try #require(StorageKey("bob@example.com")))
        log.info("x", LogField.credentials(id))
        log.info("x", LogField.credentials(id))
        #expect(lines.bytes[0] == lines.bytes[1])
        let text = String(decoding: lines.bytes[0], as: UTF8.self)
        #expect(text.contains(#""tenant":"t1","storage_key_digest":"#))
        #expect(!text.contains("bob"))
    }

    // H059 H108
    @Test(arguments: ["", "-", "0123456789abcdef0123456789abcdef0", "x\ny", "A", "\"", "\u{2028}"])
    func `a request's name that is not the server's own is not written`(text: String) {
        let lines = Lines()
        let log = Log(threshold: .debug, time: ManualTime()) { lines.append($0) }
        log.info("x", [.request(RequestID(text))])
        #expect(String(decoding: lines.bytes[0], as: UTF8.self).hasSuffix(#""request_id":"-"}"#))
    }

    private static let hostile = [
        "\r\n{\"level\":\"error\"}", "\u{1b}[31m", "\u{2028}", "\u{0}", "\"}\n{\"", "%0d%0a", "\u{85}", "\u{202e}",
        String(repeating: "A", count: 65_536),
    ]

    // H059
    @Test(arguments: hostile)
    func `what a stranger sends forges no line`(text: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let requests = [
            Request(method: Method(text), path: "/livez"), Request(method: .get, path: "/\(text)"),
            Request(method: .get, path: "/tenants/\(text)"), Request(method: .get, path: "/livez", query: text),
            Request(method: .get, path: "/livez", fields: ["User-Agent": text, "X-Request-ID": text]),
            Request(method: .get, path: "/tenants", fields: ["Authorization": text]),
            Request(method: .get, path: "/tenants", fields: ["Authorization": "Bearer \(text)"]),
            Request(
                method: .get, path: "/credentials",
                fields: ["Authorization": "Bearer \(BrokerHarness.adminKey)", "X-Tenant": text]),
            Request(
                method: .put, path: "/tenants/t1",
                fields: ["Authorization": "Bearer \(BrokerHarness.adminKey)", "Content-Type": text],
                body: Array(text.utf8)),
            Request(method: .get, path: "/login/callback", query: "state=\(text)&error=\(text)"),
            Request(method: .get, path: "/livez", id: text),
        ]
        for request in requests {
            let before = broker.log.count
            _ = await broker.service.respond(to: request)
            let lines = broker.log.dropFirst(before)
            // A response that is refused has a line of its own, since a browser is answered with a redirect.
            #expect(lines.count == (request.path == "/login/callback" ? 2 : 1))
            for line in lines { try Self.expectOneObject(line) }
        }
    }

    // H059
    @Test(arguments: hostile)
    func `what a provider sends forges no line`(text: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1")
        let quoted = JSONWriter.object { $0.member("error", text) }
        for step: ScriptedTransport.Step in [
            .json(400, String(decoding: quoted, as: UTF8.self)), .json(400, text),
            .json(403, #"{"error": "x"}"#, fields: ["Retry-After": text]),
        ] {
            broker.transport.enqueue(step)
            _ = await broker.get("policy=local_force_refresh")
        }
        for line in broker.log { try Self.expectOneObject(line) }
    }

    /// One line, one object, nothing that a terminal or a viewer takes for more.
    private static func expectOneObject(_ line: String) throws {
        #expect(try JSONValue(parsing: Array(line.utf8)).object?["event"]?.string != nil)
        #expect(
            !line.unicodeScalars.contains {
                $0.value < 0x20 || (0x7f...0x9f).contains($0.value) || [0x2028, 0x2029].contains($0.value)
            })
        #expect(line.utf8.count < 1000)
    }

    // H057
    @Test func `a request's line has its route, status, tenant and code and neither path nor query`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let key = await broker.makeKey()
        _ = await broker.call(.get, "/credentials?storage_key=canary-key&policy=local", key: key)
        let line = try #require(broker.log.last)
        #expect(line.contains(#""event":"request_failed""#))
        #expect(line.contains(#""method":"GET","route":"/credentials","status":404"#))
        #expect(line.contains(#""tenant":"t1","code":"missing_token_container""#))
        #expect(!broker.log.joined().contains("canary-key"))
    }

    @Test func `what changes is written down once`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let created = await broker.call(
            .post, "/tenants/t1/api-keys", body: #"{"name": "n", "permissions": ["login"]}"#)
        await broker.set("a1", refresh: "r1")
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")), .json(401, #"{"error": "invalid_client"}"#))
        _ = await broker.get("policy=local_force_refresh")
        _ = await broker.get("policy=local_force_refresh")
        _ = await broker.call(.delete, "/credentials", tenant: "t1")
        _ = await broker.call(.delete, "/tenants/t1/api-keys/\(created.json["id"]?.text ?? "")")
        _ = await broker.call(.delete, "/tenants/t1")
        for event in [
            "tenant_configured", "api_key_created", "credentials_set", "credentials_renewed",
            "session_ended_by_provider", "logout", "api_key_deleted", "tenant_deleted",
        ] {
            #expect(broker.log.filter { $0.contains(#""event":"\#(event)""#) }.count == 1, "\(event)")
        }
        for line in broker.log { try Self.expectOneObject(line) }
        let renewals = broker.log.filter { $0.contains("refresh_id") }
        #expect(renewals.count == 3)
        // The refusal and the end of the session bear one name.
        let names = renewals.compactMap { $0.firstMatch(of: /"refresh_id":"([0-9a-f-]{36})"/)?.output.1 }
        #expect(Set(names).count == 2)
    }

    @Test func `a store's failure is written down with its cause`() async throws {
        let store = FaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        store.setDown(true)
        _ = await broker.get()
        #expect(broker.log.contains { $0.contains(#""event":"store_failed""#) && $0.contains("unavailable") })
    }
}
