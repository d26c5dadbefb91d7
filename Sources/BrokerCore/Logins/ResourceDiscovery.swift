import Containers
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Reactor
import Synchronization
import Waiting

/// Finds the authorization server of a resource, and makes the broker a client there, for tenants that name nothing but the
/// resource's address: the authorization of the Model Context Protocol, over RFC 9728, RFC 8414 and RFC 7591.
///
/// Asked before each login. What is found is kept in the tenant's own record, so that every replica refreshes with it and a
/// restart needs no discovery. Only a login asks again: what a resource says of itself in between ends no session.
package final class ResourceDiscovery: Sendable {
    private let servers: ProviderServers
    private let tenants: TenantDirectory
    private let registrations: ClientRegistrations
    private let management: ClientManagement
    private let transport: any ProviderTransport
    private let publicBaseURL: String
    private let allowsHTTP: Bool
    private let instruments: Instruments
    /// The last searches of tenants, of the newest 4096.
    private let searched = Mutex(BoundedTable<TenantName, Search>(capacity: 4096))
    private let searches = SingleFlight<Searched, Result<Tenant, BrokerError>>()

    /// A tenant as it is searched for: a login after a change of the tenant does not go by what was configured before.
    private struct Searched: Hashable {
        let name: TenantName
        let version: Int64
    }

    private struct Search {
        /// Of the tenant.
        let version: Int64
        let began: MonotonicInstant
        /// Why nothing was found; nil where something was, and while it is under way.
        var failure: BrokerError?
    }

    init(
        providers: ProviderAccess, tenants: TenantDirectory, clientFaults: ClientFaults,
        transport: any ProviderTransport, options: (publicBaseURL: String, targets: TargetPolicy),
        instruments: Instruments
    ) {
        servers = providers.servers
        self.tenants = tenants
        self.transport = transport
        (publicBaseURL, allowsHTTP) = (options.publicBaseURL, options.targets.allowsHTTP)
        self.instruments = instruments
        management = ClientManagement(transport: transport, instruments: instruments)
        registrations = ClientRegistrations(
            providers: providers, clientFaults: clientFaults, management: management, instruments: instruments)
    }

    /// How often browsers without a key can have the broker search: they may come as often as they like.
    private static let pauseForStrangers: Duration = .seconds(10)

    /// In all, for the servers that one document names: each of them may take its time.
    private static let longestSearch: Duration = .seconds(15)
    private static let root: WireText = "/"
    /// In bytes. More scopes are not asked for: they stand in the tenant's record, and in the address of each login.
    private static let longestScopes = 4096

    /// Suspends until no search is under way, and no registration is being ended.
    func finish() async {
        await searches.finish()
        await management.finish()
    }

    /// Cancels the searches under way, and the requests that end registrations.
    /// - Returns: how many there were.
    func cancelAll() -> Int {
        defer { searches.cancelAll() }
        return searches.count + management.cancelAll()
    }

    /// Begins to end the registrations of a tenant that was removed, and does not wait for that.
    func endRegistrations(of tenant: Tenant) {
        let configuration = tenant.configuration
        let found = configuration.earlierFindings.map(\.found) + (configuration.found.map { [$0] } ?? [])
        let clients = found.flatMap(\.registeredClients)
        if !clients.isEmpty { management.end(clients, of: tenant) }
    }

    /// The tenant with what a login needs to know of its authorization server. Another tenant than one that is found by a
    /// resource is given back as it is, without suspending.
    /// - Parameter isForStranger: whether a browser without a key begins the login. Then what a search of the last ten seconds has
    ///   found does, and so does its failure.
    /// - Throws: `illegal_configuration` where the resource names no usable server, or the server takes no client;
    ///   `network_error` and `retryable_error` where one of them does not answer and nothing is known of an earlier time.
    package func completed(_ tenant: Tenant, isForStranger: Bool = false) async throws(BrokerError) -> Tenant {
        guard tenant.configuration.preset.findsServerByResource else { return tenant }
        let now = instruments.time.monotonic
        if isForStranger, let last = searched.withLock({ $0[tenant.name] }),
            last.began.advanced(by: Self.pauseForStrangers) > now
        {
            if tenant.configuration.found != nil { return tenant }
            if let failure = last.failure, last.version == tenant.version { throw failure }
        }
        var search = Search(version: tenant.version, began: now)
        searched.withLock { _ = $0.setNewest(search, forKey: tenant.name) }
        let key = Searched(name: tenant.name, version: tenant.version)
        guard let run = await searches.run(key, within: nil, { await self.search(tenant) }) else {
            throw BrokerError(.retryableError, "The request ended before the resource's server was found.")
        }
        if case .failure(let error) = run.value {
            search.failure = error
            searched.withLock { _ = $0.setNewest(search, forKey: tenant.name) }
        }
        return try run.value.get()
    }

    private func search(_ tenant: Tenant) async -> Result<Tenant, BrokerError> {
        do throws(BrokerError) {
            return .success(try await find(tenant))
        } catch {
            instruments.log.warning(
                "authorization_not_found",
                [.tenant(tenant.name), .provider(tenant.configuration.preset)] + LogField.reason(of: error))
            // While resource or server do not answer, what an earlier login has found is used on.
            if [.networkError, .retryableError].contains(error.code), tenant.configuration.hasFoundClient {
                return .success(tenant)
            }
            return .failure(error)
        }
    }

    private func find(_ tenant: Tenant) async throws(BrokerError) -> Tenant {
        let (document, scopes) = try await protectedResource(of: tenant)
        let known = tenant.configuration.found
        let (issuer, metadata) = try await server(among: document.authorizationServers, of: tenant)
        var found = FoundAuthorization(resource: document.identifier, issuer: issuer, scopes: scopes)
            .withClients(of: known)
        if !tenant.configuration.hasOwnClient {
            found.keep(try await client(found, at: metadata, of: tenant))
        }
        if found == known { return tenant }
        return try await keep(found, of: tenant)
    }

    // MARK: The resource

    /// The metadata of the tenant's resource, and the scopes that it asks for: those of its challenge, else those of its metadata.
    private func protectedResource(
        of tenant: Tenant
    ) async throws(BrokerError) -> (document: ProtectedResource, scopes: ScopeSet) {
        guard let address = tenant.configuration.protectedResource, let url = URLTarget(address) else {
            throw BrokerError(.illegalConfiguration, "The tenant's resource is not a usable URL.")
        }
        let challenge = try await challenge(of: address, tenant)
        var received: [String] = []
        for location in Self.locations(of: url, named: challenge?.resourceMetadata) {
            let response = try await ProviderResource.resource.get(
                location, ["Accept": "application/json"], for: tenant.configuration, over: transport, instruments)
            if response.status.code >= 500 || response.status.code == 429 {
                throw BrokerError(
                    .retryableError, "The resource's metadata cannot be had now at \(location).",
                    retryAfter: ProviderResource.retryAfter)
            }
            guard response.status == .ok, let document = await Self.document(response) else {
                received.append(
                    "\(location) "
                        + ReceivedAnswer.words(
                            response, to: tenant.configuration.client,
                            lacking: "is no metadata that names a resource and its authorization servers"))
                continue
            }
            guard let named = URLTarget(document.identifier.text),
                document.isOf(Self.parts(of: url), identifier: Self.parts(of: named))
            else {
                throw BrokerError(
                    .illegalConfiguration,
                    "The metadata at \(location) are of another resource than the tenant's, \(address).")
            }
            return (document, Self.scopes(challenge, document))
        }
        throw BrokerError(
            .illegalConfiguration,
            "The resource publishes no metadata (RFC 9728): \(received.joined(separator: "; ")). Say \"provider\": \"oidc\" or "
                + "\"oauth2\" where its authorization server is known.")
    }

    /// The scopes to ask for: those of the challenge, else those of the metadata. One that cannot be asked for is left out.
    private static func scopes(_ challenge: BearerChallenge?, _ document: ProtectedResource) -> ScopeSet {
        let named = document.scopes.prefix(ScopeSet.most).map(\.text).filter { ScopeSet([$0]) != nil }
        let scopes = challenge?.scope.map { ScopeSet(granted: $0) } ?? ScopeSet(named) ?? .empty
        return scopes.description.utf8.count <= longestScopes ? scopes : .empty
    }

    /// What the resource says of a request without a token; nil where it says nothing of metadata.
    private func challenge(of address: String, _ tenant: Tenant) async throws(BrokerError) -> BearerChallenge? {
        let response: ClientResponse
        do throws(BrokerError) {
            response = try await ProviderResource.resource.get(
                address, ["Accept": "application/json, text/event-stream"], for: tenant.configuration, over: transport,
                instruments)
        } catch {
            // The metadata may be found all the same: a resource may wait for a request with content.
            guard error.code == .networkError else { throw error }
            return nil
        }
        guard response.status == .unauthorized else { return nil }
        return BearerChallenge(response.fields.values("WWW-Authenticate"))
    }

    /// Where the metadata are looked for: where the resource says, then with its path, with that but for a slash at its end, and
    /// without (RFC 9728 §3.1).
    private static func locations(of url: URLTarget, named: WireText?) -> [String] {
        let origin = "\(url.scheme.rawValue)://\(url.origin.authority)/.well-known/oauth-protected-resource"
        let target = WireText(url.pathAndQuery)
        // The slash after the host is not kept.
        let path = target == root || target.starts(with: "/?") ? WireText(String(url.pathAndQuery.dropFirst())) : target
        var found = [named?.text].compactMap(\.self).filter { URLTarget($0) != nil }
        found.append(origin + path.text)
        if path.ends(with: "/") { found.append(origin + path.prefix(path.count - 1).text) }
        if !path.isEmpty { found.append(origin) }
        return found
    }

    private static func document(_ response: ClientResponse) async -> ProtectedResource? {
        await InputReading.run(bytes: response.body.count) {
            (try? JSONValue(parsing: response.body)).flatMap { ProtectedResource($0) }
        }
    }

    private static func parts(of url: URLTarget) -> (origin: WireText, path: WireText) {
        (WireText("\(url.scheme.rawValue)://\(url.origin.authority)"), WireText(url.pathAndQuery).split(at: "?")[0])
    }

    // MARK: The server

    /// The first of the issuers that has metadata, as these spell it. While the resource names the one of earlier logins, only that
    /// one is asked: neither a change of their order moves users, nor a proxy or a maintenance page in its place. Their sessions
    /// would not be refreshed any more.
    private func server(
        among issuers: [WireText], of tenant: Tenant
    ) async throws(BrokerError) -> (issuer: String, metadata: ProviderMetadata) {
        let known = tenant.configuration.found.map { WireText($0.issuer) }
        let spelled = issuers.map { Self.spellings(of: $0, known: known) }
        let ordered = spelled.filter { $0.first == known } + spelled.filter { $0.first != known }
        let end = instruments.time.monotonic.advanced(by: Self.longestSearch)
        var failure: BrokerError?
        for spellings in ordered {
            for issuer in spellings where failure == nil || instruments.time.monotonic < end {
                let found = FoundAuthorization(resource: "", issuer: issuer.text, scopes: .empty)
                let asking = Tenant(
                    name: tenant.name, version: tenant.version, configuration: tenant.configuration.finding(found))
                guard let fetched = await servers.fetchAnew(for: asking) else { continue }
                switch fetched {
                case .success(let metadata): return (issuer.text, metadata)
                case .failure(let error):
                    // Another server is not taken for one that only does not answer now.
                    guard error.code == .illegalConfiguration else { throw error }
                    failure = failure ?? error
                }
            }
            if let failure, spellings.first == known, tenant.configuration.hasFoundClient {
                throw BrokerError(
                    .retryableError,
                    "The tenant's authorization server has no metadata now, and the resource still names it: \(failure.detail)",
                    retryAfter: ProviderResource.retryAfter)
            }
        }
        throw failure ?? BrokerError(.illegalConfiguration, "The resource names no authorization server.")
    }

    /// The issuer, and where it has no path, the same with a slash at its end or without: the two are one address (RFC 3986
    /// §6.2.3), and libraries add the slash to what a resource is configured with. The known spelling comes first.
    private static func spellings(of issuer: WireText, known: WireText?) -> [WireText] {
        guard let url = URLTarget(issuer.text), WireText(url.pathAndQuery) == root, !issuer.contains("?") else {
            return [issuer]
        }
        let other = issuer.ends(with: "/") ? issuer.prefix(issuer.count - 1) : WireText(issuer.text + "/")
        return other == known ? [other, issuer] : [issuer, other]
    }

    // MARK: The client

    private func client(
        _ found: FoundAuthorization, at metadata: ProviderMetadata, of tenant: Tenant
    ) async throws(BrokerError) -> FoundAuthorization.Client {
        // A client that the server knows stays, also where documents would do by now: its sessions are refreshed with it.
        let asked = clientMetadata(of: tenant, at: metadata, found.scopes)
        if case .registered(let client)? = found.client,
            let current = await registrations.current(client, for: asked, found, of: tenant)
        {
            return .registered(current)
        }
        let isUsable = allowsHTTP || WireText(publicBaseURL).starts(with: "https://")
        if metadata.takesClientMetadataDocuments, isUsable {
            return .metadataDocument(WireText(tenant.clientDocument(below: publicBaseURL)))
        }
        guard let endpoint = metadata.registrationEndpoint else {
            throw BrokerError(
                .illegalConfiguration,
                "The authorization server \(found.issuer) registers no clients by itself: register one there with the "
                    + "redirect URI \(tenant.configuration.callbackURI.address(below: publicBaseURL, of: tenant.name)), and set its client_id."
            )
        }
        return .registered(try await registrations.register(asked, at: endpoint, of: found.issuer, for: tenant))
    }

    /// What the broker says of the client that it is for a tenant.
    private func clientMetadata(
        of tenant: Tenant, at metadata: ProviderMetadata, _ scopes: ScopeSet
    ) -> ClientMetadata {
        // A secret proves more than a public client can; RFC 7591 §2 has Basic where nothing is announced. Where both are announced,
        // it goes in the form: servers differ in how they decode Basic, and the MCP SDK's revokes by the form only.
        let supported = metadata.clientAuthenticationMethods ?? [.clientSecretBasic]
        let method = [.clientSecretPost, .clientSecretBasic].first { supported.contains($0) } ?? .none
        let configuration = tenant.configuration
        return tenant.clientMetadata(
            below: publicBaseURL, method: method,
            scopes: configuration.hasOwnScopes ? configuration.client.scopes : scopes)
    }

    /// The document about the client that the broker is for a tenant, which has its own address as the client's identifier; nil for
    /// a tenant that has no such client.
    package func clientDocument(of tenant: Tenant) -> [UInt8]? {
        let configuration = tenant.configuration
        guard configuration.preset.findsServerByResource, !configuration.hasOwnClient else { return nil }
        let metadata = tenant.clientMetadata(
            below: publicBaseURL, method: .none,
            scopes: configuration.hasOwnScopes ? configuration.client.scopes : .empty)
        return JSONWriter.object { json in
            json.member("client_id", tenant.clientDocument(below: publicBaseURL))
            metadata.encode(to: &json)
        }
    }

    // MARK: The record

    /// Keeps what was found in the tenant's record. Where another replica has made a client at the same issuer meanwhile, that one
    /// stays, and ours is not used. Where it has told the server of the same client, what ours has answered is kept, since it is
    /// most likely the later one: with a secret that the server has replaced, no session could be refreshed any more.
    private func keep(_ found: FoundAuthorization, of tenant: Tenant) async throws(BrokerError) -> Tenant {
        let known = tenant.configuration.found
        let isThere: @Sendable (Int64?) -> Bool = { $0 != nil }
        let change = TenantDirectory.Change(isWanted: isThere) { current in
            guard let current, current.protectedResource == tenant.configuration.protectedResource,
                current.hasOwnClient == tenant.configuration.hasOwnClient
            else {
                return .failure(
                    BrokerError(.retryableError, "The tenant was changed while the login began.", retryAfter: 1))
            }
            var kept = found.withClients(of: current.found)
            guard !current.hasOwnClient, let client = found.client else { return .success(current.finding(kept)) }
            let (other, earlier) = (kept.client, known?.client(at: found.issuer))
            if other == nil || other == earlier {
                kept.keep(client)
            } else if client != earlier {
                kept.renew(client)
            }
            return .success(current.finding(kept))
        }
        do throws(BrokerError) {
            let written = try await tenants.put(tenant.name, change)
            endUnused(found, known, of: written.tenant)
            instruments.log.info(
                "authorization_found",
                [.tenant(tenant.name), .provider(tenant.configuration.preset), .version(written.tenant.version)])
            return written.tenant
        } catch  where error.code == .preconditionFailed {
            // The tenant was removed while its client was being made.
            endUnused(found, known, of: tenant)
            throw .noSuchTenant
        }
    }

    /// Ends the registration of a client that was made by this search, and that the tenant does not have. A client that the tenant
    /// had before is not ended: it may have sessions, which are refreshed with it.
    private func endUnused(_ found: FoundAuthorization, _ known: FoundAuthorization?, of tenant: Tenant) {
        let present = tenant.configuration.found?.client(at: found.issuer)?.clientID
        guard case .registered(let made)? = found.client, made.clientID != present,
            made.clientID != known?.client(at: found.issuer)?.clientID
        else { return }
        management.end([made], of: tenant)
    }
}

extension TenantConfiguration {
    /// Whether an earlier login has found a server and the tenant's client there, or one for the client that the tenant has itself.
    fileprivate var hasFoundClient: Bool { found.map { hasOwnClient || $0.client != nil } ?? false }
}

extension Tenant {
    /// The address of the document about the tenant's client.
    fileprivate func clientDocument(below publicBaseURL: String) -> String { "\(publicBaseURL)/oauth-client/\(name)" }

    fileprivate func clientMetadata(
        below publicBaseURL: String, method: ProviderPreset.ClientAuthentication, scopes: ScopeSet
    ) -> ClientMetadata {
        ClientMetadata(
            name: configuration.displayName ?? name.description,
            redirectURIs: [configuration.callbackURI.address(below: publicBaseURL, of: name)]
                + configuration.allowedRedirectURIs,
            method: method, scopes: scopes)
    }
}
