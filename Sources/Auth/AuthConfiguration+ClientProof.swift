import ExternalText
import JSON

extension AuthConfiguration {
    /// What a client shows a provider in place of a secret. `AuthConfiguration.clientAuthentication` stays nil for it, unless the
    /// secret in a file is to be shown by a certain method.
    public enum ClientProof: Sendable, Equatable {
        /// The absolute path of a file with the secret: one line of at most 65,536 bytes. It is read at each use.
        case secretFile(String)
        /// Two secrets, while they are changed: the first is used, and the next where the provider refuses the client.
        case secrets(String, next: String)
        /// The absolute path of a file with a JWT that the platform writes, at most 65,536 bytes. It is read at each use, and sent
        /// as a client assertion (RFC 7523).
        case assertionFile(String)
        /// Signs a JWT for each request: the JSON text of a private JWK, or PEM without a passphrase. P-256, P-384, Ed25519, or RSA
        /// of 2048 to 4096 bits.
        case privateKey(String)
        /// PEM: the certificate that is shown in TLS (RFC 8705), those that lead to its root, and its private key.
        case certificate(String)

        var member: (name: WireText, value: JSONValue) {
            switch self {
            case .secretFile(let path): ("client_secret_file", .string(WireText(path)))
            case .secrets(let first, let next):
                ("client_secrets", .array([.string(WireText(first)), .string(WireText(next))]))
            case .assertionFile(let path): ("client_assertion_file", .string(WireText(path)))
            case .privateKey(let text):
                ("private_key", (try? JSONValue(parsing: Array(text.utf8))) ?? .string(WireText(text)))
            case .certificate(let pem): ("client_certificate", .string(WireText(pem)))
            }
        }
    }
}

/// Printing one of these shows nothing of it.
extension AuthConfiguration.ClientProof: CustomStringConvertible, CustomReflectable {
    public var description: String { "<proof of a client>" }
    public var customMirror: Mirror { Mirror(self, children: []) }
}
