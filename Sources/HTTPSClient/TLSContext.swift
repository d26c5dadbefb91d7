internal import COpenSSL
internal import Cryptography

/// Owns the `SSL_CTX` with the settings that all connections of one client share.
///
/// Confined to its client's actor.
@safe final class TLSContext {
    private let context: OpaquePointer

    /// TLS 1.2 offers only suites with forward secrecy and authenticated encryption (RFC 9325 §4.2); TLS 1.3 has no
    /// others.
    private static let tls12CipherList = [
        "ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384",
        "ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305", "ECDHE-RSA-CHACHA20-POLY1305",
    ].joined(separator: ":")

    /// A length-prefixed protocol name (RFC 7301 §3.1). A server that speaks HTTP/2 only ends the handshake.
    private static let applicationProtocol = [UInt8(8)] + Array("http/1.1".utf8)

    /// Has OpenSSL look for what every context needs, which it then has for all.
    static func prepare() {
        unsafe SSL_CTX_free(SSL_CTX_new(TLS_client_method()))
    }

    init(roots: TrustedRoots) throws(HTTPSClientConfigurationError) {
        guard let context = unsafe SSL_CTX_new(TLS_client_method()) else { throw .tlsUnavailable }
        unsafe self.context = unsafe context
        let isSet = withCleanErrorQueue {
            // Level 2: no key below 112 bits of strength, no SHA-1 signatures; distributions differ in their defaults.
            unsafe SSL_CTX_set_security_level(context, 2)
            unsafe copenssl_ctx_forbid_renegotiation_and_compression(context)
            // The buffers for records hold tokens in clear: they are given back whenever nothing is in them.
            unsafe copenssl_ctx_set_mode(context, Int(SSL_MODE_RELEASE_BUFFERS))
            unsafe SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nil)
            // Unlike the others, SSL_CTX_set_alpn_protos returns 0 for success.
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

    /// A client connection that has not started its handshake. Nil when memory is short or the host is too long for
    /// OpenSSL.
    func makeSession(for identity: PeerIdentity, resuming earlier: ResumableSession?) -> TLSSession? {
        unsafe TLSSession(context: context, identity: identity, resuming: earlier)
    }
}
