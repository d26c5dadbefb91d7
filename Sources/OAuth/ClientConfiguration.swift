package import Cryptography
package import ExternalText

/// One client registration: the parameters of the design's `init` without the addresses.
package struct ClientConfiguration: Sendable, Equatable {
    package let clientID: WireText
    /// The secret; while two are in use, the one that is tried first. Nil where a file has it.
    package let clientSecret: SecretBytes?
    /// What the client has beside or instead of that; nil for most clients.
    package let material: ClientMaterial?
    /// Never empty.
    package let clientUniqueKey: WireText?
    package let scopes: ScopeSet
    /// Computed once, because every query compares it with the stored credentials.
    package let fingerprint: ClientFingerprint

    /// An empty `clientUniqueKey` counts as none; TIDAL's clients also omit an empty key.
    package init(
        clientID: WireText, clientSecret: SecretBytes?, clientUniqueKey: WireText?, scopes: ScopeSet,
        material: ClientMaterial? = nil
    ) {
        self.clientID = clientID
        self.clientSecret = clientSecret
        self.material = material
        self.clientUniqueKey = clientUniqueKey.flatMap { $0.isEmpty ? nil : $0 }
        self.scopes = scopes
        fingerprint = ClientFingerprint(
            clientID: clientID, scopes: scopes, clientUniqueKey: self.clientUniqueKey,
            clientSecretDigest: material?.digest(with: clientSecret)
                ?? clientSecret.map { $0.withRevealed { SHA256.digest($0) } })
    }

    private init(_ client: ClientConfiguration, secret: SecretBytes?, material: ClientMaterial?) {
        clientID = client.clientID
        clientSecret = secret
        self.material = material
        clientUniqueKey = client.clientUniqueKey
        scopes = client.scopes
        fingerprint = client.fingerprint
    }

    /// Whether the client can show who it is: it is not a public one (RFC 6749 §2.1).
    package var isConfidential: Bool { clientSecret != nil || material != nil }

    /// Whether the client has a secret, in its configuration or in a file.
    package var hasSecret: Bool { clientSecret != nil || material?.secretFile != nil }

    /// The secrets in the configuration: none, 1 or 2.
    package var secrets: [SecretBytes] {
        if let secrets = material?.secrets, !secrets.isEmpty { return secrets }
        return [clientSecret].compactMap(\.self)
    }

    /// Whether the client has what the method shows.
    package func fits(_ method: ProviderPreset.ClientAuthentication) -> Bool {
        switch method {
        case .none: !isConfidential
        case .clientSecretBasic, .clientSecretPost, .clientSecretBearer, .clientSecretJWT: hasSecret
        case .privateKeyJWT: material?.privateKey != nil
        case .clientAssertionFile: material?.assertionFile != nil
        case .tlsClientAuth: material?.certificate != nil
        }
    }

    /// The method of a client for which nothing names one.
    /// - Parameter usual: the provider's.
    package func method(
        preferring usual: ProviderPreset.ClientAuthentication
    ) -> ProviderPreset.ClientAuthentication {
        if material == nil || fits(usual) { return usual }
        let others: [ProviderPreset.ClientAuthentication] = [.privateKeyJWT, .clientAssertionFile]
        if let other = others.first(where: fits) { return other }
        return hasSecret ? .clientSecretBasic : fits(.tlsClientAuth) ? .tlsClientAuth : usual
    }

    /// The JWT that a request shows; nil but in a client that `showing` has made.
    var assertion: WireText? { material?.assertion }

    /// The same client for one request, with the secret that the request shows.
    package func showing(secret: SecretBytes) -> ClientConfiguration {
        ClientConfiguration(self, secret: secret, material: material)
    }

    /// The same client for one request, with the JWT that the request shows.
    package func showing(assertion: WireText) -> ClientConfiguration {
        ClientConfiguration(self, secret: clientSecret, material: ClientMaterial.asserting(assertion, beside: material))
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
