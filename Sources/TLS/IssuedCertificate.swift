import COpenSSL
import Cryptography

/// A server's certificate from an authority of its own, for development.
///
/// The authority's key is forgotten once the certificate is issued, so that clients which trust the authority trust no
/// other certificate with it.
package struct IssuedCertificate: Sendable {
    /// What a server accepts connections with.
    package let context: TLSServerContext
    /// The authority's certificate, which clients are to trust. PEM.
    package let authority: [UInt8]

    /// For how long both certificates are valid: a little less than the longest time that browsers accept.
    private static let validDays = 390
    /// Clocks of clients may be behind.
    private static let validBeforeSeconds = 3600

    @safe private struct Certificate: ~Copyable {
        let pointer: OpaquePointer
        deinit { unsafe X509_free(pointer) }
    }

    @safe private struct Key: ~Copyable {
        let pointer: OpaquePointer
        deinit { unsafe EVP_PKEY_free(pointer) }

        init() throws(TLSServerError) {
            guard let key = unsafe withCleanErrorQueue({ unsafe copenssl_generate_elliptic("P-256") }) else {
                throw .unavailable
            }
            unsafe pointer = unsafe key
        }
    }

    /// Makes two keys and two certificates.
    /// - Parameters:
    ///   - names: the names and numeric addresses at which clients reach the server, without ports.
    ///   - authorityName: the name under which the authority is listed where it is trusted, at most 64 bytes.
    /// - Throws: `.name`, `.unavailable`.
    package init(for names: [String], authorityName: String) throws(TLSServerError) {
        let alternatives = try Self.alternativeNames(names)
        let authorityKey = try Key()
        let key = try Key()
        let authority = try unsafe Self.issue(
            commonName: authorityName, key: authorityKey, issuer: nil, issuerKey: authorityKey,
            [
                (NID_basic_constraints, "critical,CA:TRUE,pathlen:0"), (NID_key_usage, "critical,keyCertSign"),
                (NID_subject_key_identifier, "hash"),
            ])
        let certificate = try unsafe Self.issue(
            commonName: "localhost", key: key, issuer: authority.pointer, issuerKey: authorityKey,
            [
                (NID_basic_constraints, "critical,CA:FALSE"), (NID_key_usage, "critical,digitalSignature"),
                (NID_ext_key_usage, "serverAuth"), (NID_subject_key_identifier, "hash"),
                (NID_authority_key_identifier, "keyid"), (NID_subject_alt_name, alternatives),
            ])
        context = try unsafe TLSServerContext(certificate: certificate.pointer, key: key.pointer)
        self.authority = try Self.pem(authority)
    }

    /// The names in the notation of OpenSSL's configuration.
    private static func alternativeNames(_ names: [String]) throws(TLSServerError) -> String {
        var entries: [String] = []
        for name in names {
            // What else could stand in a name would mean something in OpenSSL's notation.
            let isPlain = name.utf8.allSatisfy {
                (0x30...0x39).contains($0) || (0x41...0x5a).contains($0) || (0x61...0x7a).contains($0)
                    || $0 == UInt8(ascii: "-") || $0 == UInt8(ascii: ".") || $0 == UInt8(ascii: ":")
            }
            guard isPlain, !name.isEmpty, name.utf8.count <= 253 else { throw .name(name) }
            let address = unsafe a2i_IPADDRESS(name)
            let isAddress = unsafe address != nil
            unsafe ASN1_OCTET_STRING_free(address)
            guard isAddress || !name.utf8.contains(UInt8(ascii: ":")) else { throw .name(name) }
            let entry = (isAddress ? "IP:" : "DNS:") + name
            if !entries.contains(entry) { entries.append(entry) }
        }
        return entries.joined(separator: ",")
    }

    /// - Parameters:
    ///   - issuer: nil for a certificate that its own key signs.
    ///   - extensions: their numbers and values in the notation of OpenSSL's configuration.
    @unsafe private static func issue(
        commonName: String, key: borrowing Key, issuer: OpaquePointer?, issuerKey: borrowing Key,
        _ extensions: [(CInt, String)]
    ) throws(TLSServerError) -> Certificate {
        guard let pointer = unsafe X509_new() else { throw .unavailable }
        let certificate = unsafe Certificate(pointer: pointer)
        let issuer = unsafe issuer ?? pointer
        let (subjectKey, signingKey) = unsafe (key.pointer, issuerKey.pointer)
        let isIssued = withCleanErrorQueue {
            // The name is copied.
            let name = unsafe X509_get_subject_name(pointer)
            let text = Array(commonName.utf8)
            var isDone =
                unsafe X509_set_version(pointer, Int(X509_VERSION_3)) == 1
                && ASN1_INTEGER_set_uint64(X509_get_serialNumber(pointer), .random(in: 1 ... .max)) == 1
                && X509_gmtime_adj(X509_getm_notBefore(pointer), -validBeforeSeconds) != nil
                && X509_gmtime_adj(X509_getm_notAfter(pointer), validDays * 86_400) != nil
                && X509_set_pubkey(pointer, subjectKey) == 1
                && X509_NAME_add_entry_by_NID(name, NID_commonName, MBSTRING_UTF8, text, CInt(text.count), -1, 0) == 1
                && X509_set_issuer_name(pointer, X509_get_subject_name(issuer)) == 1
            for (number, value) in extensions {
                isDone = unsafe isDone && copenssl_add_extension(pointer, issuer, number, value) == 1
            }
            return unsafe isDone && X509_sign(pointer, signingKey, EVP_sha256()) > 0
        }
        if !isIssued { throw .unavailable }
        return certificate
    }

    private static func pem(_ certificate: borrowing Certificate) throws(TLSServerError) -> [UInt8] {
        let pointer = unsafe certificate.pointer
        let text = withCleanErrorQueue { () -> [UInt8]? in
            guard let output = unsafe BIO_new(BIO_s_mem()) else { return nil }
            defer { unsafe BIO_free(output) }
            guard unsafe PEM_write_bio_X509(output, pointer) == 1 else { return nil }
            var text = [UInt8](repeating: 0, count: unsafe BIO_ctrl_pending(output))
            return unsafe BIO_read(output, &text, CInt(text.count)) == text.count ? text : nil
        }
        guard let text else { throw .unavailable }
        return text
    }
}
