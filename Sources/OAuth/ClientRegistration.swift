package import Cryptography
package import ExternalText
package import JSON

/// The metadata of a client, as a registration names them (RFC 7591 §2), and as a client ID metadata document shows them.
package struct ClientMetadata: Sendable, Equatable {
    /// What pages of the authorization server call the client.
    package var name: String
    package var redirectURIs: [String]
    package var method: ProviderPreset.ClientAuthentication
    /// Asked for by default; empty for what the server chooses.
    package var scopes: ScopeSet

    package init(
        name: String, redirectURIs: [String], method: ProviderPreset.ClientAuthentication, scopes: ScopeSet
    ) {
        self.name = name
        self.redirectURIs = redirectURIs
        self.method = method
        self.scopes = scopes
    }

    /// Writes the members. A client ID metadata document has its own address as `client_id` beside them.
    package func encode(to json: inout JSONWriter) {
        json.member("client_name", name)
        json.member("redirect_uris", redirectURIs)
        json.member("grant_types", ["authorization_code", "refresh_token"])
        json.member("response_types", ["code"])
        json.member("token_endpoint_auth_method", method.rawValue)
        if !scopes.values.isEmpty { json.member("scope", scopes.description) }
    }
}

/// A client that an authorization server has made of metadata (RFC 7591 §3.2.1).
package struct RegisteredClient: Sendable, Equatable {
    package let clientID: WireText
    package let secret: SecretBytes?
    /// Nil where the secret does not end, and where there is none.
    package let secretExpires: Timestamp?
    package let method: ProviderPreset.ClientAuthentication
    /// The redirect URIs that were registered.
    package let redirectURIs: [String]
    /// Where the registration is read and ended (RFC 7592), with the token for it; nil where the server has none.
    package let management: Management?

    package struct Management: Sendable, Equatable {
        package let uri: String
        package let token: SecretBytes

        package init(uri: String, token: SecretBytes) {
            (self.uri, self.token) = (uri, token)
        }
    }

    /// Longer identifiers and secrets are not those of a client.
    private static let longestIdentifier = 512
    private static let longestSecret = 4096

    /// Reads the answer to a registration. Nil where it has no usable identifier, or where the client has to authenticate in a way
    /// for which the answer has no secret.
    ///
    /// The redirect URIs are those of the request, however the server spells them in its answer: one that is compared with
    /// another spelling of itself would look like a new one at each login, and have another client made.
    /// - Parameters:
    ///   - asked: the metadata of the request, as which is what the answer does not tell (RFC 7591 §3.2.1); nil for what `encode`
    ///     has written.
    ///   - json: the answer, or what `encode` has written.
    package init?(_ json: JSONValue, asked: ClientMetadata?) {
        guard let clientID = json["client_id"]?.string, !clientID.isEmpty, clientID.count <= Self.longestIdentifier
        else { return nil }
        let secret = json["client_secret"]?.string.flatMap { $0.isEmpty ? nil : $0 }
        if let secret, secret.count > Self.longestSecret { return nil }
        let told = json["token_endpoint_auth_method"]?.string
        let method: ProviderPreset.ClientAuthentication
        if let told {
            guard let known = ProviderPreset.ClientAuthentication(told) else { return nil }
            method = known
        } else {
            method = secret == nil ? .none : asked.map { $0.method == .none ? .clientSecretBasic : $0.method } ?? .none
        }
        guard method == .none || secret != nil else { return nil }
        self.clientID = clientID
        self.secret = method == .none ? nil : secret.map { SecretBytes(utf8: $0.text) }
        self.method = method
        // Servers name an end for public clients as well, such as those made with the MCP SDK for Python.
        secretExpires = self.secret == nil ? nil : Self.end(json)
        redirectURIs = asked?.redirectURIs ?? json["redirect_uris"]?.array?.compactMap(\.string?.text) ?? []
        let (uri, token) = (json["registration_client_uri"]?.string, json["registration_access_token"]?.string)
        if let uri, let token, uri.count <= 2048, token.count <= Self.longestSecret {
            management = Management(uri: uri.text, token: SecretBytes(utf8: token.text))
        } else {
            management = nil
        }
    }

    private init(
        _ client: RegisteredClient, secret: SecretBytes?, secretExpires: Timestamp?, redirectURIs: [String],
        management: Management?
    ) {
        (clientID, method) = (client.clientID, client.method)
        (self.secret, self.secretExpires) = (secret, secretExpires)
        (self.redirectURIs, self.management) = (redirectURIs, management)
    }

    /// The client as its server tells of it when its registration is read or changed (RFC 7592 §3): with another secret, and
    /// another token for the registration, where it names these. Nil for what is told of another client.
    /// - Parameter redirectURIs: those that the registration has now; nil where they were not changed.
    package func updated(by json: JSONValue, redirectURIs: [String]? = nil) -> RegisteredClient? {
        guard json["client_id"]?.string == clientID else { return nil }
        var (secret, secretExpires, management) = (secret, secretExpires, management)
        // Some servers show stars in its place.
        let told = json["client_secret"]?.string.flatMap { text in
            text.count <= Self.longestSecret && text.utf8.contains { $0 != UInt8(ascii: "*") } ? text : nil
        }
        if method != .none, let told {
            secret = SecretBytes(utf8: told.text)
            secretExpires = Self.end(json)
        }
        if let token = json["registration_access_token"]?.string, !token.isEmpty, token.count <= Self.longestSecret,
            let uri = management?.uri
        {
            management = Management(uri: uri, token: SecretBytes(utf8: token.text))
        }
        return RegisteredClient(
            self, secret: secret, secretExpires: secretExpires, redirectURIs: redirectURIs ?? self.redirectURIs,
            management: management)
    }

    /// The client without an address for its registration.
    package var withoutManagement: RegisteredClient {
        RegisteredClient(
            self, secret: secret, secretExpires: secretExpires, redirectURIs: redirectURIs, management: nil)
    }

    private static func end(_ json: JSONValue) -> Timestamp? {
        json["client_secret_expires_at"]?.integer
            .flatMap { (1...253_402_300_799).contains($0) ? Timestamp(seconds: $0) : nil }
    }

    /// Writes what `init` reads, for a sealed record.
    package func encode(to json: inout JSONWriter) {
        json.member("client_id", clientID.text)
        json.memberIfPresent("client_secret", secret?.revealedText)
        json.memberIfPresent("client_secret_expires_at", secretExpires.map { $0.milliseconds / 1000 })
        json.member("token_endpoint_auth_method", method.rawValue)
        json.member("redirect_uris", redirectURIs)
        json.memberIfPresent("registration_client_uri", management?.uri)
        json.memberIfPresent("registration_access_token", management?.token.revealedText)
    }
}
