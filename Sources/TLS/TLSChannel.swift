import COpenSSL
import Cryptography

/// Owns one `SSL`. It encrypts and decrypts bytes and does no I/O.
///
/// OpenSSL's own socket BIO uses write(2), which raises SIGPIPE when the peer is gone. Here the connection sends the bytes
/// itself, without the signal, and in the same way with and without TLS.
///
/// It is not `Sendable`: the actor or the loop that owns the connection uses it.
@safe package final class TLSChannel {
    package enum Role {
        case client, server
    }

    /// The peer violated the protocol, or the library failed. The channel cannot be used again.
    package struct Fault: Error, Equatable {
        package init() {}
    }

    package enum HandshakeStep: Equatable {
        case complete
        /// The next message of the peer is incomplete.
        case needsInput
        /// The channel cannot be used again. `takeOutput` may return an alert for the peer.
        /// - Parameter reason: OpenSSL's reason for a violation of the protocol; nil for a failure of another kind.
        case failed(reason: CInt?)
    }

    package enum Decrypted: Equatable {
        /// This many bytes were written to the start of the buffer.
        case bytes(Int)
        /// The next record is incomplete.
        case needsInput
        /// The peer sent close_notify, so no data was cut off.
        case closed
    }

    /// The most bytes of plaintext that a server puts into one record. RFC 8446 §5.1 permits 16,384; OpenSSL's buffer for a
    /// record to send is as long as the longest one, and is wiped after each answer.
    package static let recordBytes = 4096

    private let ssl: OpaquePointer
    // Outlives `ssl`, which owns the BIO that refers to it.
    private let records = RecordBIO()
    /// Whether the handshake is complete.
    package private(set) var isEstablished = false
    private var isBroken = false
    /// Nil for a client, which sends the ClientHello itself.
    private var helloLimit: ClientHelloLimit?
    private var hasFinished = false

    /// - Parameter context: an `SSL_CTX`. The channel takes its own reference to it.
    /// - Returns: nil when memory is short.
    @unsafe package init?(context: OpaquePointer, role: Role) {
        guard let ssl = unsafe SSL_new(context) else { return nil }
        guard let bio = unsafe records.makeBIO() else {
            unsafe SSL_free(ssl)
            return nil
        }
        // From here on SSL_free also frees the BIO.
        unsafe SSL_set_bio(ssl, bio, bio)
        switch role {
        case .client: unsafe SSL_set_connect_state(ssl)
        case .server:
            unsafe SSL_set_accept_state(ssl)
            helloLimit = ClientHelloLimit()
        }
        unsafe self.ssl = unsafe ssl
    }

    deinit {
        unsafe SSL_free(ssl)
    }

    /// Lends the `SSL` to `body`, which must not keep it.
    @unsafe package func withSSL<R>(_ body: (OpaquePointer) -> R) -> R {
        defer { extendLifetime(self) }
        return unsafe body(ssl)
    }

    /// Whether the channel can still be used.
    package var isUsable: Bool { isEstablished && !isBroken }

    /// Continues the handshake.
    package func handshake() -> HandshakeStep {
        let (status, reason) = withCleanErrorQueue {
            let result = unsafe SSL_do_handshake(ssl)
            // The first entry of the error queue is the cause; later entries are its consequences.
            return unsafe (SSL_get_error(ssl, result), ERR_GET_REASON(ERR_peek_error()))
        }
        switch status {
        case SSL_ERROR_NONE:
            isEstablished = true
            return .complete
        case SSL_ERROR_WANT_READ:
            return .needsInput
        default:
            isBroken = true
            return .failed(reason: status == SSL_ERROR_SSL ? reason : nil)
        }
    }

    /// Takes bytes from the network. Call this only when a step has asked for input, so that at most one buffer of
    /// bytes is held.
    /// - Throws: also when they announce a longer ClientHello than a client sends; see `ClientHelloLimit`.
    package func receive(_ bytes: Span<UInt8>) throws(Fault) {
        if !isEstablished, helloLimit != nil {
            let isTLS12 = unsafe SSL_version(ssl) == TLS1_2_VERSION
            if helloLimit?.admits(bytes, isTLS12: isTLS12) == false {
                isBroken = true
                throw Fault()
            }
        }
        records.receive(bytes)
    }

    /// Whether bytes that have arrived may hold another plaintext.
    package var hasInput: Bool { unsafe records.hasArrived || SSL_has_pending(ssl) == 1 }

    /// Writes the next plaintext to `buffer`.
    package func decrypt(into buffer: inout MutableSpan<UInt8>) throws(Fault) -> Decrypted {
        clearErrorQueue()
        let result = unsafe buffer.withUnsafeMutableBufferPointer {
            unsafe SSL_read(ssl, $0.baseAddress, CInt(clamping: $0.count))
        }
        // Success leaves no error behind, and looking for one takes longer than this.
        if result > 0 { return .bytes(Int(result)) }
        defer { clearErrorQueue() }
        switch unsafe SSL_get_error(ssl, result) {
        case SSL_ERROR_WANT_READ: return .needsInput
        case SSL_ERROR_ZERO_RETURN: return .closed
        default:
            isBroken = true
            throw Fault()
        }
    }

    /// Encrypts all of `bytes`. `takeOutput` then returns the records.
    package func encrypt(_ bytes: Span<UInt8>) throws(Fault) {
        clearErrorQueue()
        let written = unsafe bytes.withUnsafeBufferPointer { unsafe SSL_write(ssl, $0.baseAddress, CInt($0.count)) }
        if written != bytes.count {
            clearErrorQueue()
            isBroken = true
            throw Fault()
        }
    }

    /// Queues close_notify, if the connection's state permits it. A second call does nothing.
    package func finish() {
        // SSL_shutdown(3): not during a handshake and not after a fatal error.
        guard isUsable, !hasFinished else { return }
        hasFinished = true
        _ = withCleanErrorQueue { unsafe SSL_shutdown(ssl) }
    }

    /// Appends the bytes to send now, in order.
    package func takeOutput(into bytes: inout [UInt8]) { records.takeUnsent(into: &bytes) }
}
