internal import COpenSSL
internal import Cryptography

/// Why a server cannot use TLS. Retrying does not help before the files are changed.
package enum TLSServerError: Error, Equatable, Sendable, CustomStringConvertible {
    /// The file is missing, or holds no certificate with a key that is strong enough.
    case certificateFile(String)
    /// The file is missing, or holds no private key without a passphrase.
    case keyFile(String)
    /// The key is not that of the certificate.
    case otherKey(String)
    /// A certificate cannot be issued to this name.
    case name(String)
    /// OpenSSL failed, most likely because memory was short.
    case unavailable

    package var description: String {
        switch self {
        case .certificateFile(let path): "\(path) holds no certificate that can be used"
        case .keyFile(let path): "\(path) holds no private key that can be read without a passphrase"
        case .otherKey(let path): "the key in \(path) does not belong to the certificate"
        case .name(let name): "a certificate cannot be issued to \(name)"
        case .unavailable: "OpenSSL cannot set up TLS"
        }
    }
}

/// The certificate, the key and the settings with which a server accepts TLS connections: TLS 1.2 or 1.3, and HTTP/1.1
/// where the client names protocols. Any number of threads may use it at once.
@safe package final class TLSServerContext: Sendable {
    // `nonisolated(unsafe)`: no setting is changed after `init`. OpenSSL permits that many threads make channels of one
    // context at once; its counter of references and its session tickets have locks.
    nonisolated(unsafe) private let context: OpaquePointer

    /// Reads the files. It blocks, so call it before an event loop runs.
    /// - Parameters:
    ///   - certificateFile: PEM: the server's certificate, then the certificates that lead to the root, without the root.
    ///   - keyFile: PEM: the private key of the server's certificate, without a passphrase.
    package convenience init(certificateFile: String, keyFile: String) throws(TLSServerError) {
        try self.init()
        try withCleanErrorQueue { () throws(TLSServerError) in
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
    }

    /// Uses a certificate that this process has issued.
    @unsafe convenience init(certificate: OpaquePointer, key: OpaquePointer) throws(TLSServerError) {
        try self.init()
        let isSet = withCleanErrorQueue {
            unsafe SSL_CTX_use_certificate(context, certificate) == 1 && SSL_CTX_use_PrivateKey(context, key) == 1
        }
        if !isSet { throw .unavailable }
    }

    private init() throws(TLSServerError) {
        guard let context = unsafe TLSSettings.makeContext(TLS_server_method()) else { throw .unavailable }
        unsafe self.context = unsafe context
        unsafe copenssl_ctx_prefer_own_ciphers(context)
        unsafe copenssl_ctx_select_http11(context)
        // Clients resume with tickets, so the server keeps no sessions.
        unsafe copenssl_ctx_keep_no_sessions(context)
        if unsafe SSL_CTX_set_num_tickets(context, 1) != 1 { throw .unavailable }
    }

    deinit {
        unsafe SSL_CTX_free(context)
    }

    /// A channel that waits for a client's handshake. Nil when memory is short.
    package func makeChannel() -> TLSChannel? {
        unsafe TLSChannel(context: context, role: .server)
    }
}
