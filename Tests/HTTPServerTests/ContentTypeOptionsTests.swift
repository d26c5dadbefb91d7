import BrokerTesting
import HTTPCodec
import HTTPServer
import Testing

/// An answer of each kind that a handler can give.
private final class KindsHandler: RequestHandler {
    func admit(_ request: Request) async -> Admission { .refused(Response(.unauthorized)) }

    func respond(to request: Request) async -> Response {
        switch request.path {
        case "/not-modified": return Response(.notModified)
        case "/stream": return Response(.ok) { try? await $0.write([0x61]) }
        case "/broken": return Response(.ok, fields: ["A\nB": "c"])
        default: return Response(.ok, body: [0x61])
        }
    }

    func response(toFault status: Status, detail: String) -> Response { Response(status) }
}

@Suite(.timeLimit(.minutes(1))) struct `Every answer says that its type is not to be guessed` {
    @Test(arguments: [
        (200, get("/")), (200, "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n"), (304, get("/not-modified")),
        (200, get("/stream")),
        (500, get("/broken")), (400, "nonsense\r\n"),
        (401, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n"),
        (200, "GET / HTTP/1.0\r\n\r\n"),
    ])
    func `of whatever kind it is`(status: Int, sent: String) async throws {
        try await withServer(answering: KindsHandler()) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(sent)
            let response = try await client.response(to: sent.hasPrefix("HEAD") ? .head : .get)
            #expect(response.status.code == status)
            #expect(response.fields.values("X-Content-Type-Options") == ["nosniff"])
        }
    }

    @Test func `also a refused connection's`() async throws {
        let configuration = configured {
            $0.maximumConnections = 1
            $0.idleGrace = .seconds(60)
        }
        try await withServer(configuration, answering: KindsHandler()) { server in
            let first = try HTTPRawClient(server.address)
            try await first.send(get("/"))
            _ = try await first.response()
            let second = try HTTPRawClient(server.address)
            let refusal = try await second.response()
            #expect(refusal.status == .serviceUnavailable)
            #expect(refusal.fields.values("X-Content-Type-Options") == ["nosniff"])
        }
    }
}
