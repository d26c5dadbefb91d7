internal import COpenSSL
internal import Cryptography
internal import Reactor

/// Owns one `SSL` between two memory BIOs. It encrypts and decrypts bytes and does no I/O.
///
/// OpenSSL's own socket BIO uses write(2), which raises SIGPIPE when the peer is gone. With memory BIOs the connection
/// sends the bytes itself, without the signal, and in the same way with and without TLS.
///
/// Only the client's actor uses it.
@safe final class TLSSession {
    /// The peer violated the protocol, or the library failed. The session cannot be used again.
    enum Fault: Error, Equatable {
        case untrusted(TransportError.UntrustedReason)
        case failed
    }

    enum Decrypted: Equatable {
        /// This many bytes were written to the start of the buffer.
        case bytes(Int)
        /// The next record is incomplete.
        case needsInput
        /// The peer sent close_notify, so no data was cut off.
        case closed
    }

    /// OpenSSL's reasons for a failed handshake that would fail again between the same client and server: the server
    /// chose a parameter that the client did not offer, or its alert says that the client's offer is not acceptable
    /// (RFC 8446 §6.2: handshake_failure, protocol_version, insufficient_security, no_application_protocol).
    private static let meansNoCommonProtocol: Set<CInt> = [
        SSL_R_UNSUPPORTED_PROTOCOL, SSL_R_WRONG_SSL_VERSION, SSL_R_NO_PROTOCOLS_AVAILABLE,
        SSL_R_UNKNOWN_CIPHER_RETURNED,
        SSL_R_WRONG_CIPHER_RETURNED, SSL_R_DH_KEY_TOO_SMALL, SSL_R_WRONG_SIGNATURE_TYPE, SSL_R_WRONG_CURVE,
        SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE, SSL_R_TLSV1_ALERT_PROTOCOL_VERSION,
        SSL_R_TLSV1_ALERT_INSUFFICIENT_SECURITY, SSL_R_TLSV1_ALERT_NO_APPLICATION_PROTOCOL,
    ]

    private let ssl: OpaquePointer
    // `ssl` owns both BIOs.
    private let input: OpaquePointer
    private let output: OpaquePointer
    private var verifiedUntil: MonotonicInstant
    private var isEstablished = false
    private var isBroken = false

    /// - Parameter context: the session takes its own reference to it.
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
        // From here on SSL_free also frees the BIOs.
        unsafe SSL_set_bio(ssl, input, output)
        unsafe SSL_set_connect_state(ssl)
        unsafe (self.ssl, self.input, self.output) = unsafe (ssl, input, output)
        verifiedUntil = earlier?.verifiedUntil ?? .distantFuture
        // All stored properties are set, so a failure here runs `deinit`.
        guard withCleanErrorQueue({ unsafe identity.require(of: ssl) }) else { return nil }
        if let earlier {
            // If OpenSSL refuses the session, the handshake is a full one.
            _ = withCleanErrorQueue { unsafe SSL_set_session(ssl, earlier.session) }
        }
    }

    deinit {
        unsafe SSL_free(ssl)
    }

    /// Continues the handshake. Returns true when it is complete and the peer's identity is verified.
    func handshake(pins: PinSet?) throws(Fault) -> Bool {
        let (status, verifyResult, reason) = withCleanErrorQueue {
            let result = unsafe SSL_do_handshake(ssl)
            // The first entry of the error queue is the cause; later entries are its consequences.
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
        // SSL_VERIFY_PEER has already ended the handshake in this case. The check is repeated because all trust in the
        // server depends on it.
        guard verifyResult == Int(X509_V_OK) else { throw .untrusted(.init(verifyResult: verifyResult)) }
        isEstablished = true
        // A resumed session has no chain. The chain was verified and its pins were checked when the session began.
        if isResumed { return true }
        guard let peer = withCleanErrorQueue({ unsafe VerifiedPeer(of: ssl) }) else {
            throw .untrusted(.chain)
        }
        if let pins, !peer.keyDigests.contains(where: pins.contains) { throw .untrusted(.pin) }
        verifiedUntil = .after(.seconds(peer.secondsUntilExpiry))
        return true
    }

    /// Whether the handshake resumed an earlier session instead of exchanging certificates.
    var isResumed: Bool { unsafe SSL_session_reused(ssl) == 1 }

    /// Takes bytes from the network. Call this only when a step has asked for input, so that at most one buffer of
    /// bytes is held.
    func receive(_ bytes: Span<UInt8>) throws(Fault) {
        let written = withCleanErrorQueue {
            unsafe bytes.withUnsafeBufferPointer { unsafe BIO_write(input, $0.baseAddress, CInt($0.count)) }
        }
        if written != bytes.count {
            isBroken = true
            throw .failed
        }
    }

    /// Writes the next plaintext to `buffer`.
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

    /// Encrypts all of `bytes`. `takeOutput` then returns the records.
    func encrypt(_ bytes: Span<UInt8>) throws(Fault) {
        let written = withCleanErrorQueue {
            unsafe bytes.withUnsafeBufferPointer { unsafe SSL_write(ssl, $0.baseAddress, CInt($0.count)) }
        }
        if written != bytes.count {
            isBroken = true
            throw .failed
        }
    }

    /// Queues close_notify, if the connection's state permits it.
    func finish() {
        // SSL_shutdown(3): not during a handshake and not after a fatal error.
        guard isEstablished, !isBroken else { return }
        _ = withCleanErrorQueue { unsafe SSL_shutdown(ssl) }
    }

    /// The bytes to send now, in order.
    func takeOutput() -> [UInt8] {
        withCleanErrorQueue {
            let count = unsafe BIO_ctrl_pending(output)
            if count == 0 { return [] }
            var bytes = [UInt8](repeating: 0, count: count)
            let read = unsafe BIO_read(output, &bytes, CInt(clamping: count))
            return read == count ? bytes : Array(bytes.prefix(max(0, Int(read))))
        }
    }

    /// The session that the server offered, for one later connection (RFC 8446 Appendix C.4); nil when it offered none.
    func resumableSession() -> ResumableSession? {
        guard isEstablished, !isBroken, let session = unsafe SSL_get1_session(ssl) else { return nil }
        let resumable = unsafe ResumableSession(adopting: session, verifiedUntil: verifiedUntil)
        return unsafe SSL_SESSION_is_resumable(session) == 1 ? resumable : nil
    }
}
