import BrokerCore
import BrokerTesting
import ExternalText
import HTTPCodec
import HTTPServer
import OAuth
import Reactor
import Testing

@testable import TokenBroker

/// What `GET /credentials` is read by, whether it is answered at once or waits.
@Suite struct `Reading a read of credentials` {
    // MARK: One answer by both ways

    /// Requests, without their first and last line ends: each is answered at once and by the handler, with the same result.
    private static let targets = [
        "/credentials", "/credentials?", "/credentials?&", "/credentials?storage_key=default",
        "/credentials?storage_key=user-2", "/credentials?storage_key=user%2D2", "/credentials?storage%5fkey=user-2",
        "/credentials?storage_key=nobody", "/credentials?storage_key=", "/credentials?storage_key",
        "/credentials?storage_key=a+b", "/credentials?storage_key=a%20b",
        "/credentials?storage_key=%ff", "/credentials?storage_key=a/b", "/credentials?storage_key=a&storage_key=b",
        "/credentials?storage_key=user-2&storage_key=user-2", "/credentials?level=user", "/credentials?level=basic",
        "/credentials?level=client", "/credentials?level=User", "/credentials?level=", "/credentials?level=us%65r",
        "/credentials?policy=local", "/credentials?policy=local_valid", "/credentials?policy=create_if_needed",
        "/credentials?policy=none", "/credentials?min_ttl=0", "/credentials?min_ttl=00060", "/credentials?min_ttl=60",
        "/credentials?min_ttl=3599", "/credentials?min_ttl=3600", "/credentials?min_ttl=86400",
        "/credentials?min_ttl=86401", "/credentials?min_ttl=-1", "/credentials?min_ttl=1.5", "/credentials?min_ttl=+1",
        "/credentials?min_ttl=%36%30", "/credentials?min_ttl=9999999999999999999",
        "/credentials?api_error_sub_status=1", "/credentials?api_error_sub_status=", "/credentials?unknown=1",
        "/credentials?a=1&a=2&b", "/credentials?level=x&min_ttl=x&policy=x&storage_key=%20&z&a&a",
        "/credentials?min_ttl=60&storage_key=user-2&level=user&policy=local_valid&&",
        "/credentials?" + String(repeating: "n", count: 128), "/credentials?" + String(repeating: "n", count: 129),
        "/credentials?" + (0..<128).map { "p\($0)" }.joined(separator: "&"),
        "/credentials?" + (0..<129).map { "p\($0)" }.joined(separator: "&"),
    ]

    private static let fields: [(name: String, value: String)] = [
        ("If-None-Match", "TAG"), ("If-None-Match", "W/TAG"), ("if-none-match", "\"1\", TAG"),
        ("If-None-Match", "*"), ("If-None-Match", ""), ("If-None-Match", ",, W/ ,TAG"), ("If-None-Match", "TAGx"),
        ("If-None-Match", "\"0\""), ("X-Tenant", "t1"), ("X-Tenant", "t2"), ("X-Tenant", ""), ("Prefer", "wait=1"),
        ("Prefer", "wait=x"), ("Prefer", "respond-async"), ("DPoP-Htm", "GET"), ("dpop-htu", "https://a.example/"),
        ("Accept", "*/*"), ("Connection", "keep-alive"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), ("Authorization", "Bearer x"),
    ]

    private static func expectSame(
        _ server: WarmServer, _ target: String, _ fields: [(name: String, value: String)],
        _ sourceLocation: SourceLocation = #_sourceLocation
    ) async throws {
        let tag = await server.harness.call(.get, "/credentials", key: server.key).fields["ETag"]?.text ?? ""
        let fields = fields.map { ($0.name, $0.value.replacing("TAG", with: tag)) }
        let lines = fields.map { "\($0.0): \($0.1)\r\n" }.joined()
        try await server.client.send(
            "GET \(target) HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer \(server.key)\r\n\(lines)\r\n")
        let quick = try await server.client.response()
        var headFields: Fields = [:]
        for (name, value) in fields { headFields.append(name, value) }
        let usual = await server.harness.call(.get, target, key: server.key, fields: headFields)
        #expect(quick.status.code == usual.status, "\(target) \(fields)", sourceLocation: sourceLocation)
        #expect(String(decoding: quick.body, as: UTF8.self) == usual.text, sourceLocation: sourceLocation)
        let added: Set<WireText> = [
            "Date", "X-Content-Type-Options", "X-Request-ID", "Content-Length", "Connection",
        ]
        let own = quick.fields.all.filter { !added.contains($0.name) }
        #expect(own == usual.fields.all, "\(target) \(fields)", sourceLocation: sourceLocation)
        #expect(
            quick.fields.values("Content-Length").map(\.text) == (usual.status == 304 ? [] : ["\(usual.body.count)"]))
    }

    @Test func `gives one answer, at once or not`() async throws {
        try await withWarmServer { server async throws in
            try await server.store("user-2")
            for target in Self.targets {
                for held in [false, true] {
                    try await Self.expectSame(server, target, held ? [("If-None-Match", "TAG")] : [])
                }
            }
            for field in Self.fields { try await Self.expectSame(server, "/credentials?min_ttl=60", [field]) }
            // Some were, and some were not.
            #expect(server.usual() > 20)
            let before = server.usual()
            for _ in 0..<3 { try await Self.expectSame(server, "/credentials?storage_key=user-2", []) }
            #expect(server.usual() == before)
        }
    }

    @Test func `gives one answer while time passes and configurations change`() async throws {
        try await withWarmServer { server async throws in
            try await server.store("user-2")
            for step in [
                Duration.milliseconds(999), .milliseconds(1), .seconds(60), .seconds(3470), .seconds(68), .seconds(1),
            ] {
                server.harness.time.advance(by: step)
                for target in ["/credentials?storage_key=user-2", "/credentials?storage_key=user-2&min_ttl=0"] {
                    try await Self.expectSame(server, target, [])
                }
            }
            try await server.store("user-2")
            for tenant in [
                #"{"client_id": "c1", "scopes": ["r_usr"], "refresh_lead_time": 600}"#, #"{"client_id": "c2"}"#,
            ] {
                await server.harness.makeTenant("t1", tenant)
                try await Self.expectSame(server, "/credentials?storage_key=user-2", [])
                try await Self.expectSame(server, "/credentials?storage_key=user-2&level=user", [])
            }
        }
    }

    // MARK: Parts

    @Test(
        arguments: [
            ("Bearer k", "k"), ("bearer k", "k"), ("BEARER abc.~", "abc.~"), ("Bearer  k", "k"), ("Bearer k k", nil),
            ("Bearer ", nil), ("Bearer   ", nil), ("Bearer", nil), ("Basic k", nil), ("Bearerk", nil), ("", nil),
            ("Bearer k\u{7f}", nil), ("Bearer \u{e9}", nil), ("Bearer\tk", nil), ("Bearer k\t", nil),
        ] as [(String, String?)])
    func `finds a bearer token in the value of a field, or does not`(value: String, token: String?) {
        let bytes = Array("x\(value)y".utf8)
        let range = BearerToken.find(bytes.span, 1..<bytes.count - 1)
        #expect(range.map { String(decoding: bytes[$0], as: UTF8.self) } == token)
    }

    @Test func `takes a token of 512 bytes at most`() {
        for (count, isToken) in [(1, true), (511, true), (512, true), (513, false)] {
            let bytes = Array(("Bearer " + String(repeating: "k", count: count)).utf8)
            #expect((BearerToken.find(bytes.span, 0..<bytes.count) != nil) == isToken)
        }
    }

    @Test(
        arguments: [
            (["\"5\""], true, 5), (["W/\"5\""], true, 5), (["*"], true, nil), (["W/*"], true, nil), ([], false, nil),
            ([""], false, nil), ([","], false, nil), (["\"6\""], false, 6), (["5"], false, nil),
            (["\"4\" , \"5\""], true, 5), (["\"4\"", "\"7\",\"5\""], true, 7), (["\"5-6\""], false, 5),
            (["\"\""], false, nil), (["W/"], false, nil), (["\"9223372036854775807\""], false, .max),
            (["\"9223372036854775808\""], false, nil), (["\"00000000000000000005\""], false, nil),
            (["\"5"], false, 5), (["w/\"5\""], false, nil),
        ] as [([String], Bool, Int64?)])
    func `reads entity tags`(values: [String], matches: Bool, version: Int64?) {
        var fields: Fields = ["If-Match": "\"5\""]
        for value in values { fields.append("If-None-Match", value) }
        let bytes = fields.bytes
        #expect(EntityTags.contain("\"5\"".utf8.span, fields.lines.span, bytes.span) == matches)
        #expect(EntityTags.version(fields.lines.span, bytes.span) == version)
    }

    @Test(arguments: [
        ("a=%zz&storage_key=b", "query"), ("storage_key=a&storage_key=b", "storage_key occurs more than once"),
        ("x=1", "x is not a known parameter"), ("level=none", "level must be one of"),
        ("min_ttl=", "min_ttl must be a whole number from 0 to 86400"), ("policy=", "policy must be one of"),
        ("storage_key=%20", "storage_key must be 1 to 200 characters"),
    ])
    func `says what is wrong with a query`(query: String, detail: String) {
        do throws(BrokerError) {
            _ = try CredentialsParameters(query.utf8.span)
            Issue.record("\(query) is taken")
        } catch {
            #expect(error.code == .invalidRequest)
            #expect(error.detail.contains(detail), "\(error.detail)")
        }
    }

    @Test func `tells all faults of a query, in the order of the parameters`() {
        do throws(BrokerError) {
            _ = try CredentialsParameters(
                "z&level=x&a&min_ttl=x&policy=x&a&storage_key=%20&level=y&api_error_sub_status".utf8.span)
            Issue.record("it is taken")
        } catch {
            #expect(
                error.faults.map(\.pointer)
                    == ["a", "level", "storage_key", "policy", "level", "min_ttl", "a", "z"])
        }
    }
}
