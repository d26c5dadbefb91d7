import Cryptography
import ExternalText
package import OAuth

/// A client at a token endpoint. Providers count requests by client, whichever tenants have it.
package struct ProviderClient: Hashable, Sendable {
    private let tokenEndpoint: WireText
    let clientID: WireText

    package init(_ client: ClientConfiguration, at server: AuthorizationServer) {
        tokenEndpoint = WireText(server.tokenEndpoint)
        clientID = client.clientID
    }

    /// A name for both that shows neither: 128 bits in hexadecimal digits.
    fileprivate var digest: String {
        Hex.encode(Array(SHA256.digest(Array("\(tokenEndpoint) \(clientID)".utf8)).prefix(16)))
    }

    /// One user of a client.
    package struct User: Hashable, Sendable {
        let client: ProviderClient
        /// Nil for a call that belongs to no stored credentials, such as an app's request for another app. Such calls pause one
        /// another, and no user's.
        let id: CredentialsID?

        package init(_ id: CredentialsID?, of client: ProviderClient) {
            self.client = client
            self.id = id
        }
    }

    /// One tenant's client: what one tenant's proxy, pins or header fields do to its calls says nothing about another tenant's.
    package struct OfTenant: Hashable, Sendable {
        package let tenant: TenantName
        let client: ProviderClient

        package init(_ tenant: TenantName, _ client: ClientConfiguration, at server: AuthorizationServer) {
            self.tenant = tenant
            self.client = ProviderClient(client, at: server)
        }

        var name: Name { Name(tenant: tenant, digest: client.digest) }
    }

    /// The name of one tenant's client in the store, which has neither the client identifier nor the address.
    struct Name: Hashable, Sendable {
        let tenant: TenantName
        let digest: String
    }
}
