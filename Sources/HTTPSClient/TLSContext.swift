internal import COpenSSL
internal import Cryptography

/// Owns the `SSL_CTX` with the settings that all connections of one client share. Only the client's actor uses it.
@safe final class TLSContext {
    private let context: OpaquePointer

    /// For TLS 1.2, only suites with forward secrecy and authenticated encryption are offered (RFC 9325 §4.2). TLS 1.3
    /// has no other suites.
    private static let tls12CipherList = [
        "ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384",
        "ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305", "ECDHE-RSA-CHACHA20-POLY1305",
    ].joined(separator: ":")

    /// A protocol name with its length (RFC 7301 §3.1). The handshake fails with a server that speaks HTTP/2 only.
    private static let applicationProtocol = [UInt8(8)] + Array("http/1.1".utf8)

    /// Makes OpenSSL load the algorithms that every context needs. It loads them once in a process.
    static func prepare() {
        unsafe SSL_CTX_free(SSL_CTX_new(TLS_client_method()))
    }

    init(roots: TrustedRoots) throws(HTTPSClientConfigurationError) {
        guard let context = unsafe SSL_CTX_new(TLS_client_method()) else { throw .tlsUnavailable }
        unsafe self.context = unsafe context
        let isSet = withCleanErrorQueue {
            // Level 2 refuses keys with less than 112 bits of security and SHA-1 signatures. It is set because
            // distributions have different defaults.
            unsafe SSL_CTX_set_security_level(context, 2)
            unsafe copenssl_ctx_forbid_renegotiation_and_compression(context)
            // Record buffers hold tokens in clear, so OpenSSL must free them whenever they are empty.
            unsafe copenssl_ctx_set_mode(context, Int(SSL_MODE_RELEASE_BUFFERS))
            unsafe SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nil)
            // SSL_CTX_set_alpn_protos returns 0 for success, unlike the other calls.
            return unsafe copenssl_ctx_set_min_tls12(context) == 1
                && SSL_CTX_set_cipher_list(context, Self.tls12CipherList) == 1
                && SSL_CTX_set_alpn_protos(
                    context, Self.applicationProtocol, CUnsignedInt(Self.applicationProtocol.count)) == 0
        }
        if !isSet { throw .tlsUnavailable }
        unsafe roots.use(in: context)
    }

    deinit {
        unsafe SSL_CTX_free(context)
    }

    /// A client session that has not started its handshake. Nil when memory is short or the host name is too long for
    /// OpenSSL.
    func makeSession(for identity: PeerIdentity, resuming earlier: ResumableSession?) -> TLSSession? {
        unsafe TLSSession(context: context, identity: identity, resuming: earlier)
    }
}
