import COpenSSL
import Cryptography

/// What the certificate of a client says, which was verified in this handshake or in that of the session which it has resumed.
package struct PeerCertificate: Sendable {
    /// The alternative names that are URIs, in their order, as they stand there: they may have any bytes.
    package private(set) var uris: [[UInt8]] = []
    /// The alternative names that are DNS names, likewise.
    package private(set) var dnsNames: [[UInt8]] = []
    /// When the certificate expires, in seconds since 1970.
    package let expirySeconds: Int64

    package init(uris: [[UInt8]], dnsNames: [[UInt8]], expirySeconds: Int64) {
        self.uris = uris
        self.dnsNames = dnsNames
        self.expirySeconds = expirySeconds
    }

    @unsafe fileprivate init(_ certificate: OpaquePointer) {
        expirySeconds = unsafe copenssl_expiry_seconds(certificate)
        guard let names = unsafe copenssl_alternative_names(certificate) else { return }
        defer { unsafe copenssl_free_names(names) }
        // As many as fit into a certificate of `TLSClientAuthorities.longestChain`.
        for index in 0..<(unsafe max(0, OPENSSL_sk_num(names))) {
            var (start, count) = unsafe (UnsafePointer<UInt8>?.none, CInt(0))
            let type = unsafe copenssl_name(names, index, &start, &count)
            let bytes = unsafe Array(UnsafeBufferPointer(start: start, count: Int(count)))
            switch type {
            case GEN_URI: uris.append(bytes)
            case GEN_DNS: dnsNames.append(bytes)
            default: break
            }
        }
    }
}

extension TLSChannel {
    /// The certificate that the peer has shown, if it was verified; nil without one. After the handshake.
    package func peerCertificate() -> PeerCertificate? {
        guard isEstablished else { return nil }
        return withCleanErrorQueue {
            unsafe withSSL { ssl in
                guard unsafe SSL_get_verify_result(ssl) == Int(X509_V_OK),
                    let certificate = unsafe SSL_get0_peer_certificate(ssl)
                else { return nil }
                return unsafe PeerCertificate(certificate)
            }
        }
    }
}
