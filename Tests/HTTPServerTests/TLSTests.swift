import BrokerTesting
import HTTPCodec
import HTTPSClient
import Reactor
import TLS
import Testing

@testable import HTTPServer

@Suite(.timeLimit(.minutes(1))) struct `TLS connections` {
    private static func context(_ name: TLSTestCertificates.Name = .good) throws -> TLSServerContext {
        let certificates = TLSTestCertificates.shared
        return try TLSServerContext(certificateFile: certificates.chain(name), keyFile: certificates.key(name))
    }

    /// A server's configuration with TLS.
    private static func secured(
        _ name: TLSTestCertificates.Name = .good, _ adjust: (inout ServerConfiguration) -> Void = { _ in }
    ) throws -> ServerConfiguration {
        let context = try context(name)
        return configured {
            $0.tls = context
            adjust(&$0)
        }
    }

    /// What `openssl s_client` says when it sends these lines, a third of a second apart.
    private static func openSSL(_ address: SocketAddress, _ options: [String], lines: [String] = []) async throws
        -> String
    {
        try await DialogueProcess.blocking {
            let input = lines.map { "echo '\($0)'; sleep 0.3;" }.joined()
            let process = try DialogueProcess(
                [
                    "sh", "-c",
                    "address=$1; shift; { \(input) :; } | timeout 20 openssl s_client -connect $address \"$@\" 2>&1",
                    "sh", address.description,
                ] + options)
            var output = ""
            while let line = try process.readLine() { output += line + "\n" }
            return output
        }
    }

    // MARK: Exchanges

    @Test(arguments: [TLSTestCertificates.Name.good, .rsa])
    func `a client that verifies the server is answered`(name: TLSTestCertificates.Name) async throws {
        try await withServer(try Self.secured(name)) { server in
            var configuration = HTTPSClientConfiguration()
            configuration.trustedCAFile = TLSTestCertificates.shared.root
            configuration.targets = .everything
            let loop = try EventLoop(name: "tls-client")
            let client = try HTTPSClient(
                configuration: configuration, loop: loop,
                resolver: NameResolver(lookUp: { _ in [.v4([127, 0, 0, 1])] }))
            for number in 0..<3 {
                let url = try #require(URLTarget("https://localhost:\(server.address.port)/\(number)"))
                let response = try await client.send(
                    ClientRequest(method: .post, url: url, fields: [:], body: Array("x".utf8), pins: nil))
                #expect(response.status == .ok)
                #expect(String(decoding: response.body, as: UTF8.self) == "POST /\(number)\nx")
            }
            #expect(server.statistics.connectionsAccepted == 1)
            await client.close()
            loop.shutDown()
        }
    }

    @Test(arguments: [1, 2, 7, 1000])
    func `records may arrive in pieces of any length`(length: Int) async throws {
        try await withServer(try Self.secured()) { server in
            let client = try TLSRawClient(server.address)
            try await client.handshake(inPiecesOf: length)
            try await client.send(get("/a") + get("/b"), inPiecesOf: length)
            #expect(try await client.response().text == "GET /a\n")
            #expect(try await client.response().text == "GET /b\n")
        }
    }

    @Test func `several records in one segment are all read`() async throws {
        try await withServer(try Self.secured()) { server in
            let client = try TLSRawClient(server.address)
            try await client.handshake()
            var records: [UInt8] = []
            for number in 0..<50 { records += try client.records(get("/\(number)")) }
            try await client.send(records: records)
            for number in 0..<50 { #expect(try await client.response().text == "GET /\(number)\n") }
        }
    }

    @Test(arguments: [0, 1, 4095, 4096, 4097, 16_384, 16_385, 1_000_000])
    func `contents of any length go both ways`(length: Int) async throws {
        try await withServer(try Self.secured { $0.limits.bodyBytes = 2_000_000 }) { server in
            let client = try TLSRawClient(server.address)
            try await client.handshake()
            let content = String(repeating: "z", count: length)
            try await client.send(
                "POST /c HTTP/1.1\r\nHost: a\r\nContent-Length: \(length)\r\nConnection: close\r\n\r\n" + content)
            #expect(try await client.response().text == "POST /c\n" + content)
            #expect(try await client.rest() == "")
            #expect(client.hasReceivedCloseNotify)
        }
    }

    @Test func `a stream is sent as it is written`() async throws {
        let latch = HTTPLatch()
        let handler: @Sendable (Request) async -> Response = { _ in
            Response(
                .ok,
                stream: { stream in
                    try? await stream.write(Array("first".utf8))
                    await latch.wait()
                    try? await stream.write(Array("second".utf8))
                })
        }
        try await withServer(try Self.secured(), handler: handler) { server in
            let client = try TLSRawClient(server.address)
            try await client.handshake()
            try await client.send(get("/"))
            latch.open()
            #expect(try await client.response().text == "firstsecond")
        }
    }

    @Test func `a client that has sent close_notify gets its answer and the server's close_notify`() async throws {
        try await withServer(try Self.secured()) { server in
            let client = try TLSRawClient(server.address)
            try await client.handshake()
            let records = try client.records(get("/last"))
            try await client.send(records: records)
            try await client.finish()
            #expect(try await client.response().text == "GET /last\n")
            #expect(try await client.rest() == "")
            #expect(client.hasReceivedCloseNotify)
        }
    }

    @Test func `a session is resumed by a ticket`() async throws {
        try await withServer(try Self.secured()) { server in
            let first = try TLSRawClient(server.address)
            try await first.handshake()
            // The ticket comes with the first answer at the latest.
            try await first.send(get("/"))
            _ = try await first.response()
            #expect(!first.isResumed)
            let second = try TLSRawClient(server.address, resuming: first)
            try await second.handshake()
            #expect(second.isResumed)
            try await second.send(get("/again"))
            #expect(try await second.response().text == "GET /again\n")
        }
    }

    // MARK: Versions, ciphers, protocols

    @Test(arguments: [
        (["-tls1_3"], "TLSv1.3"), (["-tls1_2"], "TLSv1.2"), ([], "TLSv1.3"),
        (["-tls1_2", "-cipher", "ECDHE-ECDSA-CHACHA20-POLY1305"], "ECDHE-ECDSA-CHACHA20-POLY1305"),
        (["-alpn", "h2,http/1.1"], "ALPN protocol: http/1.1"), (["-alpn", "http/1.1"], "ALPN protocol: http/1.1"),
        (["-early_data", "/dev/null"], "Early data was not sent"),
        ([], "Compression: NONE"),
    ])
    func `a client gets`(options: [String], text: String) async throws {
        try await withServer(try Self.secured()) { server in
            let root = TLSTestCertificates.shared.root
            let output = try await Self.openSSL(
                server.address, options + ["-CAfile", root, "-verify_return_error", "-ign_eof"],
                lines: ["GET / HTTP/1.0\r", "\r"])
            #expect(output.contains(text), "\(output)")
            #expect(output.contains("Verification: OK"), "\(output)")
            #expect(output.contains("HTTP/1.1 200 OK"), "\(output)")
        }
    }

    @Test(arguments: [
        (["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"], "alert protocol version"),
        (["-tls1", "-cipher", "ALL:@SECLEVEL=0"], "alert protocol version"),
        (["-tls1_2", "-cipher", "AES128-SHA:@SECLEVEL=0"], "alert handshake failure"),
        (["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA"], "alert handshake failure"),
        (["-alpn", "h2"], "alert no application protocol"),
    ])
    func `a client is refused with an alert`(options: [String], alert: String) async throws {
        try await withServer(try Self.secured()) { server in
            let output = try await Self.openSSL(server.address, options)
            #expect(output.contains(alert), "\(output)")
            await eventually { server.statistics.connectionsOpen == 0 }
        }
    }

    @Test func `renegotiation is refused`() async throws {
        try await withServer(try Self.secured()) { server in
            let address = server.address.description
            let output = try await DialogueProcess.blocking {
                let process = try DialogueProcess([
                    "sh", "-c", #"exec timeout 20 openssl s_client -connect "$1" -tls1_2 2>&1"#, "sh", address,
                ])
                var output = ""
                while let line = try process.readLine() {
                    output += line + "\n"
                    // The last line about the handshake. The letter is a command only where openssl reads nothing else with it.
                    if line.contains("Extended master secret") { try process.write("R") }
                }
                return output
            }
            #expect(output.contains("no renegotiation"), "\(output)")
            #expect(!output.contains("200 OK"), "\(output)")
        }
    }

    // MARK: Hostile peers

    @Test func `a request in plaintext is not answered`() async throws {
        try await withServer(try Self.secured()) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/"))
            #expect(!(try await client.rest().contains("HTTP")))
            #expect(server.statistics.requests == 0)
        }
    }

    @Test(arguments: [4, 40])
    func `a record that was changed on its way ends the connection without an answer`(position: Int) async throws {
        try await withServer(try Self.secured()) { server in
            let client = try TLSRawClient(server.address)
            try await client.handshake()
            var records = try client.records(get("/"))
            records[position] ^= 1
            // A longer record is waited for, so there is more of it.
            try await client.send(records: records + [UInt8](repeating: 0, count: 17_000))
            await #expect(throws: (any Error).self) { _ = try await client.response() }
            #expect(server.statistics.requests == 0)
            await client.socket.close()
            await eventually { server.statistics.connectionsOpen == 0 }
        }
    }

    @Test(arguments: [0, 1, 100])
    func `a handshake has to be complete in time, however steadily it comes`(first: Int) async throws {
        let clock = ManualLoopClock()
        try await withServer(try Self.secured { $0.headTimeout = .seconds(10) }, clock: clock) { server in
            let client = try TLSRawClient(server.address)
            let hello = try client.hello()
            try await client.send(records: Array(hello[..<first]))
            for position in first..<first + 9 {
                await clock.advance(by: .seconds(1))
                try await client.send(records: [hello[position]])
            }
            await clock.advance(by: .milliseconds(999))
            #expect(server.statistics.connectionsOpen == 1)
            await clock.advance(by: .milliseconds(1500))
            #expect(server.statistics.connectionsOpen == 0)
        }
    }

    @Test func `a client that sends nothing after its handshake is closed in time, with close_notify`() async throws {
        let clock = ManualLoopClock()
        try await withServer(try Self.secured { $0.headTimeout = .seconds(10) }, clock: clock) { server in
            let client = try TLSRawClient(server.address)
            await clock.advance(by: .seconds(9))
            try await client.handshake()
            await clock.advance(by: .milliseconds(999))
            #expect(server.statistics.connectionsOpen == 1)
            await clock.advance(by: .milliseconds(1500))
            #expect(server.statistics.connectionsOpen == 0)
            #expect(try await client.rest() == "")
            #expect(client.hasReceivedCloseNotify)
        }
    }

    @Test func `of too many handshakes the oldest is closed, and no connection whose handshake is complete`()
        async throws
    {
        try await withServer(try Self.secured { $0.maximumHandshakes = 2 }) { server in
            let complete = try TLSRawClient(server.address)
            try await complete.handshake()
            try await complete.send(get("/"))
            _ = try await complete.response()
            let first = try HTTPRawClient(server.address)
            await eventually { server.statistics.connectionsOpen == 2 }
            let second = try HTTPRawClient(server.address)
            await eventually { server.statistics.connectionsOpen == 3 }
            #expect(server.statistics.connectionsEvicted == 0)
            let third = try TLSRawClient(server.address)
            #expect(try await first.rest() == "")
            #expect(server.statistics.connectionsEvicted == 1)
            try await third.handshake()
            try await third.send(get("/third"))
            #expect(try await third.response().text == "GET /third\n")
            #expect(await !second.hasInput(within: .zero))
            try await complete.send(get("/still"))
            #expect(try await complete.response().text == "GET /still\n")
        }
    }

    @Test func `a connection beyond the limit is closed without a handshake`() async throws {
        let configuration = try Self.secured {
            $0.maximumConnections = 1
            $0.idleGrace = .seconds(60)
        }
        try await withServer(configuration) { server in
            let first = try TLSRawClient(server.address)
            try await first.handshake()
            let second = try HTTPRawClient(server.address)
            #expect(try await second.rest() == "")
            try await first.send(get("/"))
            #expect(try await first.response().status == .ok)
            #expect(server.statistics.refusals.values.reduce(0, +) == 1)
        }
    }

    @Test(arguments: [(0, false), (1, true)])
    func `bytes that bring no plaintext are bounded`(excess: Int, isBeyond: Bool) throws {
        let transport = SecureTransport(try #require(try Self.context().makeChannel()))
        let bytes = [UInt8](repeating: 22, count: SecureTransport.maximumOverhead + excess)
        #expect(transport.receive(bytes.span) == !isBeyond)
        #expect(transport.hasFailed == isBeyond)
    }

    // MARK: Certificates

    @Test func `files that cannot be used are refused by name`() throws {
        let certificates = TLSTestCertificates.shared
        let (good, key) = (certificates.chain(.good), certificates.key(.good))
        let rows: [(String, String, TLSServerError)] = [
            ("/nowhere", key, .certificateFile("/nowhere")), (good, "/nowhere", .keyFile("/nowhere")),
            (key, key, .certificateFile(key)), (good, good, .keyFile(good)),
            (good, certificates.key(.backup), .otherKey(certificates.key(.backup))),
            (good, certificates.key(.rsa), .otherKey(certificates.key(.rsa))),
            (certificates.chain(.weakKey), certificates.key(.weakKey), .certificateFile(certificates.chain(.weakKey))),
        ]
        for (certificate, key, error) in rows {
            #expect(throws: error) { _ = try TLSServerContext(certificateFile: certificate, keyFile: key) }
        }
    }

    @Test(arguments: ["", "a,b", "a b", "localhost:1", "a\n", "DNS:a", "é", String(repeating: "a", count: 254)])
    func `no certificate is issued to what is no name`(name: String) {
        #expect(throws: TLSServerError.name(name)) {
            _ = try IssuedCertificate(for: ["localhost", name], authorityName: "test")
        }
    }
}
