import HTTPCodec
package import Reactor

/// A listener to a broker over a socket of its own.
package final class SSEClient: Sendable {
    package struct Refused: Error {
        package let head: String
    }

    /// Reads on one connection, one call at a time.
    private actor Stream {
        private let client: HTTPRawClient
        private var parser = SSEParser()
        private(set) var chunks = 0

        init(_ client: HTTPRawClient) {
            self.client = client
        }

        func begin(_ request: String) async throws {
            try await client.send(request)
            let head = try await client.receive(through: "\r\n\r\n")
            guard head.hasPrefix("HTTP/1.1 200") else { throw Refused(head: head) }
        }

        /// Takes one chunk (RFC 9112 §7.1). Returns false for the last one.
        private func take() async throws -> Bool {
            let line = try await client.receive(through: "\r\n")
            guard let size = Int(line.dropLast(), radix: 16) else { throw Refused(head: line) }
            let bytes = try await client.receive(exactly: size + 2)
            parser.consume(Array(bytes.prefix(size)))
            chunks += 1
            return size > 0
        }

        func events(_ count: Int) async throws -> [SSEParser.Event] {
            while parser.events.count < count || parser.retry == nil {
                guard try await take() else { break }
            }
            return parser.events
        }

        func toEnd() async throws -> [SSEParser.Event] {
            while try await take() {}
            return parser.events
        }

        func close() async { await client.close() }
    }

    private let stream: Stream

    /// Listens from now on: when this returns, the stream has begun.
    /// - Parameters:
    ///   - address: the broker's.
    ///   - timeoutSeconds: how long the client waits for the next bytes at most.
    package init(
        _ address: SocketAddress, tenant: String? = nil, lastID: String? = nil, receiveBufferBytes: CInt? = nil,
        timeoutSeconds: Int = 30
    ) async throws {
        stream = Stream(
            try HTTPRawClient(address, receiveBufferBytes: receiveBufferBytes, timeoutSeconds: timeoutSeconds))
        var request = "GET /events HTTP/1.1\r\nHost: broker\r\nAuthorization: Bearer \(BrokerHarness.adminKey)\r\n"
        if let tenant { request += "X-Tenant: \(tenant)\r\n" }
        if let lastID { request += "Last-Event-ID: \(lastID)\r\n" }
        try await stream.begin(request + "\r\n")
        _ = try await stream.events(0)
    }

    /// The first `count` events, once they are there; fewer where the stream ended in good order.
    /// - Throws: where it ended otherwise, or nothing came in time.
    package func events(_ count: Int) async throws -> [SSEParser.Event] { try await stream.events(count) }

    /// In how many chunks everything came so far.
    package var chunks: Int { get async { await stream.chunks } }

    /// All events up to the end of the stream, which is in good order.
    package func toEnd() async throws -> [SSEParser.Event] { try await stream.toEnd() }

    package func close() async { await stream.close() }
}
