internal import COpenSSL
internal import Cryptography

/// Owns the `X509_STORE` with the roots that a client's servers are verified against.
///
/// Sendable: `addSystemRoots` is the one call that changes it, and its client makes no session before that has returned.
/// Afterwards only OpenSSL's verifications use it, which lock it where they must.
@safe final class TrustedRoots: @unchecked Sendable {
    private let store: OpaquePointer

    /// - Parameter file: PEM roots that are trusted besides the system's.
    init(file: String?) throws(HTTPSClientConfigurationError) {
        guard let store = unsafe X509_STORE_new() else { throw .tlsUnavailable }
        unsafe self.store = unsafe store
        if let file {
            let isLoaded = withCleanErrorQueue { unsafe X509_STORE_load_file(store, file) == 1 }
            if !isLoaded { throw .trustedCAFile(file) }
        }
    }

    deinit {
        unsafe X509_STORE_free(store)
    }

    /// Adds what the system trusts, as OpenSSL finds it (its built-in places, SSL_CERT_FILE, SSL_CERT_DIR). Reads and
    /// parses up to some hundred certificates, so it is nothing for an event loop.
    /// - Returns: false when memory is short. A system without roots is no failure here: then nothing verifies by them.
    func addSystemRoots() -> Bool {
        withCleanErrorQueue { unsafe X509_STORE_set_default_paths(store) == 1 }
    }

    /// Makes the sessions of `context` verify against these roots.
    @unsafe func use(in context: OpaquePointer) {
        unsafe SSL_CTX_set1_cert_store(context, store)
    }
}
