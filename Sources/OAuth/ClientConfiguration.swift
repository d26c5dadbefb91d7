package import Cryptography
package import ExternalText

/// One client registration: the parameters of the design's `init` without the addresses.
package struct ClientConfiguration: Sendable, Equatable {
    package let clientID: WireText
    package let clientSecret: SecretBytes?
    /// Never empty.
    package let clientUniqueKey: WireText?
    package let scopes: ScopeSet
    /// Computed once, because every query compares it with the stored credentials.
    package let fingerprint: ClientFingerprint

    /// An empty `clientUniqueKey` counts as none; TIDAL's clients also omit an empty key.
    package init(clientID: WireText, clientSecret: SecretBytes?, clientUniqueKey: WireText?, scopes: ScopeSet) {
        self.clientID = clientID
        self.clientSecret = clientSecret
        self.clientUniqueKey = clientUniqueKey.flatMap { $0.isEmpty ? nil : $0 }
        self.scopes = scopes
        fingerprint = ClientFingerprint(
            clientID: clientID, scopes: scopes, clientUniqueKey: self.clientUniqueKey,
            clientSecretDigest: clientSecret.map { $0.withRevealed { SHA256.digest($0) } })
    }
}

/// The client parameters with which credentials were obtained. They are stored with the credentials so that a later
/// change of the configuration is detected. The secret is stored only as a digest, inside the sealed record.
package struct ClientFingerprint: Sendable, Equatable {
    package let clientID: WireText
    package let scopes: ScopeSet
    package let clientUniqueKey: WireText?
    package let clientSecretDigest: [UInt8]?

    package init(clientID: WireText, scopes: ScopeSet, clientUniqueKey: WireText?, clientSecretDigest: [UInt8]?) {
        self.clientID = clientID
        self.scopes = scopes
        self.clientUniqueKey = clientUniqueKey
        self.clientSecretDigest = clientSecretDigest
    }
}

extension ClientFingerprint {
    /// The fingerprint of credentials that were obtained with `self` and then refreshed by `client`. A refresh
    /// authenticates with the client's identifier and secret and continues the session as it was granted (RFC 6749 §6).
    /// It does not request scopes that were configured later, and the session keeps the unique key of its login.
    package func refreshed(by client: ClientFingerprint) -> ClientFingerprint {
        ClientFingerprint(
            clientID: client.clientID, scopes: scopes, clientUniqueKey: clientUniqueKey,
            clientSecretDigest: client.clientSecretDigest)
    }

    /// One of the four parameters that a fingerprint compares.
    package enum Member: String, Sendable, CaseIterable {
        case clientID = "client_id"
        case clientSecret = "client_secret"
        case clientUniqueKey = "client_unique_key"
        case scopes
    }

    /// The parameters that differ, in the order of `Member.allCases`.
    package func differences(from other: ClientFingerprint) -> [Member] {
        Member.allCases.filter { member in
            switch member {
            case .clientID: clientID != other.clientID
            case .clientSecret: clientSecretDigest != other.clientSecretDigest
            case .clientUniqueKey: clientUniqueKey != other.clientUniqueKey
            case .scopes: scopes != other.scopes
            }
        }
    }
}

/// Printing a fingerprint uses this mirror. It omits the digest, from which a short secret could be guessed.
extension ClientFingerprint: CustomReflectable {
    package var customMirror: Mirror {
        Mirror(
            self, children: ["clientID": clientID, "scopes": scopes, "clientUniqueKey": clientUniqueKey as Any],
            displayStyle: .struct)
    }
}
