import BrokerTesting
import HTTPServer
import Reactor
import Testing

@testable import TLS

/// What a server holds for a client before it knows anything about it.
@Suite(.timeLimit(.minutes(1))) struct `A ClientHello that is announced` {
    /// Records with the bytes of messages.
    /// - Parameter pieces: how many bytes of the messages each record has.
    private static func records(_ messages: [UInt8], type: UInt8 = 22, inPiecesOf pieces: Int = 16_384) -> [UInt8] {
        var records: [UInt8] = []
        for start in stride(from: 0, to: messages.count, by: pieces) {
            let piece = messages[start..<min(start + pieces, messages.count)]
            records += [type, 3, 1, UInt8(piece.count >> 8), UInt8(piece.count & 255)] + piece
        }
        return records
    }

    /// The head of a message.
    private static func head(_ type: UInt8, _ length: Int) -> [UInt8] {
        [type, UInt8(length >> 16), UInt8(length >> 8 & 255), UInt8(length & 255)]
    }

    private static func message(_ type: UInt8, _ length: Int) -> [UInt8] {
        head(type, length) + [UInt8](repeating: 7, count: length)
    }

    private static let changeCipherSpec = records([1], type: 20)

    private func admits(_ bytes: [UInt8], isTLS12: Bool = false, inPiecesOf pieces: Int) -> Bool {
        var limit = ClientHelloLimit()
        return stride(from: 0, to: bytes.count, by: pieces).allSatisfy { start in
            limit.admits(Array(bytes[start..<min(start + pieces, bytes.count)]).span, isTLS12: isTLS12)
        }
    }

    @Test(arguments: [1, 2, 4, 5, 7, 16_384], [1, 3, 16_384])
    func `is refused when its length is above 16 KB, however it is cut`(record: Int, segment: Int) throws {
        func admits(_ messages: [UInt8]) -> Bool {
            self.admits(Self.records(messages, inPiecesOf: record), inPiecesOf: segment)
        }
        #expect(admits(Self.message(1, 300)))
        #expect(admits(Self.message(1, ClientHelloLimit.bytes)))
        #expect(!admits(Self.head(1, ClientHelloLimit.bytes + 1)))
        #expect(!admits(Self.head(1, 131_396)))
        #expect(!admits(Self.message(1, 300) + Self.head(1, 131_396)))
        // OpenSSL itself refuses other messages above 2 KB.
        #expect(admits(Self.head(16, 131_396)))
    }

    @Test func `a second time is refused as well, and what is encrypted is not taken for one`() {
        let encrypted = Self.records(Self.head(1, 131_396) + [UInt8](repeating: 9, count: 28))
        let second = Self.records(Self.message(1, 300)) + Self.changeCipherSpec + encrypted
        #expect(!admits(second, inPiecesOf: 100))
        #expect(admits(second, isTLS12: true, inPiecesOf: 100))
        // A record of application data, of no bytes, of an unknown type.
        for other in [Self.records(Self.head(1, 131_396), type: 23), [22, 3, 1, 0, 0], [128, 60, 1, 3, 1]] {
            #expect(admits(other, inPiecesOf: 100))
        }
        #expect(!admits([22, 3, 1, 0, 0] + encrypted, inPiecesOf: 100))
    }

    @Test(arguments: [1, 4]) func `ends the connection before anything is kept for it`(pieces: Int) async throws {
        let certificates = TLSTestCertificates.shared
        let context = try TLSServerContext(
            certificateFile: certificates.chain(.good), keyFile: certificates.key(.good))
        let configuration = configured {
            $0.tls = context
            // So that no other limit ends it.
            $0.headTimeout = .seconds(3600)
        }
        try await withServer(configuration) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(Self.records(Self.head(1, 131_396), inPiecesOf: pieces))
            #expect(try await client.rest().isEmpty)
            let other = try TLSRawClient(server.address)
            try await other.handshake()
            try await other.send(get("/a"))
            #expect(try await other.response().text == "GET /a\n")
        }
    }
}
