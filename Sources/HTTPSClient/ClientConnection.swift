internal import Reactor

/// One connection to a server, with or without TLS: a descriptor, what OpenSSL keeps for it, and one read buffer.
///
/// Confined to its client's actor. It closes itself when the last reference goes.
final class ClientConnection {
    /// Why bytes could not be moved. The connection is of no more use.
    enum Fault: Error, Equatable {
        case timedOut
        case cancelled
        /// Reset, closed in the wrong place, or cut off without close_notify.
        case lost
        /// In the handshake only.
        case untrusted(TransportError.UntrustedReason)
        case tlsFailed
    }

    private let loop: EventLoop
    private let descriptor: OwnedDescriptor
    private let tls: TLSSession?
    /// Bytes from the network: plaintext, or records for `tls`. Empty between exchanges, as is `plaintext`.
    private var network: [UInt8] = []
    /// What `tls` has made of them.
    private var plaintext: [UInt8] = []
    private var received = 0
    /// Bytes from the network since TLS last brought something that was wanted.
    private var overhead = 0

    /// The largest handshake that OpenSSL takes is below this, and so is what may come between two pieces of data:
    /// tickets, key updates. A peer that sends more of it has nothing in mind but to keep the loop's thread busy.
    private static let maximumOverhead = 256 << 10

    /// A record's plaintext is at most 2^14 bytes (RFC 8446 §5.1).
    private static let bufferSize = 16 << 10

    /// Whether a byte of the current request has been given to the kernel.
    private(set) var hasSentRequestBytes = false

    init(descriptor: consuming OwnedDescriptor, tls: TLSSession?, loop: EventLoop) {
        self.descriptor = descriptor
        self.tls = tls
        self.loop = loop
    }

    deinit {
        guard let tls else { return }
        // One attempt: a peer that has no room for close_notify does not hold up the close.
        tls.finish()
        _ = try? SocketTransfer.send(tls.takeOutput().span, to: descriptor.rawValue)
    }

    /// Completes the TLS handshake and makes sure of the peer. Nothing to do for a connection without TLS.
    func handshake(pins: PinSet?, until deadline: MonotonicInstant) async throws(Fault) {
        guard let tls else { return }
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
                try await transmit(tls.takeOutput(), until: deadline)
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
        guard let tls else { return try await transmit(request, isRequest: true, until: deadline) }
        var start = 0
        while start < request.count {
            // Record by record, so that a long body is not held a second time in its encrypted form.
            let end = min(start + (16 << 10), request.count)
            do throws(TLSSession.Fault) {
                try tls.encrypt(request.span.extracting(start..<end))
            } catch {
                throw .lost
            }
            try await transmit(tls.takeOutput(), isRequest: true, until: deadline)
            start = end
        }
    }

    /// Forgets the request before, so that `hasSentRequestBytes` speaks of the next.
    func beginRequest() {
        hasSentRequestBytes = false
    }

    /// Lets go of what was received: an answer with tokens must not stay in memory for as long as its connection is idle.
    func releaseBuffers() {
        (network, plaintext, received) = ([], [], 0)
    }

    /// What the buffers for received bytes take, in bytes.
    var bufferSize: Int { network.count + plaintext.count }

    /// Waits for bytes and has `withReceived` lend them. False when the server finished in good order: with
    /// close_notify where there is TLS, since a bare end of the stream may be an attacker's cut (RFC 8446 §6.1).
    func receive(until deadline: MonotonicInstant) async throws(Fault) -> Bool {
        received = 0
        while true {
            // A peer that keeps the socket readable without saying anything is cut off all the same.
            if MonotonicInstant.now >= deadline { throw .timedOut }
            if Task.isCancelled { throw .cancelled }
            switch try next() {
            case .received: return true
            case .finished: return false
            case .nothing: try await wait(.readable, until: deadline)
            }
        }
    }

    /// Lends what `receive` brought.
    func withReceived<R, E: Error>(_ body: (Span<UInt8>) throws(E) -> R) throws(E) -> R {
        try body((tls == nil ? network : plaintext).span.extracting(0..<received))
    }

    /// What a connection shows on which nothing is expected.
    enum Silence {
        case quiet
        /// The server has said something that no request asked for.
        case broken
        /// The server has closed, or the connection failed.
        case ended
    }

    /// Looks, without waiting, for bytes or an end of the connection. What a server says between requests belongs to no
    /// request (RFC 9112 §9.2), so a connection that is not quiet must not be used. TLS messages that carry no data,
    /// such as session tickets, are taken in and do not count.
    func silence() -> Silence {
        do throws(Fault) {
            switch try next() {
            case .received: return .broken
            case .finished: return .ended
            case .nothing: return .quiet
            }
        } catch {
            return .ended
        }
    }

    var isResumed: Bool { tls?.isResumed ?? false }

    func resumableSession() -> ResumableSession? { tls?.resumableSession() }

    // MARK: Bytes

    private enum Next {
        case received
        case finished
        /// The socket has nothing more at the moment.
        case nothing
    }

    /// One step of reading that does not wait.
    private func next() throws(Fault) -> Next {
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
            case .bytes(let count): try give(count, to: tls)
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
            case .bytes(let count): return try give(count, to: tls)
            case .end: throw .lost
            case .wouldBlock: try await wait(.readable, until: deadline)
            }
        }
    }

    private func give(_ count: Int, to tls: TLSSession) throws(Fault) {
        overhead += count
        if overhead > Self.maximumOverhead { throw .lost }
        // A span must not be borrowed from a class's stored property for longer than one access.
        let records = network
        do throws(TLSSession.Fault) {
            try tls.receive(records.span.extracting(0..<count))
        } catch {
            throw .lost
        }
    }

    private func transmit(
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
            _ = try await loop.ready(descriptor.rawValue, interest, until: deadline)
        } catch {
            switch error {
            case .deadlineExceeded: throw .timedOut
            case .cancelled: throw .cancelled
            case .system: throw .lost
            }
        }
    }
}
