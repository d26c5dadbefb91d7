import Cryptography
import ExternalText
import OAuth

/// Clients that the broker has made at a tenant's authorization server before the present one.
///
/// A server that has forgotten a client, or that cannot learn of another redirect URI, gets another client for the next logins. The
/// sessions of the earlier client are refreshed with that on: a refresh token is bound to the client that it was issued to
/// (RFC 6749 §6), and only the server knows whether it still takes that client.
extension TenantConfiguration {
    /// Has requests show a client that was made at the present issuer, and nothing that belongs to another one.
    mutating func use(_ made: FoundAuthorization.Client) {
        let (secret, method) =
            switch made {
            case .metadataDocument: (SecretBytes?.none, ClientAuthentication.none)
            case .registered(let registered): (registered.secret, registered.method)
            }
        clientAuthentication = method
        client = ClientConfiguration(
            clientID: made.clientID, clientSecret: secret, clientUniqueKey: client.clientUniqueKey,
            scopes: client.scopes)
    }

    /// The identifiers of the clients whose sessions are refreshed beside those of the present one. None with most providers.
    var earlierClients: [WireText] {
        guard let found else { return [] }
        return found.clientsOfIssuer.map(\.clientID).filter { $0 != client.clientID }
    }

    /// The configuration with the earlier client that has got a user's credentials; nil where the present one has, and where
    /// their client is not known.
    func ofEarlierClient(of held: HeldCredentials?) -> TenantConfiguration? {
        guard let found, let held, held.level == .user, held.obtainedWith.clientID != client.clientID,
            let made = found.clientsOfIssuer.last(where: { $0.clientID == held.obtainedWith.clientID })
        else { return nil }
        var copy = self
        copy.use(made)
        return copy
    }

    /// The client with which a user's credentials are refreshed, and their session is ended.
    func client(of held: HeldCredentials?) -> ClientConfiguration { ofEarlierClient(of: held)?.client ?? client }
}

extension Tenant {
    /// The tenant with the earlier client that has got a user's credentials; the same tenant with most credentials.
    func ofClient(of held: HeldCredentials) -> Tenant {
        configuration.ofEarlierClient(of: held).map { Tenant(name: name, version: version, configuration: $0) } ?? self
    }
}
