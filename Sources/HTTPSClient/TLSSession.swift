internal import COpenSSL
internal import Cryptography
internal import Reactor

/// Owns one `SSL` between two memory BIOs: bytes of the network go in and come out, and nothing here does I/O.
///
/// OpenSSL's own socket BIO uses write(2), which raises SIGPIPE when the peer is gone. With memory BIOs the connection
/// sends for itself, without the signal, and the same way with and without TLS.
///
/// Confined to its client's actor.
@safe final class TLSSession {
    /// The peer broke the protocol, or the library failed. The connection is of no more use.
    enum Fault: Error, Equatable {
        case untrusted(TransportError.UntrustedReason)
        case failed
    }

    enum Decrypted: Equatable {
        /// So many bytes were written to the start of the buffer.
        case bytes(Int)
        /// The next record is not complete.
        case needsInput
        /// The peer sent close_notify: nothing was cut off.
        case closed
    }

    /// Reasons for which OpenSSL ends a handshake that the same two sides cannot bring to another end: what the server has
    /// chosen is none of what the client offers, or the server's alert says that the offer does not suit it (RFC 8446 §6.2:
    /// handshake_failure, protocol_version, insufficient_security, no_application_protocol).
    private static let meansNoCommonProtocol: Set<CInt> = [
        SSL_R_UNSUPPORTED_PROTOCOL, SSL_R_WRONG_SSL_VERSION, SSL_R_NO_PROTOCOLS_AVAILABLE,
        SSL_R_UNKNOWN_CIPHER_RETURNED,
        SSL_R_WRONG_CIPHER_RETURNED, SSL_R_DH_KEY_TOO_SMALL, SSL_R_WRONG_SIGNATURE_TYPE, SSL_R_WRONG_CURVE,
        SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE, SSL_R_TLSV1_ALERT_PROTOCOL_VERSION,
        SSL_R_TLSV1_ALERT_INSUFFICIENT_SECURITY, SSL_R_TLSV1_ALERT_NO_APPLICATION_PROTOCOL,
    ]

    private let ssl: OpaquePointer
    // Both belong to `ssl`.
    private let input: OpaquePointer
    private let output: OpaquePointer
    private var verifiedUntil: MonotonicInstant
    private var isEstablished = false
    private var isBroken = false

    /// - Parameter context: kept alive by the session's own reference.
    @unsafe init?(context: OpaquePointer, identity: PeerIdentity, resuming earlier: ResumableSession?) {
        guard let ssl = unsafe SSL_new(context) else { return nil }
        guard let input = unsafe BIO_new(BIO_s_mem()) else {
            unsafe SSL_free(ssl)
            return nil
        }
        guard let output = unsafe BIO_new(BIO_s_mem()) else {
            unsafe BIO_free(input)
            unsafe SSL_free(ssl)
            return nil
        }
        // From here on SSL_free frees the BIOs as well.
        unsafe SSL_set_bio(ssl, input, output)
        unsafe SSL_set_connect_state(ssl)
        unsafe (self.ssl, self.input, self.output) = unsafe (ssl, input, output)
        verifiedUntil = earlier?.verifiedUntil ?? .distantFuture
        // After the stored properties, so that a failure here runs `deinit`.
        guard withCleanErrorQueue({ unsafe identity.require(of: ssl) }) else { return nil }
        if let earlier {
            // Where the library does not take it, the handshake is a whole one.
            _ = withCleanErrorQueue { unsafe SSL_set_session(ssl, earlier.session) }
        }
    }

    deinit {
        unsafe SSL_free(ssl)
    }

    /// Goes on with the handshake. Returns true when it is complete and the peer is who it should be.
    func handshake(pins: PinSet?) throws(Fault) -> Bool {
        let (status, verifyResult, reason) = withCleanErrorQueue {
            let result = unsafe SSL_do_handshake(ssl)
            // The first entry of the queue is the cause; what follows it are its consequences.
            return unsafe (SSL_get_error(ssl, result), SSL_get_verify_result(ssl), ERR_GET_REASON(ERR_peek_error()))
        }
        switch status {
        case SSL_ERROR_NONE:
            break
        case SSL_ERROR_WANT_READ:
            return false
        default:
            isBroken = true
            if verifyResult != Int(X509_V_OK) { throw .untrusted(.init(verifyResult: verifyResult)) }
            throw status == SSL_ERROR_SSL && Self.meansNoCommonProtocol.contains(reason)
                ? .untrusted(.noCommonProtocol) : .failed
        }
        // SSL_VERIFY_PEER has ended the handshake otherwise; asked again because everything rests on it.
        guard verifyResult == Int(X509_V_OK) else { throw .untrusted(.init(verifyResult: verifyResult)) }
        isEstablished = true
        // A resumed session has no chain: it was verified, and its pins checked, when the session began.
        if isResumed { return true }
        guard let peer = withCleanErrorQueue({ unsafe VerifiedPeer(of: ssl) }) else {
            throw .untrusted(.chain)
        }
        if let pins, !peer.keyDigests.contains(where: pins.contains) { throw .untrusted(.pin) }
        verifiedUntil = .after(.seconds(peer.secondsUntilExpiry))
        return true
    }

    /// Whether the handshake went without certificates, on an earlier connection's secrets.
    var isResumed: Bool { unsafe SSL_session_reused(ssl) == 1 }

    /// Takes in bytes that the network delivered. To be called only when a step asked for input, so that no more than
    /// one buffer of them is held.
    func receive(_ bytes: Span<UInt8>) throws(Fault) {
        let written = withCleanErrorQueue {
            unsafe bytes.withUnsafeBufferPointer { unsafe BIO_write(input, $0.baseAddress, CInt($0.count)) }
        }
        if written != bytes.count {
            isBroken = true
            throw .failed
        }
    }

    /// The next plaintext, into `buffer`.
    func decrypt(into buffer: inout [UInt8]) throws(Fault) -> Decrypted {
        let (result, status) = withCleanErrorQueue {
            let result = unsafe SSL_read(ssl, &buffer, CInt(clamping: buffer.count))
            return unsafe (result, SSL_get_error(ssl, result))
        }
        switch status {
        case SSL_ERROR_NONE: return .bytes(Int(result))
        case SSL_ERROR_WANT_READ: return .needsInput
        case SSL_ERROR_ZERO_RETURN: return .closed
        default:
            isBroken = true
            throw .failed
        }
    }

    /// Encrypts `bytes` whole; `takeOutput` then has the records.
    func encrypt(_ bytes: Span<UInt8>) throws(Fault) {
        let written = withCleanErrorQueue {
            unsafe bytes.withUnsafeBufferPointer { unsafe SSL_write(ssl, $0.baseAddress, CInt($0.count)) }
        }
        if written != bytes.count {
            isBroken = true
            throw .failed
        }
    }

    /// Queues close_notify, if the state of the connection permits one.
    func finish() {
        // SSL_shutdown(3): not during a handshake and not after a fatal error.
        guard isEstablished, !isBroken else { return }
        _ = withCleanErrorQueue { unsafe SSL_shutdown(ssl) }
    }

    /// The bytes that are to be sent now, in order.
    func takeOutput() -> [UInt8] {
        withCleanErrorQueue {
            let count = unsafe BIO_ctrl_pending(output)
            if count == 0 { return [] }
            var bytes = [UInt8](repeating: 0, count: count)
            let read = unsafe BIO_read(output, &bytes, CInt(clamping: count))
            return read == count ? bytes : Array(bytes.prefix(max(0, Int(read))))
        }
    }

    /// What the server has given to resume with, for one later connection (RFC 8446 Appendix C.4); nil when it gave
    /// nothing.
    func resumableSession() -> ResumableSession? {
        guard isEstablished, !isBroken, let session = unsafe SSL_get1_session(ssl) else { return nil }
        let resumable = unsafe ResumableSession(adopting: session, verifiedUntil: verifiedUntil)
        return unsafe SSL_SESSION_is_resumable(session) == 1 ? resumable : nil
    }
}
