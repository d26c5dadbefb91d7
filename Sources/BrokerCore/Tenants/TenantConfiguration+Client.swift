import Cryptography
package import ExternalText
import HTTPSClient
import JOSE
package import JSON
import OAuth
import Reactor

/// What a tenant's client shows its provider: how it is read, written, and kept from one configuration to the next.
extension TenantConfiguration {
    /// The members of which a configuration has one at most: each says what the secret is.
    private static let secretMembers: [WireText] = ["client_secret", "client_secrets", "client_secret_file"]

    /// The members that a configuration which leaves them out keeps.
    private static let keptMembers: [WireText] = [
        "client_secret", "client_secrets", "private_key", "client_certificate",
    ]

    /// The longest path of a file, in bytes.
    private static let longestPath = 4096

    /// The longest secret, in bytes.
    private static let longestSecret = 4096

    // MARK: Reading

    /// The client's secret, and what it has beside it.
    static func clientProof(_ reader: inout ObjectReader) -> (secret: SecretBytes?, material: ClientMaterial?) {
        let secret = reader.string("client_secret", limit: longestSecret)
        let secrets = reader.strings("client_secrets", allowsEmpty: false, atMost: 2) { text in
            if !(1...longestSecret).contains(text.count) { return "must have 1 to \(longestSecret) bytes" }
            let hasControls = text.utf8.contains { $0 < 0x20 || $0 == 0x7f }
            return hasControls ? "must not contain control characters" : nil
        }
        if let secrets, secrets.count == 2, secrets[0] == secrets[1] {
            reader.note("client_secrets", "must not have the same secret twice")
        }
        let secretFile = path(&reader, "client_secret_file")
        let given = [secret != nil, secrets != nil, secretFile != nil]
        for (name, isGiven) in zip(secretMembers, given).dropFirst(given.firstIndex(of: true).map { $0 + 1 } ?? 3)
        where isGiven {
            reader.note(
                name, "must not be there beside \(secretMembers[given.firstIndex(of: true) ?? 0].text): use one of them"
            )
        }
        let texts = (secrets ?? []).map { SecretBytes(utf8: $0.text) }
        return (
            (secret?.text).map(SecretBytes.init(utf8:)) ?? texts.first,
            ClientMaterial(
                secrets: texts, secretFile: secretFile, assertionFile: path(&reader, "client_assertion_file"),
                privateKey: privateKey(&reader), certificate: certificate(&reader))
        )
    }

    private static func path(_ reader: inout ObjectReader, _ name: WireText) -> WireText? {
        guard let path = reader.string(name, limit: longestPath) else { return nil }
        if path.utf8.first == UInt8(ascii: "/") { return path }
        reader.note(name, "must be an absolute path")
        return nil
    }

    private static func privateKey(_ reader: inout ObjectReader) -> ClientPrivateKey? {
        guard let value = reader.any("private_key") else { return nil }
        do throws(ClientPrivateKey.Fault) {
            return try ClientPrivateKey(value)
        } catch {
            reader.note("private_key", error.detail)
            return nil
        }
    }

    private static func certificate(_ reader: inout ObjectReader) -> SecretBytes? {
        guard let value = reader.any("client_certificate") else { return nil }
        guard case .string(let text) = value else {
            reader.note("client_certificate", "must be a text in the form of PEM")
            return nil
        }
        let pem = SecretBytes(utf8: text.text)
        if let fault = ClientCertificate.fault(in: pem) {
            reader.note("client_certificate", fault)
            return nil
        }
        return pem
    }

    // MARK: Writing

    /// Writes the members: for the sealed record with the secrets, for answers without.
    func encodeClientProof(to json: inout JSONWriter, revealingSecret: Bool) {
        let material = client.material
        let own = material?.secrets.isEmpty == false ? nil : client.clientSecret
        if revealingSecret {
            json.memberIfPresent("client_secret", own?.revealedText)
        } else {
            json.member("client_secret_set", own != nil)
        }
        guard let material else { return }
        json.memberIfPresent("client_secret_file", material.secretFile?.text)
        json.memberIfPresent("client_assertion_file", material.assertionFile?.text)
        if revealingSecret {
            if !material.secrets.isEmpty { json.member("client_secrets", material.secrets.map(\.revealedText)) }
            if let key = material.privateKey { json.member("private_key", key.json) }
            json.memberIfPresent("client_certificate", material.certificate?.revealedText)
        } else {
            if !material.secrets.isEmpty { json.member("client_secrets_set", material.secrets.count) }
            if material.privateKey != nil { json.member("private_key_set", true) }
            if material.certificate != nil { json.member("client_certificate_set", true) }
        }
    }

    // MARK: From one configuration to the next

    /// The members that name what the client shows and that a body has, also as null. A body that has them says what becomes of
    /// them.
    package static func namedSecrets(in json: JSONValue) -> Set<WireText> {
        Set(keptMembers.filter { json[$0] != nil })
    }

    /// The stored members with a merge patch (RFC 7396). A new secret takes the place of one that another member has said, and a new
    /// key that of another one, whose members would not fit it.
    package static func merged(_ stored: [WireText: JSONValue], with patch: JSONValue) -> JSONValue {
        var stored = stored
        let changes = patch.object ?? [:]
        if secretMembers.contains(where: { changes[$0].map { $0 != .null } ?? false }) {
            for name in secretMembers { stored[name] = nil }
        }
        if changes["private_key"] != nil { stored["private_key"] = nil }
        return .object(merged(stored, naming: changes))
    }

    /// The members that are objects whose members have names that this program does not choose.
    private static let freeMembers: Set<WireText> = [
        "parameters", "authorize_parameters", "token_parameters", "refresh_parameters", "request_headers",
        "private_key",
    ]

    /// The members with those of a merge patch. Where a member's name is one of a fixed set, one that is null is not removed and
    /// stays as null: it counts as left out, and a name that is not of the set is a fault.
    private static func merged(
        _ members: [WireText: JSONValue], naming changes: [WireText: JSONValue]
    ) -> [WireText: JSONValue] {
        var members = members
        for (name, change) in changes {
            switch change {
            case .null: members[name] = .null
            case .object(let inner) where !freeMembers.contains(name):
                members[name] = .object(merged(members[name]?.object ?? [:], naming: inner))
            default: members[name] = (members[name] ?? .null).merged(with: change)
            }
        }
        return members
    }

    /// This configuration with what the client of the one that it replaces has shown, as far as it names nothing else, where the
    /// client is the same and its requests go to the same place.
    /// - Parameter named: the members that the new configuration has, also as null.
    package func keepingSecrets(
        of previous: TenantConfiguration?, unless named: Set<WireText> = []
    ) -> TenantConfiguration {
        guard let previous, previous.client.isConfidential, client.clientID == previous.client.clientID,
            sendsSecret(like: previous)
        else { return self }
        let (own, earlier) = (client.material, previous.client.material)
        var (secret, secrets) = (client.clientSecret, own?.secrets ?? [])
        let earlierSecrets = earlier?.secrets ?? []
        if !client.hasSecret, !named.contains(earlierSecrets.isEmpty ? "client_secret" : "client_secrets") {
            (secret, secrets) = (previous.client.clientSecret, earlierSecrets)
        }
        var copy = self
        copy.client = ClientConfiguration(
            clientID: client.clientID, clientSecret: secret, clientUniqueKey: client.clientUniqueKey,
            scopes: client.scopes,
            material: ClientMaterial(
                secrets: secrets, secretFile: own?.secretFile, assertionFile: own?.assertionFile,
                privateKey: own?.privateKey ?? (named.contains("private_key") ? nil : earlier?.privateKey),
                certificate: own?.certificate ?? (named.contains("client_certificate") ? nil : earlier?.certificate)))
        return copy
    }

    /// The same configuration where its client has what its `token_endpoint_auth_method` shows.
    /// - Throws: `invalid_request` where it lacks that.
    package func withUsableClient() throws(BrokerError) -> TenantConfiguration {
        guard let method = clientAuthentication else { return self }
        func lacks(_ member: WireText) -> BrokerError? {
            client.fits(method)
                ? nil : .invalidMember(member, "is required with the token_endpoint_auth_method \(method.rawValue)")
        }
        let fault: BrokerError?
        switch method {
        // A client without a secret is a public one, whatever the method.
        case .none, .clientSecretBasic, .clientSecretPost, .clientSecretBearer: fault = nil
        case .privateKeyJWT: fault = lacks("private_key")
        case .clientAssertionFile: fault = lacks("client_assertion_file")
        case .tlsClientAuth: fault = lacks("client_certificate")
        case .clientSecretJWT:
            let shortest = SharedSecretSigner.shortestSecret
            fault =
                lacks("client_secret")
                ?? (client.secrets.contains { $0.count < shortest }
                    ? .invalidMember(
                        client.material?.secrets.isEmpty == false ? "client_secrets" : "client_secret",
                        "must have at least \(shortest) bytes with the token_endpoint_auth_method \(method.rawValue)")
                    : nil)
        }
        if let fault { throw fault }
        return self
    }
}

extension TenantConfiguration {
    /// Has a client with a certificate use the addresses that the provider has for such clients, except for those that the tenant
    /// names.
    func useMutualTLS(of metadata: ProviderMetadata, at server: inout AuthorizationServer?) {
        let aliases = metadata.mutualTLS
        if endpoints.token == nil, let token = aliases.token { server?.tokenEndpoint = token }
        if endpoints.revocation == nil, let revocation = aliases.revocation { server?.revocationEndpoint = revocation }
        if endpoints.deviceAuthorization == nil, let device = aliases.deviceAuthorization {
            server?.deviceAuthorizationEndpoint = device
        }
        if endpoints.pushedAuthorization == nil, let pushed = aliases.pushedAuthorization {
            server?.pushedAuthorization = pushedAuthorization(at: pushed, metadata: metadata)
        }
    }
}

/// The `mtls_endpoint_aliases` of a provider's metadata.
package struct MutualTLSEndpoints: Sendable, Equatable {
    package var token: String?
    package var revocation: String?
    package var deviceAuthorization: String?
    package var pushedAuthorization: String?

    package init() {}
}

extension ProviderPreset.ClientAuthentication {
    /// The name by which metadata announces the method.
    var announced: ProviderPreset.ClientAuthentication { self == .clientAssertionFile ? .privateKeyJWT : self }

    /// Whether requests have the secret itself.
    var showsSecret: Bool {
        switch self {
        case .clientSecretBasic, .clientSecretPost, .clientSecretBearer: true
        case .privateKeyJWT, .clientSecretJWT, .clientAssertionFile, .tlsClientAuth, .none: false
        }
    }
}

extension ClientConfiguration {
    /// The first of the announced methods that fits what the client has; nil for none. A JWT that a secret signs comes last: few
    /// clients are registered for it, and few secrets are kept as they are.
    func method(
        among announced: [ProviderPreset.ClientAuthentication]
    ) -> ProviderPreset.ClientAuthentication? {
        let usable = announced.compactMap { method -> ProviderPreset.ClientAuthentication? in
            if fits(method) { return method }
            return method == .privateKeyJWT && fits(.clientAssertionFile) ? .clientAssertionFile : nil
        }
        return usable.first { $0 != .clientSecretJWT } ?? usable.first
    }
}

extension BrokerError {
    /// A fault of a member of a body that is known only when the body is laid over what is stored.
    fileprivate static func invalidMember(_ name: WireText, _ detail: String) -> BrokerError {
        let pointer = "/" + JSONValue.pointerToken(name)
        return BrokerError(.invalidRequest, "\(pointer) \(detail).", faults: [InputFault(pointer, detail)])
    }
}
