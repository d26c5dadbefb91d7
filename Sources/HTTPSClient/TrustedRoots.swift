internal import COpenSSL
internal import Cryptography

/// Owns the `X509_STORE` with the roots against which a client verifies servers.
///
/// `@unchecked Sendable`: only `addSystemRoots` changes the store, and the client creates no session before that call
/// has returned. Afterwards only OpenSSL's verification uses the store, and it locks the store itself.
@safe final class TrustedRoots: @unchecked Sendable {
    private let store: OpaquePointer

    /// - Parameter file: a PEM file with roots that are trusted in addition to the system's.
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

    /// Adds the roots that the system trusts, from OpenSSL's built-in paths, SSL_CERT_FILE and SSL_CERT_DIR. This reads
    /// and parses a hundred certificates and more, so it must not run on an event loop.
    /// - Returns: false when memory is short. A system without roots is not an error: no server then verifies by them.
    func addSystemRoots() -> Bool {
        withCleanErrorQueue { unsafe X509_STORE_set_default_paths(store) == 1 }
    }

    /// Makes the sessions of `context` verify against these roots.
    @unsafe func use(in context: OpaquePointer) {
        unsafe SSL_CTX_set1_cert_store(context, store)
    }
}
