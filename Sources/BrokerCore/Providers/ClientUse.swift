import ExternalText
import OAuth

/// A client as its provider sees it: two configurations that a provider cannot tell apart are equal.
struct ClientIdentity: Hashable, Sendable {
    private let id: WireText
    private let secretDigest: [UInt8]?

    init(_ fingerprint: ClientFingerprint) {
        (id, secretDigest) = (fingerprint.clientID, fingerprint.clientSecretDigest)
    }
}

/// What a provider sees of a client in a token request: the client's identity, and the grant.
struct ClientUse: Sendable, Equatable {
    let client: ClientIdentity
    let grant: TokenRequest.Grant

    init(_ client: ClientConfiguration, _ grant: TokenRequest.Grant) {
        self.client = ClientIdentity(client.fingerprint)
        self.grant = grant
    }
}

/// What a provider refuses to a client.
enum ClientRefusalScope: Hashable, Sendable {
    /// Every request of the client.
    case client
    /// Requests with that grant.
    case grant(TokenRequest.Grant)
}
