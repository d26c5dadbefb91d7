import COpenSSL
import Cryptography

/// What is common to the TLS of the client and of the server.
package enum TLSSettings {
    /// For TLS 1.2, only suites with forward secrecy and authenticated encryption are permitted (RFC 9325 §4.2). TLS 1.3
    /// has no other suites.
    private static let tls12CipherList = [
        "ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384",
        "ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305", "ECDHE-RSA-CHACHA20-POLY1305",
    ].joined(separator: ":")

    /// Makes an `SSL_CTX` for TLS 1.2 and 1.3 without compression and renegotiation. The caller owns it.
    /// - Parameter method: of a client, or of a server.
    /// - Returns: nil when memory is short or OpenSSL refuses a setting.
    @unsafe package static func makeContext(_ method: OpaquePointer?) -> OpaquePointer? {
        guard let context = unsafe SSL_CTX_new(method) else { return nil }
        let isSet = withCleanErrorQueue {
            // Level 2 refuses keys with less than 112 bits of security and SHA-1 signatures. It is set because
            // distributions have different defaults.
            unsafe SSL_CTX_set_security_level(context, 2)
            unsafe copenssl_ctx_forbid_renegotiation_and_compression(context)
            // Record buffers hold tokens in clear, so OpenSSL must free them whenever they are empty.
            unsafe copenssl_ctx_set_mode(context, Int(SSL_MODE_RELEASE_BUFFERS))
            return unsafe copenssl_ctx_set_min_tls12(context) == 1
                && SSL_CTX_set_cipher_list(context, tls12CipherList) == 1
        }
        if isSet { return unsafe context }
        unsafe SSL_CTX_free(context)
        return nil
    }
}
