import BrokerTesting
import HTTPCodec
import Reactor
import TLS

@testable import HTTPSClient

/// A TLS client whose records a test sends as it wishes: whole, in pieces, or spoilt. It trusts the test root.
///
/// It is not `Sendable`: a test uses it from its own task.
final class TLSRawClient {
    let socket: HTTPRawClient
    private let session: TLSSession
    private var buffer = [UInt8](repeating: 0, count: 16_384)
    private var plaintext: [UInt8] = []
    /// Whether the server has said by close_notify that nothing is cut off.
    private(set) var hasReceivedCloseNotify = false

    enum Failure: Error {
        /// The session cannot be made.
        case noSession
        /// The server closed during the handshake, or without close_notify.
        case cut
    }

    /// Connects, and begins no handshake.
    /// - Parameter earlier: a client whose session is to be resumed.
    init(_ address: SocketAddress, resuming earlier: TLSRawClient? = nil) throws {
        socket = try HTTPRawClient(address)
        let context = try TLSContext(roots: TrustedRoots(file: TLSTestCertificates.shared.root))
        let session = context.makeSession(
            for: PeerIdentity(host: "localhost"), resuming: earlier?.session.resumableSession())
        guard let session else { throw Failure.noSession }
        self.session = session
    }

    var isResumed: Bool { session.isResumed }

    /// The first message of the handshake.
    func hello() throws -> [UInt8] {
        _ = try session.handshake(pins: nil)
        return session.takeOutput()
    }

    /// Completes the handshake.
    /// - Parameter pieces: how many bytes are sent at a time.
    func handshake(inPiecesOf pieces: Int = .max) async throws {
        while true {
            let isComplete = try session.handshake(pins: nil)
            try await send(records: session.takeOutput(), inPiecesOf: pieces)
            if isComplete { return }
            let received = try await socket.receive()
            if received.isEmpty { throw Failure.cut }
            try session.receive(received.span)
        }
    }

    /// The records of a text.
    func records(_ text: String) throws -> [UInt8] {
        try session.encrypt(Array(text.utf8).span)
        return session.takeOutput()
    }

    func send(_ text: String, inPiecesOf pieces: Int = .max) async throws {
        try await send(records: try records(text), inPiecesOf: pieces)
    }

    func send(records: [UInt8], inPiecesOf pieces: Int = .max) async throws {
        var rest = records[...]
        while !rest.isEmpty {
            try await socket.send(Array(rest.prefix(pieces)))
            rest = rest.dropFirst(pieces)
        }
    }

    /// Sends close_notify.
    func finish() async throws {
        session.finish()
        try await send(records: session.takeOutput())
    }

    /// Reads one whole response; what follows it is kept for the next call.
    func response() async throws -> ParsedResponse {
        var parser = ResponseParser(requestMethod: .get)
        while true {
            if plaintext.isEmpty, try await !receive() { return try parser.peerClosed() }
            let bytes = plaintext
            if case .complete(let count) = try parser.consume(bytes.span) {
                plaintext.removeFirst(count)
                return parser.response
            }
            plaintext = []
        }
    }

    /// Reads until close_notify and then to the end of the connection. Returns the plaintext.
    func rest() async throws -> String {
        while try await receive() {}
        defer { plaintext = [] }
        _ = try await socket.rest()
        return String(decoding: plaintext, as: UTF8.self)
    }

    /// Appends the next plaintext. False after close_notify.
    private func receive() async throws -> Bool {
        while true {
            switch try session.decrypt(into: &buffer) {
            case .bytes(let count):
                plaintext += buffer[..<count]
                return true
            case .closed:
                hasReceivedCloseNotify = true
                return false
            case .needsInput:
                let received = try await socket.receive()
                if received.isEmpty { throw Failure.cut }
                try session.receive(received.span)
            }
        }
    }
}
