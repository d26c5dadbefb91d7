import COpenSSL
import Cryptography
import Reactor
import TLS

/// The client's side of a TLS connection: it verifies who the server is. It does no I/O.
///
/// Only the client's actor uses it.
final class TLSSession {
    /// The peer violated the protocol, or the library failed. The session cannot be used again.
    enum Fault: Error, Equatable {
        case untrusted(TransportError.UntrustedReason)
        case failed
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

    private let channel: TLSChannel
    private var verifiedUntil: MonotonicInstant
    /// Whether the chain of a full handshake has a backup key and not the key in use. False after a resumed handshake.
    private(set) var matchesBackupPinOnly = false

    /// Nil when OpenSSL cannot check this host.
    /// - Parameter channel: it has not started its handshake.
    init?(channel: TLSChannel, identity: PeerIdentity, resuming earlier: ResumableSession?) {
        self.channel = channel
        verifiedUntil = earlier?.verifiedUntil ?? .distantFuture
        let isRequired = withCleanErrorQueue { unsafe channel.withSSL { unsafe identity.require(of: $0) } }
        guard isRequired else { return nil }
        if let earlier {
            // If OpenSSL refuses the session, the handshake is a full one.
            _ = withCleanErrorQueue { unsafe channel.withSSL { unsafe SSL_set_session($0, earlier.session) } }
        }
    }

    /// Continues the handshake. Returns true when it is complete and the peer's identity is verified.
    func handshake(pins: PinSet?) throws(Fault) -> Bool {
        let step = channel.handshake()
        if step == .needsInput { return false }
        // SSL_VERIFY_PEER has already ended the handshake of a server that is not trusted. The check is repeated because
        // all trust in the server depends on it.
        let verifyResult = unsafe channel.withSSL { unsafe SSL_get_verify_result($0) }
        guard verifyResult == Int(X509_V_OK) else { throw .untrusted(.init(verifyResult: verifyResult)) }
        if case .failed(let reason) = step {
            throw reason.map(Self.meansNoCommonProtocol.contains) == true ? .untrusted(.noCommonProtocol) : .failed
        }
        // A resumed session has no chain. The chain was verified and its pins were checked when the session began.
        if isResumed { return true }
        guard let peer = withCleanErrorQueue({ unsafe channel.withSSL { unsafe VerifiedPeer(of: $0) } }) else {
            throw .untrusted(.chain)
        }
        if let pins {
            let match = pins.match(peer.keyDigests)
            if match == .none { throw .untrusted(.pin) }
            matchesBackupPinOnly = match == .backup
        }
        verifiedUntil = .after(.seconds(peer.secondsUntilExpiry))
        return true
    }

    /// The certificates of the chain that a full handshake has verified; empty after a resumed handshake.
    func certificates() -> [VerifiedCertificate] {
        withCleanErrorQueue { unsafe channel.withSSL { unsafe VerifiedPeer.certificates(of: $0) } } ?? []
    }

    /// Whether the handshake resumed an earlier session instead of exchanging certificates.
    var isResumed: Bool { unsafe channel.withSSL { unsafe SSL_session_reused($0) == 1 } }

    /// Takes bytes from the network. Call this only when a step has asked for input, so that at most one buffer of
    /// bytes is held.
    func receive(_ bytes: Span<UInt8>) throws(Fault) {
        do throws(TLSChannel.Fault) { try channel.receive(bytes) } catch { throw .failed }
    }

    /// Writes the next plaintext to `buffer`.
    func decrypt(into buffer: inout [UInt8]) throws(Fault) -> TLSChannel.Decrypted {
        var span = buffer.mutableSpan
        do throws(TLSChannel.Fault) { return try channel.decrypt(into: &span) } catch { throw .failed }
    }

    /// Encrypts all of `bytes`. `takeOutput` then returns the records.
    func encrypt(_ bytes: Span<UInt8>) throws(Fault) {
        do throws(TLSChannel.Fault) { try channel.encrypt(bytes) } catch { throw .failed }
    }

    /// Queues close_notify, if the connection's state permits it.
    func finish() { channel.finish() }

    /// The bytes to send now, in order.
    func takeOutput() -> [UInt8] {
        var bytes: [UInt8] = []
        channel.takeOutput(into: &bytes)
        return bytes
    }

    /// The session that the server offered, for one later connection (RFC 8446 Appendix C.4); nil when it offered none.
    func resumableSession() -> ResumableSession? {
        guard channel.isUsable, let session = unsafe channel.withSSL({ unsafe SSL_get1_session($0) }) else {
            return nil
        }
        let resumable = unsafe ResumableSession(adopting: session, verifiedUntil: verifiedUntil)
        return unsafe SSL_SESSION_is_resumable(session) == 1 ? resumable : nil
    }
}
