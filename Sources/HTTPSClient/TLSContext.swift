import COpenSSL
import Cryptography
import TLS

/// Owns the `SSL_CTX` with the settings that all connections of one client share. Only the client's actor uses it.
@safe final class TLSContext {
    private let context: OpaquePointer

    /// A protocol name with its length (RFC 7301 §3.1). The handshake fails with a server that speaks HTTP/2 only.
    private static let applicationProtocol = [UInt8(8)] + Array("http/1.1".utf8)

    /// Makes OpenSSL load the algorithms that every context needs. It loads them once in a process.
    static func prepare() {
        unsafe SSL_CTX_free(SSL_CTX_new(TLS_client_method()))
    }

    /// - Parameters:
    ///   - roots: those of the servers; nil for a context that is not used.
    ///   - certificate: what the connections show to servers; nil for nothing.
    /// - Throws: `.tlsUnavailable`, also for a certificate that cannot be used.
    init(roots: TrustedRoots?, certificate: ClientCertificate? = nil) throws(HTTPSClientConfigurationError) {
        guard let context = unsafe TLSSettings.makeContext(TLS_client_method()) else { throw .tlsUnavailable }
        unsafe self.context = unsafe context
        let isSet = withCleanErrorQueue {
            unsafe SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nil)
            // SSL_CTX_set_alpn_protos returns 0 for success, unlike the other calls.
            return unsafe SSL_CTX_set_alpn_protos(
                context, Self.applicationProtocol, CUnsignedInt(Self.applicationProtocol.count)) == 0
        }
        if !isSet { throw .tlsUnavailable }
        if let certificate, unsafe !certificate.use(in: context) { throw .tlsUnavailable }
        if let roots { unsafe roots.use(in: context) }
    }

    deinit {
        unsafe SSL_CTX_free(context)
    }

    /// A client session that has not started its handshake. Nil when memory is short or the host name is too long for
    /// OpenSSL.
    func makeSession(for identity: PeerIdentity, resuming earlier: ResumableSession?) -> TLSSession? {
        guard let channel = unsafe TLSChannel(context: context, role: .client) else { return nil }
        return TLSSession(channel: channel, identity: identity, resuming: earlier)
    }
}
