import Cryptography
import ExternalText
import HTTPCodec
import HTTPServer

/// How a client authenticates at the token, device authorization and revocation endpoints.
package enum ClientAuthenticationMethod: String, Sendable {
    /// The request contains at most `client_id`.
    case none
    case post = "client_secret_post"
    case basic = "client_secret_basic"
    /// A JWT that a key of the client signs.
    case assertion = "private_key_jwt"
}

/// The client authentication in a request (RFC 6749 §2.3.1).
struct ClientAuthentication: Sendable {
    let method: ClientAuthenticationMethod
    let clientID: WireText?
    let secret: WireText?
    /// The Basic credentials cannot be read, or the request contains credentials in two ways.
    let isMalformed: Bool

    init(_ fields: Fields, _ parameters: Parameters) {
        let postedID = parameters["client_id"]
        let postedSecret = parameters["client_secret"]
        guard let authorization = fields["Authorization"] else {
            method = parameters["client_assertion"] != nil ? .assertion : postedSecret == nil ? .none : .post
            clientID = postedID
            secret = postedSecret
            isMalformed = false
            return
        }
        let credentials = Self.basic(authorization)
        method = .basic
        clientID = credentials?.id
        secret = credentials?.secret
        isMalformed =
            credentials == nil || postedSecret != nil || (postedID != nil && postedID != credentials?.id)
            || fields.values("Authorization").count > 1
    }

    /// The authentication in the places where the provider reads it.
    init(_ request: Request, _ parameters: Parameters, _ behaviour: ProviderBehaviour) {
        let readsHeader =
            switch behaviour.credentialPlaces {
            case .formOrHeader: true
            case .form: false
            case .formElseHeader: parameters["client_id"] == nil && parameters["client_secret"] == nil
            }
        self.init(readsHeader ? request.fields : [:], parameters)
    }

    /// Decodes the base64 of the form-encoded identifier, a colon and the form-encoded secret.
    private static func basic(_ field: WireText) -> (id: WireText, secret: WireText)? {
        let pieces = field.split(at: " ", limit: 2)
        guard pieces.count == 2, pieces[0].equalsIgnoringCase("Basic"),
            let bytes = Base64.decode(pieces[1].trimmed.text)
        else { return nil }
        let halves = bytes.split(separator: UInt8(ascii: ":"), maxSplits: 1, omittingEmptySubsequences: false)
        guard halves.count == 2 else { return nil }
        let (id, secret) = (halves[0], halves[1])
        do {
            return (
                try FormEncoding.percentDecode(id.span, plusIsSpace: true),
                try FormEncoding.percentDecode(secret.span, plusIsSpace: true)
            )
        } catch {
            return nil
        }
    }

    /// Authenticates the client.
    /// - Parameter requiresSecret: whether a client that has a secret must send it.
    func client(
        in configuration: ProviderConfiguration, requiresSecret: Bool
    ) throws(OAuthError) -> ProviderClient {
        if isMalformed { throw OAuthError(.invalidClient, "Malformed or doubled client credentials") }
        guard let clientID else {
            throw OAuthError(.invalidClient, "client_id is missing")
        }
        guard let client = configuration.client(clientID) else {
            throw OAuthError(.invalidClient, "Client not found")
        }
        guard let expected = client.secret else {
            if client.publicKeys != nil, requiresSecret {
                throw OAuthError(.invalidClient, "Client assertion is missing")
            }
            if secret == nil || configuration.behaviour.ignoresNeedlessSecrets { return client }
            throw OAuthError(.invalidClient, "Client has no secret")
        }
        if let secret {
            guard Self.isRight(secret, [expected] + client.formerSecrets) else {
                throw OAuthError(.invalidClient, "Client secret is wrong")
            }
        } else if requiresSecret {
            throw OAuthError(.invalidClient, "Client secret is missing")
        }
        return client
    }

    private static func isRight(_ secret: WireText, _ secrets: [String]) -> Bool {
        // Digests have equal lengths, so the time of the comparison does not reveal the length of the secret.
        let given = SHA256.digest(Array(secret.utf8))
        return secrets.contains { ConstantTime.equal(given, SHA256.digest(Array($0.utf8))) }
    }

    /// Checks the secret of a client as Authgear's token endpoint does.
    func checkSecret(of client: ProviderClient) throws(OAuthError) {
        guard let expected = client.secret else { return }
        guard let secret else { throw OAuthError(.invalidClient, "client secret is required") }
        guard Self.isRight(secret, [expected] + client.formerSecrets) else {
            throw OAuthError(.invalidRequest, "invalid client secret")
        }
    }
}
