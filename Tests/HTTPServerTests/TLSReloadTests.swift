import BrokerTesting
import HTTPCodec
import HTTPServer
import Reactor
import TLS
import Testing

@Suite(.timeLimit(.minutes(1))) struct `A renewed certificate` {
    private static let certificates = TLSTestCertificates.shared

    private static func context() throws -> TLSServerContext {
        try TLSServerContext(certificateFile: certificates.chain(.good), keyFile: certificates.key(.good))
    }

    /// The subject of the certificate that a new connection is shown.
    private static func subject(_ address: SocketAddress) async throws -> String? {
        try await DialogueProcess.blocking {
            let command =
                "timeout 20 openssl s_client -connect $1 </dev/null 2>/dev/null | openssl x509 -noout -subject"
            return try DialogueProcess(["sh", "-c", command, "sh", address.description]).readLine()
        }
    }

    @Test func `is shown to new connections, while a kept connection and a slow download go on`() async throws {
        let latch = HTTPLatch()
        let handler: @Sendable (Request) async -> Response = { request in
            if request.path != "/slow" { return await echo(request) }
            return Response(
                .ok,
                stream: { stream in
                    try? await stream.write(Array("first".utf8))
                    await latch.wait()
                    try? await stream.write([UInt8](repeating: UInt8(ascii: "z"), count: 200_000))
                })
        }
        let context = try Self.context()
        try await withServer(configured { $0.tls = context }, handler: handler) { server in
            let (kept, slow) = (try TLSRawClient(server.address), try TLSRawClient(server.address))
            for client in [kept, slow] { try await client.handshake() }
            try await kept.send(get("/before"))
            #expect(try await kept.response().text == "GET /before\n")
            try await slow.send(get("/slow"))
            #expect(try await Self.subject(server.address) == "subject=CN = good")

            try context.reload(
                certificateFile: Self.certificates.chain(.rsa), keyFile: Self.certificates.key(.rsa))
            #expect(try await Self.subject(server.address) == "subject=CN = rsa")
            try await kept.send(get("/after"))
            #expect(try await kept.response().text == "GET /after\n")
            latch.open()
            #expect(try await slow.response().text == "first" + String(repeating: "z", count: 200_000))
            #expect(server.statistics.connectionsEvicted == 0)
        }
    }

    @Test func `that cannot be used leaves the earlier one in use`() async throws {
        let context = try Self.context()
        let expires = context.expirySeconds
        // 2099-01-01T00:00:00Z
        #expect(expires == 4_070_908_800)
        try await withServer(configured { $0.tls = context }) { server in
            #expect(throws: TLSServerError.otherKey(Self.certificates.key(.rsa))) {
                try context.reload(
                    certificateFile: Self.certificates.chain(.good), keyFile: Self.certificates.key(.rsa))
            }
            #expect(throws: TLSServerError.certificateFile("/nowhere")) {
                try context.reload(certificateFile: "/nowhere", keyFile: Self.certificates.key(.rsa))
            }
            // Written out: the compiler finds no error in a macro that the closure throws.
            let subject = try await Self.subject(server.address)
            #expect(subject == "subject=CN = good")
            #expect(context.expirySeconds == expires)
        }
    }

    @Test func `makes the tickets of earlier sessions useless, and their clients make a full handshake`() async throws {
        let context = try Self.context()
        try await withServer(configured { $0.tls = context }) { server in
            let first = try TLSRawClient(server.address)
            try await first.handshake()
            try await first.send(get("/"))
            _ = try await first.response()
            try context.reload(
                certificateFile: Self.certificates.chain(.good), keyFile: Self.certificates.key(.good))
            let second = try TLSRawClient(server.address, resuming: first)
            try await second.handshake()
            #expect(!second.isResumed)
            try await second.send(get("/again"))
            #expect(try await second.response().text == "GET /again\n")
        }
    }
}
