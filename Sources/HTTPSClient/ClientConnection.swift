import Reactor
import TLS

/// One connection to a server, with or without TLS: a descriptor, OpenSSL's state for it, and one read buffer.
///
/// Only its client's actor uses it. It closes when the last reference to it is released.
final class ClientConnection {
    /// Why a transfer failed. The connection cannot be used again.
    enum Fault: Error, Equatable {
        case timedOut
        case cancelled
        /// The peer reset the connection, closed it in the middle of a message, or ended the stream without
        /// close_notify.
        case lost
        /// Only during the handshake.
        case untrusted(TransportError.UntrustedReason)
        case tlsFailed
    }

    private let loop: EventLoop
    private let descriptor: OwnedDescriptor
    private var tls: TLSSession?
    /// Bytes from the network: plaintext without TLS, otherwise records for `tls`. Empty between exchanges, like
    /// `plaintext`.
    private var network: [UInt8] = []
    /// The bytes that `tls` decrypted.
    private var plaintext: [UInt8] = []
    private var received = 0
    /// Bytes from the network since `tls` last returned plaintext or completed the handshake.
    private var overhead = 0

    /// The limit of `overhead`. It is larger than the largest handshake that OpenSSL accepts and than the tickets and
    /// key updates that a server sends between two pieces of data. A peer that exceeds it only keeps the loop's thread
    /// busy.
    private static let maximumOverhead = 256 << 10

    /// A record's plaintext is at most 2^14 bytes (RFC 8446 §5.1).
    private static let bufferSize = 16 << 10

    /// Whether the kernel has accepted a byte of the current request.
    private(set) var hasSentRequestBytes = false

    /// A connection without TLS.
    init(descriptor: consuming OwnedDescriptor, loop: EventLoop) {
        self.descriptor = descriptor
        self.loop = loop
    }

    deinit {
        guard let tls else { return }
        // One attempt, without waiting: a peer whose receive window is full must not delay the close.
        tls.finish()
        _ = try? SocketTransfer.send(tls.takeOutput().span, to: descriptor.rawValue)
    }

    /// Begins TLS, completes the handshake and verifies the peer. The peer has not sent anything that was not received yet.
    func begin(_ tls: TLSSession, pins: PinSet?, until deadline: MonotonicInstant) async throws(Fault) {
        releaseBuffers()
        self.tls = tls
        while true {
            let isComplete: Bool
            do throws(TLSSession.Fault) {
                isComplete = try tls.handshake(pins: pins)
            } catch {
                switch error {
                case .untrusted(let reason): throw .untrusted(reason)
                case .failed: throw .tlsFailed
                }
            }
            do throws(Fault) {
                try await sendBytes(tls.takeOutput(), until: deadline)
                if isComplete {
                    overhead = 0
                    return
                }
                try await receiveRecords(for: tls, until: deadline)
            } catch .lost {
                throw .tlsFailed
            }
        }
    }

    /// Sends a request whole.
    func send(_ request: [UInt8], until deadline: MonotonicInstant) async throws(Fault) {
        guard let tls else { return try await sendBytes(request, isRequest: true, until: deadline) }
        var start = 0
        while start < request.count {
            // One record at a time, so that a long body is not held twice, in clear and encrypted.
            let end = min(start + (16 << 10), request.count)
            do throws(TLSSession.Fault) {
                try tls.encrypt(request.span.extracting(start..<end))
            } catch {
                throw .lost
            }
            try await sendBytes(tls.takeOutput(), isRequest: true, until: deadline)
            start = end
        }
    }

    /// Resets `hasSentRequestBytes` for the next request.
    func beginRequest() {
        hasSentRequestBytes = false
    }

    /// Releases the received bytes: a response that holds tokens must not stay in memory while its connection is idle.
    func releaseBuffers() {
        (network, plaintext, received) = ([], [], 0)
    }

    /// The size of the buffers for received bytes, in bytes.
    var bufferSize: Int { network.count + plaintext.count }

    /// Waits for bytes, which `withReceived` then lends. Returns false when the server closed properly: with TLS that
    /// means close_notify, since an attacker can end the stream without it (RFC 8446 §6.1).
    func receive(until deadline: MonotonicInstant) async throws(Fault) -> Bool {
        received = 0
        while true {
            if Task.isCancelled { throw .cancelled }
            switch try readOnce() {
            case .received: return true
            case .finished: return false
            case .nothing:
                // Checked after the read: when the process was paused until after the deadline, the response may have
                // arrived in time, and it may hold the only copy of a refresh token. Checked here as well as in `wait`,
                // because a peer that sends bytes without data keeps the socket readable.
                if MonotonicInstant.now >= deadline { throw .timedOut }
                try await wait(.readable, until: deadline)
            }
        }
    }

    /// Lends the bytes of the last `receive`.
    func withReceived<R, E: Error>(_ body: (Span<UInt8>) throws(E) -> R) throws(E) -> R {
        try body((tls == nil ? network : plaintext).span.extracting(0..<received))
    }

    /// The state of a connection on which no response is expected.
    enum IdleState {
        case quiet
        /// The server has sent bytes that no request asked for.
        case receivedData
        /// The server has closed the connection, or it failed.
        case closed
    }

    /// Reads without waiting and returns what it found. Bytes that a server sends between requests belong to no request
    /// (RFC 9112 §9.2), so only a quiet connection may be used again. TLS messages without data, such as session
    /// tickets, are processed and do not count.
    func idleState() -> IdleState {
        do throws(Fault) {
            switch try readOnce() {
            case .received: return .receivedData
            case .finished: return .closed
            case .nothing: return .quiet
            }
        } catch {
            return .closed
        }
    }

    var isResumed: Bool { tls?.isResumed ?? false }

    /// As `TLSSession.matchesBackupPinOnly`.
    var matchesBackupPinOnly: Bool { tls?.matchesBackupPinOnly ?? false }

    /// As `TLSSession.certificates`; empty without TLS.
    func certificates() -> [VerifiedCertificate] { tls?.certificates() ?? [] }

    func resumableSession() -> ResumableSession? { tls?.resumableSession() }

    // MARK: Bytes

    private enum ReadResult {
        case received
        case finished
        /// The socket has no more bytes at the moment.
        case nothing
    }

    /// Reads once, without waiting.
    private func readOnce() throws(Fault) -> ReadResult {
        guard let tls else {
            switch try receiveFromNetwork() {
            case .bytes(let count):
                received = count
                return .received
            case .end: return .finished
            case .wouldBlock: return .nothing
            }
        }
        if plaintext.isEmpty { plaintext = [UInt8](repeating: 0, count: Self.bufferSize) }
        while true {
            do throws(TLSSession.Fault) {
                switch try tls.decrypt(into: &plaintext) {
                case .bytes(let count):
                    received = count
                    overhead = 0
                    return .received
                case .closed: return .finished
                case .needsInput: break
                }
            } catch {
                throw .lost
            }
            switch try receiveFromNetwork() {
            case .bytes(let count): try decrypt(count, with: tls)
            case .end: throw .lost
            case .wouldBlock: return .nothing
            }
        }
    }

    private func receiveFromNetwork() throws(Fault) -> SocketTransfer.Received {
        if network.isEmpty { network = [UInt8](repeating: 0, count: Self.bufferSize) }
        do throws(SystemError) {
            return try SocketTransfer.receive(descriptor.rawValue, into: &network)
        } catch {
            throw .lost
        }
    }

    private func receiveRecords(for tls: TLSSession, until deadline: MonotonicInstant) async throws(Fault) {
        while true {
            switch try receiveFromNetwork() {
            case .bytes(let count): return try decrypt(count, with: tls)
            case .end: throw .lost
            case .wouldBlock: try await wait(.readable, until: deadline)
            }
        }
    }

    private func decrypt(_ count: Int, with tls: TLSSession) throws(Fault) {
        overhead += count
        if overhead > Self.maximumOverhead { throw .lost }
        // Copied, because a span cannot be borrowed from a class's stored property for longer than one access.
        let records = network
        do throws(TLSSession.Fault) {
            try tls.receive(records.span.extracting(0..<count))
        } catch {
            throw .lost
        }
    }

    private func sendBytes(
        _ bytes: [UInt8], isRequest: Bool = false, until deadline: MonotonicInstant
    ) async throws(Fault) {
        var start = 0
        while start < bytes.count {
            let sent: Int?
            do throws(SystemError) {
                sent = try SocketTransfer.send(bytes.span.extracting(start..<bytes.count), to: descriptor.rawValue)
            } catch {
                throw .lost
            }
            if let sent {
                start += sent
                if isRequest, sent > 0 { hasSentRequestBytes = true }
            } else {
                try await wait(.writable, until: deadline)
            }
        }
    }

    private func wait(_ interest: Readiness, until deadline: MonotonicInstant) async throws(Fault) {
        do throws(WaitInterrupted) {
            _ = try await loop.ready(descriptor.rawValue, for: interest, until: deadline)
        } catch {
            switch error {
            case .deadlineExceeded: throw .timedOut
            case .cancelled: throw .cancelled
            case .system: throw .lost
            }
        }
    }
}
