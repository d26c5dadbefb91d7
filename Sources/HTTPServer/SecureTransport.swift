import TLS

/// The TLS of one connection: its handshake, and what is read and written through it. It does no I/O. On the loop's
/// thread only.
final class SecureTransport {
    enum Read: Equatable {
        /// This many bytes were written to the start of the buffer.
        case bytes(Int)
        /// The next message or record is incomplete.
        case needsInput
        /// The peer has finished sending.
        case finished
        /// The peer violated the protocol. An alert for it may be unsent.
        case failed
    }

    private let channel: TLSChannel
    /// Who the client is by its certificate; nil without one.
    private(set) var peer: PeerIdentity?
    /// Whether bytes that have arrived may hold a whole record.
    private(set) var hasInput = false
    /// Whether an answer could not be encrypted, so that the connection has to be closed.
    private(set) var hasLostOutput = false
    private(set) var hasFailed = false
    /// How many bytes have arrived since the last plaintext.
    private var overhead = 0

    /// The most bytes that may arrive without plaintext, such as the messages of a handshake and key updates: more than
    /// OpenSSL accepts in a handshake. A peer that exceeds it only keeps the loop's thread busy.
    static let maximumOverhead = 256 << 10

    init(_ channel: TLSChannel) {
        self.channel = channel
    }

    /// Whether the handshake is complete.
    var isEstablished: Bool { channel.isEstablished }

    /// Has `handler` say who the client is by the certificate that it has shown, if it has. To be called once, when the handshake
    /// is complete; also where that has resumed an earlier session, whose ticket has the certificate.
    func identifyPeer(by handler: any RequestHandler) {
        guard let certificate = channel.peerCertificate() else { return }
        peer = PeerIdentity(handler.identities(of: certificate), expirySeconds: certificate.expirySeconds)
    }

    /// Continues the handshake; once it is complete, writes the next plaintext to `buffer`. To be called while `hasInput`.
    func read(into buffer: InputBuffer) -> Read {
        if !channel.isEstablished {
            switch channel.handshake() {
            case .complete: break
            case .needsInput:
                hasInput = false
                return .needsInput
            case .failed:
                hasFailed = true
                return .failed
            }
        }
        do throws(TLSChannel.Fault) {
            switch try buffer.fill({ bytes throws(TLSChannel.Fault) in try channel.decrypt(into: &bytes) }) {
            case .bytes(let count):
                overhead = 0
                hasInput = channel.hasInput
                return .bytes(count)
            case .needsInput:
                hasInput = false
                return .needsInput
            case .closed:
                hasInput = false
                return .finished
            }
        } catch {
            hasFailed = true
            return .failed
        }
    }

    /// Takes bytes from the network, while there is no input. False when the peer violated the protocol.
    func receive(_ bytes: Span<UInt8>) -> Bool {
        overhead += bytes.count
        do throws(TLSChannel.Fault) {
            guard overhead <= Self.maximumOverhead else { throw TLSChannel.Fault() }
            try channel.receive(bytes)
            hasInput = true
        } catch {
            hasFailed = true
        }
        return !hasFailed
    }

    /// Appends `bytes` as records.
    func encrypt(_ bytes: Span<UInt8>, into records: inout [UInt8]) {
        var start = 0
        // One record at a time, so that a long answer is not held twice.
        while start < bytes.count, !hasLostOutput {
            let end = min(start + TLSChannel.recordBytes, bytes.count)
            do throws(TLSChannel.Fault) {
                try channel.encrypt(bytes.extracting(start..<end))
            } catch {
                hasLostOutput = true
            }
            channel.takeOutput(into: &records)
            start = end
        }
    }

    /// Appends what the protocol has to send: messages of the handshake, alerts.
    func takeOutput(into records: inout [UInt8]) {
        channel.takeOutput(into: &records)
    }

    /// Appends close_notify, once, if the handshake is complete.
    func finish(into records: inout [UInt8]) {
        channel.finish()
        channel.takeOutput(into: &records)
    }
}
