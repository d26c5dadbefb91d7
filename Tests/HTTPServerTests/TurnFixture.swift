import BrokerTesting
import HTTPCodec
import HTTPServer
import Testing

/// Answers each request at once with its path, except `/first` and `/slow`.
final class TurnHandler: RequestHandler {
    /// Holds the loop at `/first`, so that requests which come meanwhile are answered in one turn.
    let first = LoopGate()
    /// Holds the loop at `/pause`, in the middle of that turn.
    let pause = LoopGate()

    static let largeCount = 40_000

    func answerNow(
        _ head: borrowing RequestHead, _ bytes: Span<UInt8>, from peer: PeerIdentity?, into answer: NowAnswer
    ) -> Int? {
        let path = head.path.map { bytes[$0] }
        switch String(decoding: path, as: UTF8.self) {
        case "/first", "/slow": return nil
        case "/pause": pause.hold()
        case "/large":
            answer.write([UInt8](repeating: UInt8(ascii: "l"), count: Self.largeCount))
            return 0
        default: break
        }
        answer.write(path)
        return 0
    }

    func respond(to request: Request) async -> Response {
        if request.path == "/first" { first.hold() }
        return Response(.ok, body: Array(request.path.utf8))
    }

    func response(toFault status: Status, detail: String) -> Response { Response(status) }

    /// Sends a request that holds the loop: what is sent from now on is answered in one turn.
    func holdLoop(of server: Server) async throws -> HTTPRawClient {
        let client = try HTTPRawClient(server.address)
        try await client.send(get("/first"))
        await first.isHeld()
        return client
    }
}

/// A client whose first request was answered at once.
func client(of server: Server, receiveBufferBytes: CInt? = nil) async throws -> HTTPRawClient {
    let client = try HTTPRawClient(server.address, receiveBufferBytes: receiveBufferBytes)
    try await client.send(get("/begin"))
    #expect(try await client.response().text == "/begin")
    return client
}
