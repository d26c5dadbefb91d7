import COpenSSL
package import Cryptography

/// A certificate that a client shows to servers, with its private key. Two are equal where they are the same text.
///
/// Requests with different ones, or with none, never share a connection or a TLS session.
package struct ClientCertificate: Sendable, Hashable {
    /// The longest text, in bytes.
    package static let longest = 65_536

    /// The most certificates between the client's own and its root.
    private static let longestChain = 10

    private let pem: SecretBytes
    private let digest: [UInt8]

    /// - Parameter pem: the client's certificate, then those that lead to its root, and the private key without a passphrase, in
    ///   any place. `fault` says whether it can be used.
    package init(pem: SecretBytes) {
        self.pem = pem
        digest = pem.withRevealed { SHA256.digest($0) }
    }

    package static func == (left: ClientCertificate, right: ClientCertificate) -> Bool { left.digest == right.digest }

    package func hash(into hasher: inout Hasher) { hasher.combine(digest) }

    /// What is wrong with a text, as the end of a sentence; nil where it can be used. Contains nothing of the text.
    package static func fault(in pem: SecretBytes) -> String? {
        if !(1...longest).contains(pem.count) { return "must have 1 to \(longest) bytes" }
        do throws(KeyError) {
            _ = try PrivateKey(pem: pem)
        } catch .encrypted {
            return "has a private key that is encrypted with a passphrase"
        } catch {
            // Found below, where a key of another kind can be used nevertheless.
        }
        return (try? TLSContext(roots: nil, certificate: ClientCertificate(pem: pem))) == nil
            ? "must be PEM with a certificate, those that lead to its root, and its private key, which must be strong enough"
            : nil
    }

    /// When the client's certificate expires, in seconds since 1970; nil where there is none that can be read.
    package var expirySeconds: Int64? {
        withCleanErrorQueue {
            pem.withRevealed { text in
                unsafe text.withUnsafeBufferPointer { unsafe Self.expirySeconds($0) }
            }
        }
    }

    @unsafe private static func expirySeconds(_ text: UnsafeBufferPointer<UInt8>) -> Int64? {
        guard let input = unsafe BIO_new_mem_buf(text.baseAddress, CInt(text.count)) else { return nil }
        defer { unsafe BIO_free(input) }
        guard let certificate = unsafe PEM_read_bio_X509(input, nil, { _, _, _, _ in -1 }, nil) else { return nil }
        defer { unsafe X509_free(certificate) }
        return unsafe copenssl_expiry_seconds(certificate)
    }

    /// Has the connections of a context show the certificate.
    /// - Returns: false where it cannot be used.
    @unsafe func use(in context: OpaquePointer) -> Bool {
        withCleanErrorQueue {
            pem.withRevealed { text in
                unsafe text.withUnsafeBufferPointer { unsafe Self.use($0, in: context) }
            }
        }
    }

    @unsafe private static func use(_ text: UnsafeBufferPointer<UInt8>, in context: OpaquePointer) -> Bool {
        guard let certificates = unsafe BIO_new_mem_buf(text.baseAddress, CInt(text.count)),
            let keys = unsafe BIO_new_mem_buf(text.baseAddress, CInt(text.count))
        else { return false }
        defer {
            unsafe BIO_free(certificates)
            unsafe BIO_free(keys)
        }
        var count = 0
        while let certificate = unsafe PEM_read_bio_X509(certificates, nil, { _, _, _, _ in -1 }, nil) {
            defer { unsafe X509_free(certificate) }
            count += 1
            if count > longestChain + 1 { return false }
            let isAdded =
                count == 1
                ? unsafe SSL_CTX_use_certificate(context, certificate) == 1
                    // SSL_CTX_add1_chain_cert, which is a macro.
                : unsafe SSL_CTX_ctrl(context, SSL_CTRL_CHAIN_CERT, 1, UnsafeMutableRawPointer(certificate)) == 1
            if !isAdded { return false }
        }
        // Without a function of ours, OpenSSL would ask for a passphrase at the terminal.
        guard count > 0, let key = unsafe PEM_read_bio_PrivateKey(keys, nil, { _, _, _, _ in -1 }, nil) else {
            return false
        }
        defer { unsafe EVP_PKEY_free(key) }
        return unsafe SSL_CTX_use_PrivateKey(context, key) == 1 && SSL_CTX_check_private_key(context) == 1
    }
}
