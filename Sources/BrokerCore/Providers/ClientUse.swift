internal import ExternalText
internal import OAuth

/// A client as its provider sees it: two configurations that a provider cannot tell apart are equal.
struct ClientIdentity: Hashable {
    private let id: WireText
    private let secretDigest: [UInt8]?

    init(_ fingerprint: ClientFingerprint) {
        (id, secretDigest) = (fingerprint.clientID, fingerprint.clientSecretDigest)
    }
}

/// What a request to a token endpoint shows of a client: who the client is, and by which grant it asks for a token.
struct ClientUse: Sendable, Equatable {
    let client: ClientIdentity
    let grant: TokenRequest.Grant

    init(_ client: ClientConfiguration, _ grant: TokenRequest.Grant) {
        self.client = ClientIdentity(client.fingerprint)
        self.grant = grant
    }
}

/// What a provider refuses a client.
enum ClientRefusalScope: Hashable {
    /// The client itself, whatever it asks for.
    case client
    /// What the client may not ask for by that grant.
    case grant(TokenRequest.Grant)
}
