import COpenSSL
import Cryptography
import Synchronization

/// Why a server cannot use TLS. Retrying does not help before the files are changed.
package enum TLSServerError: Error, Equatable, Sendable, CustomStringConvertible {
    /// The file is missing, or holds no certificate with a key that is strong enough.
    case certificateFile(String)
    /// The file is missing, or holds no private key without a passphrase.
    case keyFile(String)
    /// The key is not that of the certificate.
    case otherKey(String)
    /// The file is missing, or holds other certificates than those of 1 to `TLSClientAuthorities.most` authorities.
    case clientAuthorities(String)
    /// A certificate cannot be issued to this name.
    case name(String)
    /// OpenSSL failed, most likely because memory was short.
    case unavailable

    package var description: String {
        switch self {
        case .certificateFile(let path): "\(path) holds no certificate that can be used"
        case .keyFile(let path): "\(path) holds no private key that can be read without a passphrase"
        case .otherKey(let path): "the key in \(path) does not belong to the certificate"
        case .clientAuthorities(let path): "\(path) holds no certificates of authorities that can be used"
        case .name(let name): "a certificate cannot be issued to \(name)"
        case .unavailable: "OpenSSL cannot set up TLS"
        }
    }
}

/// The certificate, the key and the settings with which a server accepts TLS connections: TLS 1.2 or 1.3, and HTTP/1.1
/// where the client names protocols. Any number of threads may use it at once.
package final class TLSServerContext: Sendable {
    /// Owns one `SSL_CTX`, which no longer changes.
    @safe private final class Handle: Sendable {
        // `nonisolated(unsafe)`: no setting is changed after the context is published. OpenSSL permits that many threads
        // make channels of one context at once; its counter of references and its session tickets have locks.
        nonisolated(unsafe) let pointer: OpaquePointer
        /// Those whose certificates clients may show; nil where clients are not asked for one.
        let authorities: TLSClientAuthorities?

        init(_ authorities: TLSClientAuthorities?) throws(TLSServerError) {
            guard let context = unsafe TLSSettings.makeContext(TLS_server_method()) else { throw .unavailable }
            unsafe pointer = unsafe context
            self.authorities = authorities
            unsafe copenssl_ctx_prefer_own_ciphers(context)
            unsafe copenssl_ctx_select_http11(context)
            unsafe copenssl_ctx_set_longest_record(context, TLSChannel.recordBytes)
            // Clients resume with tickets, so the server keeps no sessions.
            unsafe copenssl_ctx_keep_no_sessions(context)
            if unsafe SSL_CTX_set_num_tickets(context, 1) != 1 { throw .unavailable }
            if let authorities, unsafe !authorities.verifyClients(of: context) { throw .unavailable }
        }

        deinit {
            unsafe SSL_CTX_free(pointer)
        }
    }

    private let current: Mutex<Handle>

    /// Reads the files. It blocks, so call it before an event loop runs or on a blocking thread.
    /// - Parameters:
    ///   - certificateFile: PEM: the server's certificate, then the certificates that lead to the root, without the root.
    ///   - keyFile: PEM: the private key of the server's certificate, without a passphrase.
    ///   - clientAuthoritiesFile: PEM: the authorities whose certificates clients may show. A client without a certificate is
    ///     served as well; the handshake of one with another certificate fails. Default nil: clients are not asked for one.
    package init(
        certificateFile: String, keyFile: String, clientAuthoritiesFile: String? = nil
    ) throws(TLSServerError) {
        current = Mutex(try Self.read(certificateFile, keyFile, clientAuthoritiesFile))
    }

    /// Uses a certificate that this process has issued.
    @unsafe init(certificate: OpaquePointer, key: OpaquePointer) throws(TLSServerError) {
        let handle = try Handle(nil)
        let isSet = withCleanErrorQueue {
            unsafe SSL_CTX_use_certificate(handle.pointer, certificate) == 1
                && SSL_CTX_use_PrivateKey(handle.pointer, key) == 1
        }
        if !isSet { throw .unavailable }
        current = Mutex(handle)
    }

    /// Reads the files again, for the connections that are accepted from now on; earlier connections are not touched. The
    /// keys of session tickets are new too, so that clients make one full handshake, in which their certificates are verified
    /// with the authorities of the file. It blocks.
    /// - Throws: what `init` throws. The earlier certificate and the earlier authorities then stay in use.
    package func reload(
        certificateFile: String, keyFile: String, clientAuthoritiesFile: String? = nil
    ) throws(TLSServerError) {
        let handle = try Self.read(certificateFile, keyFile, clientAuthoritiesFile)
        current.withLock { $0 = handle }
    }

    /// Makes new keys of session tickets, for the connections that are accepted from now on, with the certificate, the key and
    /// the authorities in use. Reads no file.
    /// - Throws: `.unavailable`, and the earlier keys then stay in use. A retry helps when memory was short.
    package func renewTicketKeys() throws(TLSServerError) {
        let earlier = current.withLock { $0 }
        let handle = try Handle(earlier.authorities)
        defer { extendLifetime(earlier) }
        let isCopied = withCleanErrorQueue {
            unsafe copenssl_ctx_copy_certificate(handle.pointer, earlier.pointer) == 1
        }
        if !isCopied { throw .unavailable }
        current.withLock { $0 = handle }
    }

    private static func read(
        _ certificateFile: String, _ keyFile: String, _ clientAuthoritiesFile: String?
    ) throws(TLSServerError) -> Handle {
        var authorities: TLSClientAuthorities?
        if let clientAuthoritiesFile { authorities = try TLSClientAuthorities(file: clientAuthoritiesFile) }
        let handle = try Handle(authorities)
        try withCleanErrorQueue { () throws(TLSServerError) in
            let context = unsafe handle.pointer
            // Without a function of ours, OpenSSL would ask for a passphrase at the terminal.
            unsafe SSL_CTX_set_default_passwd_cb(context) { _, _, _, _ in -1 }
            guard unsafe SSL_CTX_use_certificate_chain_file(context, certificateFile) == 1 else {
                throw .certificateFile(certificateFile)
            }
            guard unsafe SSL_CTX_use_PrivateKey_file(context, keyFile, SSL_FILETYPE_PEM) == 1 else {
                // OpenSSL compares the key with the certificate when it is loaded.
                let reason = ERR_GET_REASON(ERR_peek_last_error())
                let isOther = reason == X509_R_KEY_VALUES_MISMATCH || reason == X509_R_KEY_TYPE_MISMATCH
                throw isOther ? .otherKey(keyFile) : .keyFile(keyFile)
            }
            guard unsafe SSL_CTX_check_private_key(context) == 1 else { throw .otherKey(keyFile) }
        }
        return handle
    }

    /// When the server's certificate expires, in seconds since 1970.
    package var expirySeconds: Int64 {
        let handle = current.withLock { $0 }
        defer { extendLifetime(handle) }
        return withCleanErrorQueue { unsafe copenssl_expiry_seconds(SSL_CTX_get0_certificate(handle.pointer)) }
    }

    /// The authorities whose certificates clients may show; nil where clients are not asked for one.
    package var clientAuthorities: TLSClientAuthorities? { current.withLock { $0.authorities } }

    /// A channel that waits for a client's handshake. Nil when memory is short.
    package func makeChannel() -> TLSChannel? {
        let handle = current.withLock { $0 }
        defer { extendLifetime(handle) }
        return unsafe TLSChannel(context: handle.pointer, role: .server)
    }
}
