import Cryptography
package import ExternalText
import JSON
package import OAuth

/// What logins have found of a resource's authorization server, kept in the tenant's record: its issuer, and the client that the
/// broker has there. No operator configures it; answers show it without its secrets.
package struct FoundAuthorization: Sendable, Equatable {
    /// The client that a tenant without one of its own has at one issuer.
    package enum Client: Sendable, Equatable {
        /// The address of a document about the client, which the broker serves.
        case metadataDocument(WireText)
        case registered(RegisteredClient)

        package var clientID: WireText {
            switch self {
            case .metadataDocument(let address): address
            case .registered(let client): client.clientID
            }
        }

        /// How answers call the way that the client was made.
        package var source: String {
            switch self {
            case .metadataDocument: "metadata_document"
            case .registered: "registered"
            }
        }
    }

    /// The identifier that the resource has for its authorization servers.
    package var resource: WireText
    package var issuer: String
    /// The scopes that the resource asks for; empty for none.
    package var scopes: ScopeSet
    /// The clients by the issuers that they were made at, and shown to no other one: the present one, and those before it, with
    /// which the sessions that they have got are refreshed on. The latest are last.
    package private(set) var clients: [(issuer: String, client: Client)] = []

    /// Of more clients, the earliest are given up.
    private static let mostClients = 8

    package init(resource: WireText, issuer: String, scopes: ScopeSet) {
        (self.resource, self.issuer, self.scopes) = (resource, issuer, scopes)
    }

    /// The client at the present issuer; nil for a tenant that has one of its own, and where none is made yet.
    package var client: Client? { client(at: issuer) }

    /// The client at one issuer; nil where none is made.
    package func client(at issuer: String) -> Client? {
        clients.last { WireText($0.issuer) == WireText(issuer) }?.client
    }

    /// The clients at the present issuer, the latest last.
    var clientsOfIssuer: [Client] {
        clients.filter { WireText($0.issuer) == WireText(issuer) }.map(\.client)
    }

    /// The clients that were registered, at whatever issuer.
    package var registeredClients: [RegisteredClient] {
        clients.compactMap { if case .registered(let client) = $0.client { client } else { nil } }
    }

    /// Keeps the client as the present one at the present issuer. Others that were made there stay before it.
    package mutating func keep(_ client: Client) {
        clients.removeAll { WireText($0.issuer) == WireText(issuer) && $0.client.clientID == client.clientID }
        clients.append((issuer, client))
        if clients.count > Self.mostClients { clients.removeFirst() }
    }

    /// Keeps what the present issuer has answered of a client that is kept already, in its place; nothing where it is not kept.
    package mutating func renew(_ client: Client) {
        for (index, kept) in clients.enumerated()
        where WireText(kept.issuer) == WireText(issuer) && kept.client.clientID == client.clientID {
            clients[index].client = client
        }
    }

    /// What a search has found, with the clients of another finding in place of its own.
    package func withClients(of other: FoundAuthorization?) -> FoundAuthorization {
        var copy = self
        copy.clients = other?.clients ?? []
        return copy
    }

    package static func == (left: FoundAuthorization, right: FoundAuthorization) -> Bool {
        left.resource == right.resource && WireText(left.issuer) == WireText(right.issuer)
            && left.scopes == right.scopes
            && left.clients.elementsEqual(right.clients) {
                WireText($0.issuer) == WireText($1.issuer) && $0.client == $1.client
            }
    }
}

/// What logins had found of a resource that a tenant does not name any more.
package struct EarlierFinding: Sendable, Equatable {
    /// So many are kept, the latest.
    static let most = 4
    /// Where a tenant's sealed record has them.
    static let memberName: WireText = "earlier_findings"

    /// The address of the resource, as the tenant named it.
    package let resource: String
    package let found: FoundAuthorization

    package init(resource: String, found: FoundAuthorization) {
        (self.resource, self.found) = (resource, found)
    }

    func encode(to json: inout JSONWriter) {
        json.member("resource", resource)
        json.name("found")
        json.object { found.encode(to: &$0, revealingSecret: true) }
    }

    /// Reads what `encode` has written to a sealed record; nil for anything else.
    init?(stored json: JSONValue) {
        guard let resource = json["resource"]?.string?.text,
            let found = json["found"].flatMap(FoundAuthorization.init(stored:))
        else { return nil }
        self.init(resource: resource, found: found)
    }
}

extension FoundAuthorization {
    /// Writes the members: for the sealed record with all clients, for answers what an operator needs to know.
    func encode(to json: inout JSONWriter, revealingSecret: Bool) {
        json.member("resource", resource.text)
        json.member("issuer", issuer)
        if !scopes.values.isEmpty { json.member("scopes", scopes.values) }
        guard revealingSecret else {
            json.memberIfPresent("client_id", client?.clientID.text)
            json.memberIfPresent("client", client?.source)
            return
        }
        json.name("clients")
        json.array { json in
            for (issuer, client) in clients {
                json.object { json in
                    json.member("issuer", issuer)
                    switch client {
                    case .metadataDocument(let address): json.member("document", address.text)
                    case .registered(let registered):
                        json.name("registered")
                        json.object { registered.encode(to: &$0) }
                    }
                }
            }
        }
    }

    /// Reads what `encode` has written to a sealed record; nil for anything else.
    init?(stored json: JSONValue) {
        guard let resource = json["resource"]?.string, let issuer = json["issuer"]?.string else { return nil }
        let scopes = json["scopes"]?.array?.compactMap(\.string) ?? []
        self.init(resource: resource, issuer: issuer.text, scopes: ScopeSet(scopes) ?? .empty)
        for entry in json["clients"]?.array ?? [] {
            guard let issuer = entry["issuer"]?.string?.text else { return nil }
            if let address = entry["document"]?.string {
                clients.append((issuer, .metadataDocument(address)))
            } else {
                guard let registered = entry["registered"].flatMap({ RegisteredClient($0, asked: nil) }) else {
                    return nil
                }
                clients.append((issuer, .registered(registered)))
            }
        }
    }
}
