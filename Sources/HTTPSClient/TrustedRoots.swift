import COpenSSL
import Cryptography
import Synchronization

/// Owns the `X509_STORE` with the roots against which a client verifies servers.
final class TrustedRoots: Sendable {
    @safe private struct Store: ~Copyable {
        let pointer: OpaquePointer

        deinit {
            unsafe X509_STORE_free(pointer)
        }
    }

    /// The lock is for this process's own calls. While OpenSSL verifies a server, it locks the store itself.
    private let store: Mutex<Store>

    /// - Parameter file: a PEM file with roots that are trusted in addition to the system's.
    init(file: String?) throws(HTTPSClientConfigurationError) {
        guard let pointer = unsafe X509_STORE_new() else { throw .tlsUnavailable }
        let store = unsafe Store(pointer: pointer)
        if let file {
            let isLoaded = withCleanErrorQueue { unsafe X509_STORE_load_file(pointer, file) == 1 }
            if !isLoaded { throw .trustedCAFile(file) }
        }
        self.store = Mutex(store)
    }

    /// Adds the roots that the system trusts, from OpenSSL's built-in paths, SSL_CERT_FILE and SSL_CERT_DIR. This reads
    /// and parses a hundred certificates and more, so it must not run on an event loop.
    /// - Returns: false when memory is short. A system without roots is not an error: no server then verifies by them.
    func addSystemRoots() -> Bool {
        store.withLock { store in withCleanErrorQueue { unsafe X509_STORE_set_default_paths(store.pointer) == 1 } }
    }

    /// Makes the sessions of `context` verify against these roots.
    @unsafe func use(in context: OpaquePointer) {
        // As a number, because the compiler cannot see that the lock's owner does not keep the pointer.
        let context = UInt(bitPattern: context)
        store.withLock { unsafe SSL_CTX_set1_cert_store(OpaquePointer(bitPattern: context), $0.pointer) }
    }
}
