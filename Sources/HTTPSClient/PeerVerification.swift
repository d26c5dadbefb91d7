import COpenSSL
import Cryptography
import Reactor

/// The identity that a server must prove.
enum PeerIdentity {
    case dnsName(String)
    case ipAddress(String)

    init(host: String) {
        self = SocketAddress(numericHost: host, port: 0) == nil ? .dnsName(host) : .ipAddress(host)
    }

    /// Makes OpenSSL verify this identity together with the chain. Returns false when OpenSSL cannot check this host.
    ///
    /// RFC 9525 §6.3: only subjectAltName counts, never the subject's common name; a wildcard is the whole leftmost
    /// label and matches exactly one label; an IP address matches an iPAddress entry only.
    @unsafe func require(of ssl: OpaquePointer) -> Bool {
        guard let parameters = unsafe SSL_get0_param(ssl) else { return false }
        unsafe X509_VERIFY_PARAM_set_hostflags(
            parameters, CUnsignedInt(X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT))
        switch self {
        case .dnsName(let name):
            return unsafe X509_VERIFY_PARAM_set1_host(parameters, name, 0) == 1
                && copenssl_set_server_name(ssl, name) == 1
        case .ipAddress(let address):
            // RFC 6066 §3: the server name indication must not hold an address.
            return unsafe X509_VERIFY_PARAM_set1_ip_asc(parameters, address) == 1
        }
    }
}

/// A certificate of a chain that was verified.
package struct VerifiedCertificate: Sendable, Equatable {
    /// The pin of its key, in the form that `PinSet` reads.
    package let pin: String
    /// In visible ASCII and spaces.
    package let subject: String
    /// Seconds from now to the certificate's expiry.
    package let secondsUntilExpiry: Int64
}

/// The result of verifying a server's chain.
struct VerifiedPeer {
    /// The SHA-256 digests of the SubjectPublicKeyInfo of every certificate, from the leaf to the root.
    let keyDigests: [[UInt8]]
    /// Seconds from the verification to the first expiry of a certificate in the chain.
    let secondsUntilExpiry: Int64

    /// Nil when OpenSSL has verified no chain.
    @unsafe init?(of ssl: OpaquePointer) {
        let parts = unsafe Self.read(ssl) { certificate in
            unsafe Self.keyDigest(of: certificate).flatMap { digest in
                unsafe Self.secondsUntilExpiry(of: certificate).map { (digest: digest, seconds: $0) }
            }
        }
        guard let parts else { return nil }
        keyDigests = parts.map(\.digest)
        secondsUntilExpiry = parts.map(\.seconds).min() ?? 0
    }

    /// The certificates of the verified chain, from the leaf to the root; nil when OpenSSL has verified no chain.
    @unsafe static func certificates(of ssl: OpaquePointer) -> [VerifiedCertificate]? {
        unsafe read(ssl) { certificate in
            guard let digest = unsafe keyDigest(of: certificate),
                let seconds = unsafe secondsUntilExpiry(of: certificate)
            else { return nil }
            return VerifiedCertificate(
                pin: "sha256/" + Base64.encode(digest), subject: unsafe subject(of: certificate),
                secondsUntilExpiry: seconds)
        }
    }

    /// Reads each certificate of the chain that OpenSSL built and verified, which may differ from the chain that the server
    /// sent. Nil when there is no chain, or when `part` is nil for a certificate.
    @unsafe private static func read<Part>(_ ssl: OpaquePointer, _ part: (OpaquePointer) -> Part?) -> [Part]? {
        guard let chain = unsafe copenssl_verified_chain(ssl) else { return nil }
        let count = unsafe OPENSSL_sk_num(chain)
        guard count > 0 else { return nil }
        var parts: [Part] = []
        for index in 0..<count {
            guard let certificate = unsafe OPENSSL_sk_value(chain, index).map({ OpaquePointer($0) }),
                let part = unsafe part(certificate)
            else { return nil }
            parts.append(part)
        }
        return parts
    }

    /// In OpenSSL's form `/O=…/CN=…`, in which it escapes everything but visible ASCII and spaces; at most 511 characters.
    private static func subject(of certificate: OpaquePointer) -> String {
        var text = [CChar](repeating: 0, count: 512)
        guard let name = unsafe X509_get_subject_name(certificate),
            unsafe X509_NAME_oneline(name, &text, CInt(text.count)) != nil
        else { return "" }
        return String(decoding: text.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self)
    }

    private static func keyDigest(of certificate: OpaquePointer) -> [UInt8]? {
        // The DER encoding of the key with its algorithm. X509_pubkey_digest would omit the algorithm.
        guard let key = unsafe X509_get_X509_PUBKEY(certificate) else { return nil }
        var encoded: UnsafeMutablePointer<UInt8>?
        let length = unsafe i2d_X509_PUBKEY(key, &encoded)
        guard length > 0, let encoded = unsafe encoded else { return nil }
        defer { unsafe CRYPTO_free(encoded, nil, 0) }
        var digest = [UInt8](repeating: 0, count: 32)
        let isDigested = unsafe EVP_Digest(encoded, Int(length), &digest, nil, EVP_sha256(), nil) == 1
        return isDigested ? digest : nil
    }

    private static func secondsUntilExpiry(of certificate: OpaquePointer) -> Int64? {
        var days: CInt = 0
        var seconds: CInt = 0
        // A nil time means now.
        let isKnown = unsafe ASN1_TIME_diff(&days, &seconds, nil, X509_get0_notAfter(certificate)) == 1
        return isKnown ? Int64(days) * 86_400 + Int64(seconds) : nil
    }
}

extension TransportError.UntrustedReason {
    /// - Parameter result: the result of SSL_get_verify_result, other than X509_V_OK.
    init(verifyResult result: Int) {
        self =
            switch CInt(truncatingIfNeeded: result) {
            case X509_V_ERR_CERT_HAS_EXPIRED: .expired
            case X509_V_ERR_CERT_NOT_YET_VALID: .notYetValid
            case X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH: .hostName
            case X509_V_ERR_INVALID_PURPOSE: .purpose
            default: .chain
            }
    }
}
