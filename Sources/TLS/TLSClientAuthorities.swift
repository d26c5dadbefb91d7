import COpenSSL
import Cryptography

/// The authorities whose certificates a server accepts of its clients.
///
/// Each of them is trusted by itself, whether or not another one has issued its certificate: with that of an intermediate
/// authority in the file, its issuer's other certificates are not accepted.
package final class TLSClientAuthorities: Sendable {
    /// The most authorities of a file.
    package static let most = 64
    /// How many intermediate authorities may stand between a client's certificate and one of these.
    package static let longestPath: CInt = 3
    /// The longest certificate of a client together with those that lead to an authority, in bytes. A session's ticket has
    /// the client's own, and comes back within a ClientHello, so it must fit into one (see `ClientHelloLimit`).
    package static let longestChain = 12_288

    /// Owns one certificate.
    @safe private final class Authority: Sendable {
        // `nonisolated(unsafe)`: nothing of the certificate is changed after it was read. OpenSSL counts its references, and
        // caches what it has parsed of it, under locks.
        nonisolated(unsafe) let pointer: OpaquePointer

        @unsafe init(adopting certificate: OpaquePointer) { unsafe pointer = unsafe certificate }

        deinit { unsafe X509_free(pointer) }
    }

    private let authorities: [Authority]
    /// Tells these authorities from others.
    private let digest: [UInt8]

    /// Reads the file. It blocks.
    /// - Parameter file: PEM: certificates of authorities (CA:TRUE), 1 to `most`.
    /// - Throws: `.clientAuthorities`.
    package init(file: String) throws(TLSServerError) {
        guard let authorities = withCleanErrorQueue({ Self.read(file) }), !authorities.isEmpty else {
            throw .clientAuthorities(file)
        }
        self.authorities = authorities
        digest = SHA256.digest(authorities.flatMap { Self.digest($0) })
    }

    /// How many there are.
    package var count: Int { authorities.count }

    /// When the first of their certificates expires, in seconds since 1970.
    package var firstExpirySeconds: Int64 {
        withCleanErrorQueue {
            authorities.map { unsafe copenssl_expiry_seconds($0.pointer) }.min() ?? 0
        }
    }

    /// Nil where the file cannot be read, or has something else than certificates of authorities, or too many.
    private static func read(_ file: String) -> [Authority]? {
        guard let input = unsafe BIO_new_file(file, "r") else { return nil }
        defer { unsafe BIO_free(input) }
        var authorities: [Authority] = []
        while let certificate = unsafe PEM_read_bio_X509(input, nil, { _, _, _, _ in -1 }, nil) {
            let authority = unsafe Authority(adopting: certificate)
            // 1: a certificate of version 3 whose basic constraints say that it is an authority's.
            guard unsafe X509_check_ca(certificate) == 1, authorities.count < most else { return nil }
            authorities.append(authority)
        }
        // The end of the file is told in this way; anything else is a fault.
        return ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE ? authorities : nil
    }

    private static func digest(_ authority: Authority) -> [UInt8] {
        var bytes = [UInt8](repeating: 0, count: SHA256.digestCount)
        let isDone = unsafe X509_digest(authority.pointer, EVP_sha256(), &bytes, nil)
        precondition(isDone == 1, "libcrypto computed no SHA-256 digest")
        return bytes
    }

    /// Has a server ask each client for a certificate, and verify it with exactly these authorities: that it is for clients,
    /// valid now, and issued by one of them.
    /// - Returns: false when memory is short.
    @unsafe func verifyClients(of context: OpaquePointer) -> Bool {
        withCleanErrorQueue {
            guard let store = unsafe X509_STORE_new() else { return false }
            // The context takes a reference of its own.
            defer { unsafe X509_STORE_free(store) }
            for authority in authorities {
                // The names of the authorities go to the client, which may choose its certificate by them.
                guard unsafe X509_STORE_add_cert(store, authority.pointer) == 1,
                    unsafe SSL_CTX_add_client_CA(context, authority.pointer) == 1
                else { return false }
            }
            // The context of a server requires the purpose of clients.
            unsafe SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nil)
            unsafe SSL_CTX_set_verify_depth(context, Self.longestPath)
            unsafe copenssl_ctx_set_longest_chain(context, Self.longestChain)
            // A session of other authorities is not resumed, even where its ticket could be decrypted.
            return unsafe X509_STORE_set_flags(store, UInt(X509_V_FLAG_PARTIAL_CHAIN)) == 1
                && copenssl_ctx_set_verify_store(context, store) == 1
                && SSL_CTX_set_session_id_context(context, digest, CUnsignedInt(digest.count)) == 1
        }
    }
}
