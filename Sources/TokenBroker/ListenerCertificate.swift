package import BrokerCore
import Cryptography
package import OAuth
import Reactor
package import TLS

/// The certificate of the API's listener, and the authorities of its clients' certificates. They are read again when their files
/// change, so that they can be renewed while the service runs.
///
/// Isolated to a thread of its own, because files are read.
package actor ListenerCertificate {
    /// The paths of the PEM files.
    package struct Files: Sendable {
        /// The server's certificate, then those that lead to the root.
        package var certificate: String
        /// The private key of the server's certificate, without a passphrase.
        package var key: String
        /// The authorities whose certificates clients may show; nil where clients are not asked for one.
        package var clientAuthorities: String?

        package init(certificate: String, key: String, clientAuthorities: String? = nil) {
            self.certificate = certificate
            self.key = key
            self.clientAuthorities = clientAuthorities
        }

        /// What the server accepts connections with. It blocks.
        package func read() throws(TLSServerError) -> TLSServerContext {
            try TLSServerContext(
                certificateFile: certificate, keyFile: key, clientAuthoritiesFile: clientAuthorities)
        }

        fileprivate func reload(_ context: TLSServerContext) throws(TLSServerError) {
            try context.reload(
                certificateFile: certificate, keyFile: key, clientAuthoritiesFile: clientAuthorities)
        }

        /// Tells contents of the files from others; nil where a file cannot be read.
        fileprivate var digests: [[UInt8]?] {
            ([certificate, key] + [clientAuthorities].compactMap(\.self)).map { path in
                (try? SmallFile.read(path, limit: ListenerCertificate.longestFile)).map { SHA256.digest($0) }
            }
        }
    }

    /// What `check` has found.
    package enum Finding: Equatable, Sendable {
        case unchanged
        /// Connections that are accepted from now on get the files' present content.
        case reloaded
        /// The files have changed and cannot be used. The earlier certificate stays in use.
        case refused(TLSServerError)
    }

    /// What the server accepts connections with.
    package nonisolated let context: TLSServerContext
    private nonisolated let thread: BlockingThread
    package nonisolated var unownedExecutor: UnownedSerialExecutor { unsafe thread.asUnownedSerialExecutor() }

    private let files: Files
    private let time: any Time
    private let log: Log
    /// Of the files' content that `context` has, or that was refused.
    private var digests: [[UInt8]?]
    /// When the keys of session tickets were made.
    private var keysMade: MonotonicInstant

    /// How often the files are compared with their earlier content.
    package static let interval: Duration = .seconds(5)
    /// After this time new keys of session tickets are made, with the files' content where it can be used: what was recorded
    /// earlier cannot be decrypted with the keys that a later memory has.
    package static let longestUse: Duration = .seconds(43_200)
    private static let longestFile = 1 << 20

    /// Reads the files. It blocks, so call it before an event loop runs.
    /// - Throws: `TLSServerError` for the files; `SystemError` when there is no thread.
    package init(_ files: Files, time: any Time, log: Log) throws {
        self.files = files
        self.time = time
        self.log = log
        // Before the files are used: if they change in between, the next comparison finds that.
        digests = files.digests
        context = try files.read()
        keysMade = time.monotonic
        thread = try BlockingThread(name: "certificate")
        log.info("tls_certificate_loaded", Self.fields(context))
    }

    deinit { thread.shutDown() }

    /// When the certificate in use expires.
    package nonisolated var expires: Timestamp { Timestamp(seconds: context.expirySeconds) }

    /// Compares the files every five seconds, until the task is cancelled.
    package func follow() async {
        while (try? await time.sleep(for: Self.interval)) != nil { check() }
    }

    /// Compares the files with their earlier content, and uses them if they have changed. Logs a change, and once for each
    /// content that it cannot be used. Where it cannot be used, the certificate in use gets new keys of session tickets when
    /// these are due.
    @discardableResult
    package func check() -> Finding {
        let found = files.digests
        let hasChanged = found != digests
        let areKeysDue = keysMade.duration(to: time.monotonic) >= Self.longestUse
        guard hasChanged || areKeysDue else { return .unchanged }
        digests = found
        do throws(TLSServerError) {
            try files.reload(context)
        } catch {
            log.error("tls_certificate_refused", Self.fields(error) + [.expires(expires)])
            if areKeysDue { renewKeys() }
            return .refused(error)
        }
        keysMade = time.monotonic
        if hasChanged { log.info("tls_certificate_loaded", Self.fields(context)) }
        return .reloaded
    }

    /// Where this fails, the keys stay due, and the next comparison tries again.
    private func renewKeys() {
        do throws(TLSServerError) {
            try context.renewTicketKeys()
            keysMade = time.monotonic
        } catch {
            log.error("tls_certificate_refused", Self.fields(error) + [.expires(expires)])
        }
    }

    /// When the certificate expires, and how many authorities' certificates clients may show.
    private static func fields(_ context: TLSServerContext) -> [LogField] {
        let authorities = context.clientAuthorities.map { LogField.clientAuthorities($0.count) }
        return [.expires(Timestamp(seconds: context.expirySeconds))] + [authorities].compactMap(\.self)
    }

    private static func fields(_ error: TLSServerError) -> [LogField] {
        switch error {
        case .certificateFile, .name:
            [.variable("TOKEN_BROKER_TLS_CERTIFICATE"), .reason("the file holds no certificate that can be used")]
        case .keyFile:
            [
                .variable("TOKEN_BROKER_TLS_KEY"),
                .reason("the file holds no private key that can be read without a passphrase"),
            ]
        case .otherKey:
            [.variable("TOKEN_BROKER_TLS_KEY"), .reason("the key does not belong to the certificate")]
        case .clientAuthorities:
            [
                .variable("TOKEN_BROKER_TLS_CLIENT_CA"),
                .reason("the file holds no certificates of authorities that can be used"),
            ]
        case .unavailable: [.reason("OpenSSL cannot set up TLS")]
        }
    }
}
