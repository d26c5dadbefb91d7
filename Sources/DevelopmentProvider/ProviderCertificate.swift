import Reactor
package import TLS

/// What the provider accepts TLS connections with.
package struct ProviderCertificate: Sendable {
    /// Why the provider cannot serve HTTPS. `description` is for people and names the file.
    package struct Mistake: Error, Equatable, CustomStringConvertible {
        package let description: String
    }

    package let context: TLSServerContext
    /// The file with the authority that clients have to trust; nil for a certificate that was given.
    package let authorityFile: String?
    /// Whether `removeTemporaryFile` removes it.
    private let isTemporary: Bool

    /// Reads the files, or issues a certificate and writes its authority. It blocks.
    /// - Parameters:
    ///   - names: the names and numeric addresses at which clients reach the provider, besides those of this host.
    ///   - temporaryDirectory: where the authority is written when the options name no file.
    package init(
        _ https: ProviderOptions.HTTPS, names: [String], temporaryDirectory: String
    ) throws(Mistake) {
        switch https {
        case .files(let certificate, let key):
            context = try Self.explained { () throws(TLSServerError) in
                try TLSServerContext(certificateFile: certificate, keyFile: key)
            }
            (authorityFile, isTemporary) = (nil, false)
        case .issued(let file):
            let issued = try Self.explained { () throws(TLSServerError) in
                try IssuedCertificate(
                    for: ["localhost", "127.0.0.1", "::1"] + names, authorityName: "token-broker-provider, development")
            }
            context = issued.context
            // A name that other users cannot guess, because all may write to the temporary directory.
            let path = file ?? "\(temporaryDirectory)/token-broker-provider-\(Secrets.makeAlphanumeric(count: 16)).pem"
            (authorityFile, isTemporary) = (path, file == nil)
            do throws(SystemError) {
                try SmallFile.replace(path, issued.authority)
            } catch {
                throw Mistake(description: "\(path) cannot be written: \(error)")
            }
        }
    }

    private static func explained<R>(_ body: () throws(TLSServerError) -> R) throws(Mistake) -> R {
        do throws(TLSServerError) {
            return try body()
        } catch {
            throw Mistake(description: "\(error).")
        }
    }

    /// Removes the file that the options did not name.
    package func removeTemporaryFile() {
        if isTemporary, let authorityFile { SmallFile.remove(authorityFile) }
    }
}

extension ProviderOptions {
    /// What the options say of HTTPS; nil for plain HTTP. It blocks.
    package func makeCertificate() throws(ProviderCertificate.Mistake) -> ProviderCertificate? {
        guard let https else { return nil }
        return try ProviderCertificate(
            https, names: [listen.host] + (publicBaseURL.map { [$0.host] } ?? []),
            temporaryDirectory: ProcessEnvironment.variables["TMPDIR"] ?? "/tmp")
    }
}
