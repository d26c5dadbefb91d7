import BrokerTesting
import HTTPCodec
import HTTPServer

/// Pieces that a test hands to a stream, and how the stream ended.
final class StreamScript: Sendable {
    let begun = HTTPLatch()
    let ended = HTTPLatch()
    /// Set when a write has thrown.
    let failed = HTTPLatch()
    private let pieces: AsyncStream<[UInt8]>
    private let feed: AsyncStream<[UInt8]>.Continuation

    init() {
        (pieces, feed) = AsyncStream.makeStream()
    }

    func write(_ text: String) { feed.yield(Array(text.utf8)) }

    func finish() { feed.finish() }

    /// Writes the pieces as they come.
    func run(_ stream: ResponseStream) async {
        begun.open()
        do throws(StreamEnded) {
            for await piece in pieces { try await stream.write(piece) }
        } catch {
            failed.open()
        }
        ended.open()
    }

    /// Streams at `/stream`, and echoes any other request.
    var handler: @Sendable (Request) async -> Response {
        { request in
            guard request.path == "/stream" else { return await echo(request) }
            return Response(.ok, fields: ["Content-Type": "text/event-stream"], body: Array("first".utf8)) {
                await self.run($0)
            }
        }
    }
}

/// Runs `stream` for `/stream`, and echoes any other request.
func streaming(
    _ stream: @escaping @Sendable (ResponseStream) async -> Void
) -> @Sendable (Request) async -> Response {
    { request in request.path == "/stream" ? Response(.ok, stream: stream) : await echo(request) }
}

/// One chunk of chunked content.
func chunk(_ text: String) -> String {
    "\(String(text.utf8.count, radix: 16))\r\n\(text)\r\n"
}
