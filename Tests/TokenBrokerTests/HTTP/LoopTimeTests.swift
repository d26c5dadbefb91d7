import BrokerTesting
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import Reactor
import Testing
import TokenBroker

/// No request holds an event loop. Measured is the time on a processor of the loop's own thread, over a real socket: what
/// else runs on the machine is not in it.
@Suite(.timeLimit(.minutes(10))) struct `Time on the event loop` {
    /// The longest stretch that a request may take of its loop without a look at other connections, in nanoseconds.
    #if DEBUG
        /// Code that is not optimized takes five to twenty times as long.
        private static let longestStretch: Int64 = 100_000_000
    #else
        private static let longestStretch: Int64 = 10_000_000
    #endif

    private struct Request {
        let name: String
        /// The whole request for a text of so many bytes.
        let make: (Int) -> [UInt8]
        /// The text's largest size.
        let size: Int
        /// How many requests that is.
        var answers: (Int) -> Int = { _ in 1 }
        var method = Method.get
    }

    private static let key = BrokerHarness.adminKey
    /// As large as a field can be in a head of 16 KiB.
    private static let field = 14_000
    /// As large as a query can be in a request line of 8 KiB.
    private static let query = 7600
    /// As large as a form can be.
    private static let form = 65_000
    /// As large as a body can be.
    private static let body = 1_000_000

    private static func get(_ target: String, _ fields: String = "") -> [UInt8] {
        head("GET", target, fields)
    }

    private static func head(_ method: String, _ target: String, _ fields: String) -> [UInt8] {
        let own = fields.utf8.starts(with: "Authorization".utf8) ? "" : "Authorization: Bearer \(key)\r\n"
        let tenant = fields.utf8.starts(with: "X-Tenant".utf8) ? "" : "X-Tenant: t1\r\n"
        return Array("\(method) \(target) HTTP/1.1\r\nHost: a\r\n\(own)\(tenant)\(fields)\r\n".utf8)
    }

    private static func post(
        _ target: String, _ body: String, type: String = "application/json", method: String = "POST"
    ) -> [UInt8] {
        head(method, target, "Content-Type: \(type)\r\nContent-Length: \(body.utf8.count)\r\n") + Array(body.utf8)
    }

    private static func form(_ body: String) -> [UInt8] {
        post("/login/callback", body, type: "application/x-www-form-urlencoded")
    }

    private static let callback = "/login/callback?code=c&state=s"

    private static var fields: [Request] {
        let texts: [(String, @Sendable (Int) -> String)] = [
            ("marks", { HostileText.marks($0) }), ("commas", { HostileText.repeated("a,", $0) }),
            ("semicolons", { HostileText.repeated("a=b;", $0) }),
            ("spaces", { "a" + HostileText.repeated(" ", $0) + "a" }),
            ("digits", { HostileText.repeated("9", $0) }), ("quotation marks", { HostileText.repeated("\"1\",", $0) }),
        ]
        let places: [(name: String, make: @Sendable (String) -> [UInt8], method: Method)] = [
            ("Cookie's name", { get(callback, "Cookie: \($0)=1\r\n") }, .get),
            ("Cookie's value", { get(callback, "Cookie: a=\($0)\r\n") }, .get),
            ("Accept", { get(callback, "Accept: \($0)\r\n") }, .get),
            ("Authorization", { get("/credentials", "Authorization: Bearer \($0)\r\n") }, .get),
            ("If-None-Match", { get("/credentials", "If-None-Match: \($0)\r\n") }, .get),
            (
                "If-None-Match of a refused token",
                { get("/credentials?api_error_sub_status=1", "If-None-Match: \($0)\r\n") }, .get
            ),
            ("Prefer", { get("/credentials", "Prefer: \($0)\r\n") }, .get),
            ("Prefer: wait", { get("/credentials", "Prefer: wait=\($0)\r\n") }, .get),
            ("X-Tenant", { get("/credentials", "X-Tenant: \($0)\r\n") }, .get),
            ("Last-Event-ID", { head("HEAD", "/events", "Last-Event-ID: \($0)\r\n") }, .head),
            (
                "Content-Type",
                {
                    head("POST", "/login/initialize", "Content-Type: \($0)\r\nContent-Length: 2\r\n") + Array("{}".utf8)
                }, .post
            ),
            ("a field of no meaning", { get("/livez", "X-Else: \($0)\r\n") }, .get),
        ]
        return places.flatMap { place in
            texts.map { text in
                Request(
                    name: "\(text.0) in \(place.name)", make: { place.make(text.1($0)) }, size: field,
                    method: place.method)
            }
        }
    }

    private static var heads: [Request] {
        [
            Request(name: "many fields", make: { get("/livez", HostileText.repeated("a: b\r\n", $0)) }, size: 570),
            Request(
                name: "a query's name", make: { get("/credentials?" + HostileText.escapedMarks($0) + "=1") },
                size: query),
            Request(
                name: "a query's value", make: { get("/credentials?policy=" + HostileText.escapedMarks($0)) },
                size: query),
            Request(
                name: "the callback's state",
                make: { get("/login/callback?code=c&state=" + HostileText.escapedMarks($0)) },
                size: query),
            Request(
                name: "many parameters", make: { get("/credentials?" + HostileText.repeated("a&", $0)) }, size: query),
            Request(name: "a path's segment", make: { get("/tenants/" + HostileText.escapedMarks($0)) }, size: query),
            Request(name: "many segments", make: { get("/" + HostileText.repeated("a/", $0)) }, size: query),
            Request(name: "a login's id", make: { get("/login/" + HostileText.repeated("%6e", $0)) }, size: query),
            Request(
                name: "pipelined requests", make: { HostileText.repeated("x", $0).utf8.flatMap { _ in get("/livez") } },
                size: 200, answers: { $0 }),
        ]
    }

    private static var forms: [Request] {
        let texts: [(String, @Sendable (Int) -> String)] = [
            ("many pairs", { HostileText.repeated("a&", $0) }), ("ampersands", { HostileText.repeated("&", $0) }),
            ("a name", { HostileText.escapedMarks($0) + "=1" }),
            ("a state", { "code=c&state=" + HostileText.escapedMarks($0) }),
            ("an error", { "state=s&error=" + HostileText.marks($0) }),
            ("plus signs", { "state=" + HostileText.repeated("+", $0) }),
        ]
        return texts.map { text in
            Request(name: "\(text.0) in a form", make: { form(text.1($0)) }, size: form, method: .post)
        } + [
            Request(
                name: "a form that is too long", make: { form(HostileText.repeated("a&", $0)) }, size: body,
                method: .post)
        ]
    }

    private static var bodies: [Request] {
        let texts: [(String, @Sendable (Int) -> String)] = [
            ("marks in a name", { "{\"\(HostileText.marks($0))\":1}" }),
            ("escaped marks in a value", { "{\"storage_key\":\"\(HostileText.jsonMarks($0))\"}" }),
            ("unknown members", { size in "{" + (0..<size / 12).map { "\"n\($0)\":1" }.joined(separator: ",") + "}" }),
            (
                "scopes",
                { size in "{\"client_id\":\"c\",\"scopes\":[\"a\"" + HostileText.repeated(",\"a\"", size) + "]}" }
            ),
            ("one scope", { "{\"client_id\":\"c\",\"scopes\":[\"\(HostileText.marks($0))\"]}" }),
            (
                "storage keys",
                { size in
                    "{\"name\":\"n\",\"permissions\":[\"login\"],\"storage_keys\":["
                        + (0..<max(1, size / 210)).map { "\"\(String(repeating: "k", count: 190))\($0)\"" }.joined(
                            separator: ",")
                        + "]}"
                }
            ),
            ("empty objects", { "[{}" + HostileText.repeated(",{}", $0) + "]" }),
            ("arrays of one", { "[[1]" + HostileText.repeated(",[1]", $0) + "]" }),
            ("spaces", { "{" + HostileText.repeated(" ", $0) + "}" }),
            ("digits", { "[" + HostileText.repeated("1", $0) + "]" }),
            ("a response's query", { "{\"login_response_query\":\"\(HostileText.repeated("a&", $0))\"}" }),
        ]
        let places: [(String, @Sendable (String) -> [UInt8])] = [
            ("/login/initialize", { post("/login/initialize", $0) }),
            ("/login/finalize", { post("/login/finalize", $0) }),
            ("/credentials", { post("/credentials", $0, method: "PUT") }),
            ("/tenants/t2", { post("/tenants/t2", $0, method: "PUT") }),
            ("/tenants/t1/api-keys", { post("/tenants/t1/api-keys", $0) }),
        ]
        return texts.flatMap { text in
            // As much as is read in place, and as much as is taken at all. Each text is made once: that takes longer than
            // reading it.
            [15_000, body].flatMap { size in
                let content = text.1(size)
                return places.map { place in
                    Request(
                        name: "\(text.0) of \(size) bytes at \(place.0)", make: { _ in place.1(content) }, size: size,
                        method: .post)
                }
            }
        } + [
            Request(
                name: "chunks of one byte",
                make: {
                    head(
                        "POST", "/login/initialize", "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n")
                        + Array((HostileText.repeated("1\r\na\r\n", $0) + "0\r\n\r\n").utf8)
                }, size: 6 * body, method: .post)
        ]
    }

    private static func serve(_ body: (Server) async throws -> Void) async throws {
        // Refusals of a source that has had many wait for the broker's clock, which stands still here.
        let harness = try await BrokerHarness { $0.rates.authenticationFailures = nil }
        await harness.makeTenant()
        await harness.set("access-1")
        var configuration = ServerConfiguration(
            address: SocketAddress(ip: .v4([127, 0, 0, 1]), port: 0), loopCount: 1)
        configuration.limits.bodyBytes = 1 << 20
        let server = try Server(configuration: configuration, handler: harness.service)
        let result: Result<Void, any Error>
        do {
            result = .success(try await body(server))
        } catch {
            result = .failure(error)
        }
        await server.close()
        try result.get()
    }

    private static func send(_ request: Request, _ size: Int, _ bytes: [UInt8], to server: Server) async throws {
        let client = try HTTPRawClient(server.address)
        // A server that refuses may close while there is more to send.
        try? await client.send(bytes)
        for _ in 0..<request.answers(size) { _ = try? await client.response(to: request.method) }
    }

    private static func expectShortStretches(_ requests: [Request]) async throws {
        try await serve { server in
            for request in requests {
                let bytes = request.make(request.size)
                var shortest = Int64.max
                // The first of each kind fills caches; a second one may be disturbed.
                for _ in 0..<4 where shortest > longestStretch / 4 {
                    let meter = LoopMeter(server.loops[0])
                    try await send(request, request.size, bytes, to: server)
                    shortest = min(shortest, await meter.stop())
                }
                #expect(shortest < longestStretch, "\(request.name): \(shortest / 1000) µs")
            }
        }
    }

    @Test func `no header field holds the loop`() async throws {
        try await Self.expectShortStretches(Self.fields)
    }

    @Test func `no head holds the loop`() async throws {
        try await Self.expectShortStretches(Self.heads)
    }

    @Test func `no form holds the loop`() async throws {
        try await Self.expectShortStretches(Self.forms)
    }

    @Test func `no body holds the loop`() async throws {
        try await Self.expectShortStretches(Self.bodies)
    }

    /// What four times the size costs the loop's thread in all, over the least that a request costs.
    @Test func `a request costs its loop no more than in proportion to its size`() async throws {
        try await Self.serve { server in
            let loop = server.loops[0]
            func cost(_ request: Request, _ size: Int) async throws -> Int64 {
                let bytes = request.make(size)
                var least = Int64.max
                for _ in 0..<5 {
                    let start = await LoopMeter.time(of: loop)
                    try await Self.send(request, size, bytes, to: server)
                    least = min(least, await LoopMeter.time(of: loop) - start)
                }
                return least
            }
            for request in Self.fields + Self.heads + Self.forms {
                var growth = Double.infinity
                for _ in 0..<3 where growth >= ReadingCost.limit {
                    let small = try await cost(request, request.size / 4)
                    growth = min(growth, Double(try await cost(request, request.size)) / Double(max(small, 1)))
                }
                #expect(growth < ReadingCost.limit, "\(request.name)")
            }
        }
    }
}
