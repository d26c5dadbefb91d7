import BrokerTesting
import ExternalText
import HTTPCodec
import HTTPServer
import Reactor
import Synchronization
import Testing

/// Answers each line of a content while the content still comes, at `/lines`; refuses without reading at `/no`; echoes the rest.
private final class LinesHandler: RequestHandler {
    let ended = HTTPLatch()
    private let state = Mutex((fault: ContentFault?.none, read: 0))

    var fault: ContentFault? { state.withLock { $0.fault } }
    var read: Int { state.withLock { $0.read } }

    func admit(_ request: Request) async -> Admission {
        .admitted(isStreamed: request.path == "/lines" || request.path == "/no")
    }

    func respond(to request: Request) async -> Response {
        if request.path == "/no" { return Response(.forbidden, body: Array("no".utf8)) }
        guard request.path == "/lines", let content = request.content else { return await echo(request) }
        #expect(request.body.isEmpty)
        return Response(.ok) { stream in
            do throws(ContentFault) {
                while let piece = try await content.next() {
                    #expect((1...16_384).contains(piece.count))
                    self.state.withLock { $0.read += piece.count }
                    try? await stream.write(Array("<".utf8) + piece + Array(">".utf8))
                }
            } catch {
                self.state.withLock { $0.fault = error }
                try? await stream.write(Array("!".utf8))
            }
            self.ended.open()
        }
    }

    func response(toFault status: Status, detail: String) -> Response { Response(status) }
}

private func post(_ path: String, _ fields: String) -> String {
    "POST \(path) HTTP/1.1\r\nHost: a\r\n\(fields)\r\n"
}

private let chunked = "Transfer-Encoding: chunked\r\n"

@Suite(.timeLimit(.minutes(1))) struct `A content that is read while it comes` {
    @Test func `is answered piece by piece, and the connection goes on`() async throws {
        let handler = LinesHandler()
        try await withServer(answering: handler) { server in
            let client = try HTTPRawClient(server.address)
            for fields in [chunked, "Content-Length: 6\r\n"] {
                try await client.send(post("/lines", fields))
                _ = try await client.receive(through: "\r\n\r\n")
                for text in ["one", "two"] {
                    try await client.send(fields == chunked ? chunk(text) : text)
                    #expect(try await client.receive(through: chunk("<\(text)>")) == chunk("<\(text)>"))
                }
                if fields == chunked { try await client.send("0\r\n\r\n") }
                #expect(try await client.receive(through: "0\r\n\r\n") == "0\r\n\r\n")
            }
            try await client.send(get("/next"))
            #expect(try await client.response().text == "GET /next\n")
            #expect(handler.fault == nil)
        }
    }

    @Test func `may be longer than any other content, and is asked for`() async throws {
        let handler = LinesHandler()
        let count = 3_000_000
        try await withServer(answering: handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(post("/lines", "Content-Length: \(count)\r\nExpect: 100-continue\r\n"))
            #expect(try await client.receive(through: "\r\n\r\n") == "HTTP/1.1 100 Continue\r\n\r\n")
            // The client reads nothing before it has sent everything.
            try await client.send(String(repeating: "x", count: count))
            let text = try await client.response().text
            #expect(text.filter { $0 == "x" }.count == count)
            #expect(handler.read == count)
        }
    }

    @Test func `that is cut off is told, and what came before is answered`() async throws {
        let handler = LinesHandler()
        try await withServer(answering: handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(post("/lines", chunked) + chunk("one") + "zz\r\n")
            #expect(try await client.response().text == "<one>!")
            #expect(handler.fault == .malformed)
            #expect(try await client.rest() == "")
        }
    }

    @Test func `that does not come any more ends after the time for contents`() async throws {
        let handler = LinesHandler()
        try await withServer(configured { $0.bodyTimeout = .milliseconds(200) }, answering: handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(post("/lines", chunked) + chunk("one"))
            #expect(try await client.response().text == "<one>!")
            #expect(handler.fault == .tooSlow)
        }
    }

    @Test func `is not read where the answer does not need it, and ends the connection`() async throws {
        let handler = LinesHandler()
        try await withServer(answering: handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(post("/no", chunked) + chunk("one"))
            let response = try await client.response()
            #expect(response.status == .forbidden)
            #expect(response.fields["Connection"] == "close")
            #expect(try await client.rest() == "")
        }
    }

    @Test func `ends for its reader when the connection is closed`() async throws {
        let handler = LinesHandler()
        try await withServer(answering: handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(post("/lines", chunked) + chunk("one"))
            _ = try await client.receive(through: "<one>")
            await server.close()
            await handler.ended.wait()
            #expect(handler.fault == .ended)
        }
    }
}
