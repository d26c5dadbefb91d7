import BrokerTesting
import HTTPCodec
import Reactor
import Synchronization
import Testing

@testable import HTTPSClient

/// Keeps what a receiver is given.
private final class Received: Sendable {
    private let state = Mutex<(heads: [Status], pieces: [[UInt8]], running: Int, mostAtOnce: Int)>(([], [], 0, 0))

    var heads: [Int] { state.withLock { $0.heads.map(\.code) } }
    var pieces: [[UInt8]] { state.withLock { $0.pieces } }
    var text: String { String(decoding: pieces.joined(), as: UTF8.self) }
    var mostAtOnce: Int { state.withLock { $0.mostAtOnce } }

    /// - Parameters:
    ///   - wantsBody: what `onHead` returns.
    ///   - more: called with the number of pieces so far; whether more is wanted.
    func receiver(
        idleLimit: Duration = .seconds(20), wantsBody: Bool = true,
        more: @escaping @Sendable (Int) async -> Bool = { _ in true }
    ) -> ResponseReceiver {
        ResponseReceiver(
            idleLimit: idleLimit,
            onHead: { status, _ in
                self.state.withLock { $0.heads.append(status) }
                return wantsBody
            },
            onBody: { piece in
                let count = self.state.withLock { state in
                    state.pieces.append(piece)
                    state.running += 1
                    state.mostAtOnce = max(state.mostAtOnce, state.running)
                    return state.pieces.count
                }
                await Task.yield()
                let isMore = await more(count)
                self.state.withLock { $0.running -= 1 }
                return isMore
            })
    }
}

extension HTTPSClient {
    fileprivate func get(
        _ url: String, to receiver: ResponseReceiver, timeLimit: Duration? = nil
    ) async throws -> ClientResponse {
        let url = try #require(URLTarget(url))
        return try await stream(ClientRequest(method: .get, url: url, timeLimit: timeLimit), to: receiver)
    }
}

@Suite(.serialized) struct `A response that is passed on` {
    private func url(_ server: TLSTestServer, isTLS: Bool) -> String {
        isTLS ? server.url() : "http://localhost:\(server.port)/"
    }

    @Test(arguments: [true, false])
    func `reaches its receiver before it has ended`(isTLS: Bool) async throws {
        let server = try await TLSTestServer(
            tls: isTLS ? .init() : nil,
            [
                .read, .send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n"), .await,
                .send("4\r\nlast\r\n0\r\n\r\n"), .hold,
            ])
        try await withClient { client in
            let received = Received()
            let response = try await client.get(
                url(server, isTLS: isTLS),
                to: received.receiver { count in
                    // The server goes on only when the first piece is here.
                    if count == 1 { try? server.proceed() }
                    return true
                })
            #expect(response.status == .ok)
            #expect(response.body.isEmpty)
            #expect(received.heads == [200])
            #expect(received.text == "firstlast")
            #expect(received.pieces.count >= 2)
        }
    }

    @Test(arguments: [true, false])
    func `may be longer than the longest that is kept, and comes piece after piece`(isTLS: Bool) async throws {
        // The script of a server is an argument of its, which Linux limits to 128 KiB.
        let body = String(repeating: "0123456789abcdef", count: 3_000)
        for text in [answer(body), "HTTP/1.1 200 OK\r\n\r\n" + body] {
            let server = try await TLSTestServer(tls: isTLS ? .init() : nil, [.read, .send(text), .close])
            try await withClient([set(\.maximumBodyBytes, 1000)]) { client in
                let received = Received()
                _ = try await client.get(url(server, isTLS: isTLS), to: received.receiver())
                #expect(received.text == body)
                #expect(received.pieces.allSatisfy { !$0.isEmpty && $0.count <= 16 << 10 })
                #expect(received.mostAtOnce == 1)
            }
        }
    }

    @Test func `leaves its connection to the next request where it has come whole`() async throws {
        let server = try await TLSTestServer([.serve(answer("whole"))])
        try await withClient { client in
            for _ in 0..<2 {
                let received = Received()
                _ = try await client.get(server.url(), to: received.receiver())
                #expect(received.text == "whole")
            }
            #expect(try await client.post(server.url()).text == "whole")
            #expect(await client.counters == .init(connectionsOpened: 1, connectionsReused: 2))
        }
    }

    @Test(arguments: [204, 304])
    func `without a body has a head only`(status: Int) async throws {
        let server = try await TLSTestServer([.serve("HTTP/1.1 \(status) x\r\n\r\n")])
        try await withClient { client in
            let received = Received()
            let response = try await client.get(server.url(), to: received.receiver())
            #expect(response.status.code == status)
            #expect(received.heads == [status])
            #expect(received.pieces.isEmpty)
        }
    }

    @Test(arguments: [true, false])
    func `ends with its connection where its receiver wants no more`(atHead: Bool) async throws {
        let server = try await TLSTestServer(
            [.read, .send("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nbegun"), .hold])
        try await withClient { client in
            let received = Received()
            let response = try await client.get(
                server.url(), to: received.receiver(wantsBody: !atHead) { _ in false })
            #expect(response.status == .ok)
            #expect(received.pieces.count == (atHead ? 0 : 1))
            let report = try await server.report(afterEnds: 1)
            #expect(report.connections == 1)
        }
    }

    @Test func `ends when nothing comes for the idle limit`() async throws {
        let server = try await TLSTestServer([.read, .send("HTTP/1.1 200 OK\r\n\r\nbegun"), .hold])
        try await withClient { client in
            let received = Received()
            await #expect(throws: TransportError.timedOut(.response, requestSent: true)) {
                _ = try await client.get(server.url(), to: received.receiver(idleLimit: .milliseconds(50)))
            }
            #expect(received.text == "begun")
            let report = try await server.report(afterEnds: 1)
            #expect(report.connections == 1)
        }
    }

    @Test func `ends at the idle limit while only extensions of chunks come`() async throws {
        let server = try await TLSTestServer(
            [
                .read, .send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x"),
                .flood(String(repeating: "x", count: 4096)),
            ])
        try await withClient { client in
            let received = Received()
            await #expect(throws: TransportError.timedOut(.response, requestSent: true)) {
                _ = try await client.get(server.url(), to: received.receiver(idleLimit: .milliseconds(50)))
            }
            #expect(received.pieces.isEmpty)
        }
    }

    @Test func `may take longer than an exchange`() async throws {
        let server = try await TLSTestServer(
            [
                .read, .send("HTTP/1.1 200 OK\r\n\r\n"), .drip(String(repeating: "x", count: 30), milliseconds: 100),
                .close,
            ])
        try await withClient { client in
            let received = Received()
            _ = try await client.get(server.url(), to: received.receiver(), timeLimit: .seconds(2))
            #expect(received.text.count == 30)
        }
    }

    @Test func `ends with its connection when its task is cancelled`() async throws {
        let server = try await TLSTestServer([.read, .send("HTTP/1.1 200 OK\r\n\r\nbegun"), .hold])
        try await withClient { client in
            let (pieces, piece) = AsyncStream.makeStream(of: Void.self)
            let receiver = Received().receiver { _ in
                piece.yield()
                return true
            }
            let task = Task { try await client.get(server.url(), to: receiver) }
            for await _ in pieces { break }
            task.cancel()
            await #expect(throws: TransportError.cancelled) { _ = try await task.value }
            let report = try await server.report(afterEnds: 1)
            #expect(report.connections == 1)
        }
    }

    @Test func `is lost when it is cut off, behind what has come of it`() async throws {
        let server = try await TLSTestServer(
            [.read, .send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun"), .cut])
        try await withClient { client in
            let received = Received()
            await #expect(throws: TransportError.connectionLost(requestSent: true)) {
                _ = try await client.get(server.url(), to: received.receiver())
            }
            #expect(received.text == "begun")
        }
    }

    @Test func `is refused before its head is passed on where it is encoded`() async throws {
        let server = try await TLSTestServer(
            [.read, .send("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\u{1f}x"), .hold])
        try await withClient { client in
            let received = Received()
            await #expect(throws: TransportError.malformedResponse) {
                _ = try await client.get(server.url(), to: received.receiver())
            }
            #expect(received.heads.isEmpty)
            #expect(received.pieces.isEmpty)
        }
    }
}
