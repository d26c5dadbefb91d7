internal import COpenSSL
internal import Cryptography
internal import Synchronization

/// Owns the `X509_STORE` with the roots against which a client verifies servers.
///
/// OpenSSL's verification also uses the store, without this class's lock: OpenSSL locks it itself.
@safe final class TrustedRoots: Sendable {
    private let store: Mutex<OpaquePointer>

    /// - Parameter file: a PEM file with roots that are trusted in addition to the system's.
    init(file: String?) throws(HTTPSClientConfigurationError) {
        guard let store = unsafe X509_STORE_new() else { throw .tlsUnavailable }
        if let file {
            let isLoaded = withCleanErrorQueue { unsafe X509_STORE_load_file(store, file) == 1 }
            if !isLoaded {
                unsafe X509_STORE_free(store)
                throw .trustedCAFile(file)
            }
        }
        unsafe self.store = unsafe Mutex(store)
    }

    deinit {
        unsafe store.withLock { unsafe X509_STORE_free($0) }
    }

    /// Adds the roots that the system trusts, from OpenSSL's built-in paths, SSL_CERT_FILE and SSL_CERT_DIR. This reads
    /// and parses a hundred certificates and more, so it must not run on an event loop.
    /// - Returns: false when memory is short. A system without roots is not an error: no server then verifies by them.
    func addSystemRoots() -> Bool {
        unsafe store.withLock { store in
            withCleanErrorQueue { unsafe X509_STORE_set_default_paths(store) == 1 }
        }
    }

    /// Makes the sessions of `context` verify against these roots.
    @unsafe func use(in context: OpaquePointer) {
        unsafe store.withLock { unsafe SSL_CTX_set1_cert_store(context, $0) }
    }
}
