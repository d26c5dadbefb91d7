package import Cryptography
package import ExternalText

/// One client registration: what the design's `init` is given, without the addresses.
package struct ClientConfiguration: Sendable, Equatable {
    package let clientID: WireText
    package let clientSecret: SecretBytes?
    /// Never empty.
    package let clientUniqueKey: WireText?
    package let scopes: ScopeSet
    /// Made once: each query compares it with what is held.
    package let fingerprint: ClientFingerprint

    /// An empty `clientUniqueKey` is taken for none: TIDAL's clients leave it out too.
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

/// What credentials were obtained with. It is kept beside them, so that a later difference is seen; the secret only
/// as its digest, inside the sealed record.
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
    /// What credentials are tied to that were obtained with this and that `client` has refreshed. A refresh shows the
    /// client's identifier and secret and goes on with the session as it was granted (RFC 6749 §6): scopes that are
    /// configured since were not asked for, and the session is still the first installation's.
    package func refreshed(by client: ClientFingerprint) -> ClientFingerprint {
        ClientFingerprint(
            clientID: client.clientID, scopes: scopes, clientUniqueKey: clientUniqueKey,
            clientSecretDigest: client.clientSecretDigest)
    }

    /// One of the four parameters that credentials are tied to.
    package enum Member: String, Sendable, CaseIterable {
        case clientID = "client_id"
        case clientSecret = "client_secret"
        case clientUniqueKey = "client_unique_key"
        case scopes
    }

    /// In which of the four the two differ, in the order of `Member.allCases`.
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

/// What prints a fingerprint goes by this. A short secret can be guessed from its digest, so that is not in it.
extension ClientFingerprint: CustomReflectable {
    package var customMirror: Mirror {
        Mirror(
            self, children: ["clientID": clientID, "scopes": scopes, "clientUniqueKey": clientUniqueKey as Any],
            displayStyle: .struct)
    }
}
