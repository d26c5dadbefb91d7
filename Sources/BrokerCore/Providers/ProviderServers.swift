import Containers
import ExternalText
import HTTPCodec
package import HTTPSClient
import JSON
package import OAuth
import Reactor
import Synchronization
import Waiting

/// The endpoints of a tenant's provider: from the configuration, completed by the provider's metadata where needed.
package final class ProviderServers: Sendable {
    private struct Known {
        var outcome: Result<ProviderMetadata, BrokerError>
        var until: MonotonicInstant

        var metadata: ProviderMetadata? { try? outcome.get() }

        /// Completes the metadata by the endpoint for revocations that another document of the issuer names.
        /// - Parameter other: nil where there is no such document.
        mutating func keepRevocation(of other: ProviderMetadata?) {
            guard var metadata else { return }
            metadata.hasSoughtRevocation = true
            metadata.revocationEndpoint = metadata.revocationEndpoint ?? other?.revocationEndpoint
            metadata.revocationAuthenticationMethods =
                metadata.revocationAuthenticationMethods ?? other?.revocationAuthenticationMethods
            outcome = .success(metadata)
        }
    }

    /// For how long metadata is valid. After that it is fetched again, and used on while the provider does not answer.
    private static let validity: Duration = .seconds(3600)
    /// For how long such a provider is not asked again, so that callers do not wait for it at each request.
    private static let pauseAfterFailure: Duration = .seconds(60)
    /// The longest time of a fetch from both addresses, and so the longest time that a caller waits for one.
    private static let longestFetch: Duration = .seconds(5)
    /// For how long a provider is not asked again that has no known metadata and let a fetch time out: a call that needs the
    /// metadata twice waits for it once.
    private static let pauseAfterTimeout: Duration = .seconds(5)

    private let transport: any ProviderTransport
    private let targets: TargetPolicy
    private let time: any Time
    private let metrics: Metrics
    private let log: Log
    /// Of an operator's issuers, which are few; for one that is forgotten, the metadata is fetched again.
    private let known = Mutex(BoundedTable<ProviderSource, Known>(capacity: 4096))
    private let fetches = SingleFlight<ProviderSource, Result<ProviderMetadata, BrokerError>>()

    package init(
        transport: any ProviderTransport, targets: TargetPolicy, time: any Time, metrics: Metrics, log: Log
    ) {
        self.transport = transport
        self.targets = targets
        self.time = time
        self.metrics = metrics
        self.log = log
    }

    /// Does not suspend where the configuration has all endpoints.
    package func server(for tenant: Tenant) async throws(BrokerError) -> AuthorizationServer {
        let configuration = tenant.configuration
        if let server = configuration.configuredServer { return server }
        guard let source = Self.source(of: configuration) else {
            throw configuration.hasProvider
                ? BrokerError(.illegalConfiguration, "The tenant names neither endpoints nor an issuer.")
                : .withoutLogins(configuration.preset)
        }
        let metadata = try await metadata(of: source, for: tenant)
        guard let server = configuration.server(completedBy: metadata) else {
            throw Self.unusable("The issuer's metadata names no usable endpoints.")
        }
        return server
    }

    /// The provider's endpoints, as far as they are known without a request, from metadata of any age.
    func knownServer(for configuration: TenantConfiguration) -> AuthorizationServer? {
        if let server = configuration.configuredServer { return server }
        guard let source = Self.source(of: configuration), let metadata = known.withLock({ $0[source]?.metadata })
        else {
            return nil
        }
        return configuration.server(completedBy: metadata)
    }

    /// The token endpoint in the metadata of the tenant's issuer; nil where the metadata is not known, or not valid any more.
    func tokenEndpoint(inMetadataFor configuration: TenantConfiguration) -> WireText? {
        guard let source = Self.source(of: configuration), let held = known.withLock({ $0[source] }),
            held.until > time.monotonic
        else { return nil }
        return held.metadata.map { WireText($0.tokenEndpoint) }
    }

    /// Whether the metadata, of any age, announces the grants that the provider has, and not that of client credentials. False
    /// where the metadata is not known or not needed.
    func lackClientCredentials(_ configuration: TenantConfiguration) -> Bool {
        guard configuration.configuredServer == nil, let source = Self.source(of: configuration),
            let grantTypes = known.withLock({ $0[source]?.metadata?.grantTypes })
        else { return false }
        return !grantTypes.contains("client_credentials")
    }

    /// Cancels the requests for metadata that are under way.
    func cancelAll() {
        fetches.cancelAll()
    }

    /// Nil for a tenant without an issuer.
    private static func source(of configuration: TenantConfiguration) -> ProviderSource? {
        configuration.effectiveIssuer.map { ProviderSource($0, for: configuration) }
    }

    /// Does not suspend while the known metadata is valid. Otherwise joins a fetch or begins one, which takes `longestFetch` at
    /// most.
    private func metadata(of source: ProviderSource, for tenant: Tenant) async throws(BrokerError) -> ProviderMetadata {
        if let held = known.withLock({ $0[source] }), held.until > time.monotonic { return try held.outcome.get() }
        guard let run = await fetches.run(source, within: nil, { await self.renew(source, for: tenant) }) else {
            throw BrokerError(.retryableError, "The request ended before the provider's metadata was received.")
        }
        return try run.value.get()
    }

    /// Fetches the metadata. If that fails, the metadata that was known before is used on.
    private func renew(_ source: ProviderSource, for tenant: Tenant) async -> Result<ProviderMetadata, BrokerError> {
        let end = time.monotonic.advanced(by: Self.longestFetch)
        let fetched = await fetch(source, for: tenant, until: end)
        let metadata = known.withLock { $0[source]?.metadata }
        switch fetched {
        case .success:
            keep(fetched, of: source, for: Self.validity)
            return fetched
        case .failure:
            if let metadata {
                keep(.success(metadata), of: source, for: Self.pauseAfterFailure)
                return .success(metadata)
            }
            if time.monotonic >= end { keep(fetched, of: source, for: Self.pauseAfterTimeout) }
            return fetched
        }
    }

    private func keep(
        _ outcome: Result<ProviderMetadata, BrokerError>, of source: ProviderSource, for duration: Duration
    ) {
        let until = time.monotonic.advanced(by: duration)
        known.withLock { _ = $0.setNewest(Known(outcome: outcome, until: until), forKey: source) }
    }

    /// Fetches the metadata, even if it is known, for the check of a tenant. The result is used from then on. Takes
    /// `longestFetch` at most.
    /// - Returns: nil for a tenant without an issuer.
    func fetchAnew(for tenant: Tenant) async -> Result<ProviderMetadata, BrokerError>? {
        guard let source = Self.source(of: tenant.configuration) else { return nil }
        let fetched = await fetch(source, for: tenant, until: time.monotonic.advanced(by: Self.longestFetch))
        if case .success = fetched { keep(fetched, of: source, for: Self.validity) }
        return fetched
    }

    /// The addresses of an issuer's metadata: RFC 8414 §3, OpenID Connect Discovery §4, the same with the issuer's path inserted
    /// as RFC 8414 §5 has it (nil for an issuer without a path), and where some providers publish the
    /// metadata of RFC 8414, below the issuer. Nil where the issuer is not a URL without a query.
    private static func addresses(
        of issuer: String
    ) -> (oauth: String, openID: String, openIDInserted: String?, oauthBelow: String)? {
        guard let base = URLTarget(issuer), !WireText(base.pathAndQuery).contains("?") else { return nil }
        let path = base.pathAndQuery == "/" ? "" : base.pathAndQuery
        let trimmed = WireText(path).ends(with: "/") ? String(path.dropLast()) : path
        let origin = "\(base.scheme.rawValue)://\(base.origin.authority)"
        return (
            "\(origin)/.well-known/oauth-authorization-server\(trimmed)",
            "\(origin)\(trimmed)/.well-known/openid-configuration",
            trimmed.isEmpty ? nil : "\(origin)/.well-known/openid-configuration\(trimmed)",
            "\(origin)\(trimmed)/.well-known/oauth-authorization-server"
        )
    }

    /// RFC 8414 first, then OpenID.
    private func fetch(
        _ source: ProviderSource, for tenant: Tenant, until end: MonotonicInstant
    ) async -> Result<ProviderMetadata, BrokerError> {
        guard let addresses = Self.addresses(of: source.address) else {
            return .failure(BrokerError(.illegalConfiguration, "The issuer is not a URL without a query."))
        }
        var failure: BrokerError?
        // What was received at each address.
        var received: [String] = []
        var faults: [Fault] = []
        // The last one is asked for resources only, whose servers the protocol of these looks for there, too.
        let inserted = tenant.configuration.preset.findsServerByResource ? addresses.openIDInserted : nil
        for address in [addresses.oauth, addresses.openID] + [inserted].compactMap(\.self) {
            // The first address may have used up the time.
            if time.monotonic >= end { break }
            switch await document(at: address, of: source.address, for: tenant, until: end) {
            case .metadata(let metadata):
                // Many providers publish one of the two only, and that is enough.
                for fault in faults { log.debug(fault.message, fault.fields) }
                return .success(metadata)
            case .none(let fault, let words, let error):
                faults.append(fault)
                received.append("\(address) \(words)")
                failure = error ?? failure
            case .unanswered(let error): failure = error
            case .unusable(let error):
                for fault in faults { log.warning(fault.message, fault.fields) }
                return .failure(error)
            }
        }
        for fault in faults { log.warning(fault.message, fault.fields) }
        return .failure(failure ?? Self.missing(received))
    }

    /// A line of the log.
    private struct Fault {
        let message: StaticString
        let fields: [LogField]
    }

    /// What one address of metadata has brought.
    private enum Document {
        case metadata(ProviderMetadata)
        /// An answer that is not the issuer's metadata.
        /// - Parameter words: what it is, in words.
        case none(Fault, words: String, BrokerError?)
        case unanswered(BrokerError)
        /// No other address will do either.
        case unusable(BrokerError)
    }

    private func document(
        at address: String, of issuer: String, for tenant: Tenant, until end: MonotonicInstant
    ) async -> Document {
        let preset = tenant.configuration.preset
        let fields =
            [.tenant(tenant.name), .provider(preset)]
            + [tenant.configuration.effectiveIssuer.map(LogField.issuer)].compactMap(\.self)
        guard let url = URLTarget(address) else {
            return .unusable(BrokerError(.illegalConfiguration, "The issuer is not a URL without a query."))
        }
        let start = time.monotonic
        let request: ClientRequest
        do throws(BrokerError) {
            request = try ClientRequest(
                get: url, ["Accept": "application/json"], for: tenant.configuration,
                timeLimit: start.duration(to: end))
        } catch {
            return .unusable(error)
        }
        let response: ClientResponse
        do throws(TransportError) {
            response = try await transport.send(request)
        } catch {
            metrics.providerAnswered(
                provider: preset.name, endpoint: .metadata, code: "error", took: start.duration(to: time.monotonic))
            log.warning("metadata_request_failed", fields + [.transport(error)])
            if let permanent = BrokerError.permanentFailure(error, at: address) { return .unusable(permanent) }
            return .unanswered(
                BrokerError(.networkError, "The issuer could not be reached at \(address).", retryAfter: 5))
        }
        metrics.providerAnswered(
            provider: preset.name, endpoint: .metadata, code: String(response.status.code),
            took: start.duration(to: time.monotonic))
        var fault = Fault(message: "metadata_missing", fields: fields + [.status(response.status)])
        var failure: BrokerError?
        if response.status == .ok {
            do throws(Unusable) {
                var metadata = try await InputReading.run(bytes: response.body.count) { () throws(Unusable) in
                    try self.parse(response.body, issuer: issuer, of: tenant.configuration)
                }
                metadata.address = address
                return .metadata(metadata)
            } catch {
                fault = Fault(message: "metadata_refused", fields: fields + [.outcome(error.reason)])
                failure = error.detail(of: issuer, at: address).map(Self.unusable)
            }
        }
        if response.status.code >= 500 || response.status.code == 429 {
            failure = BrokerError(.retryableError, "The issuer cannot answer now at \(address).", retryAfter: 5)
        }
        let words = ReceivedAnswer.words(
            response, to: tenant.configuration.client, lacking: "is no metadata that names an issuer")
        return .none(fault, words: words, failure)
    }

    // MARK: The end of sessions

    /// Whether the tenant's provider may have an endpoint that ends sessions, as far as that is known without a request.
    func mayRevoke(_ configuration: TenantConfiguration) -> Bool {
        guard let server = knownServer(for: configuration) else { return true }
        return server.canRevoke
            || configuration.configuredServer == nil && addressOfMissingRevocation(configuration) != nil
    }

    /// Where an endpoint may be announced that the known metadata lacks; nil where that was looked at.
    private func addressOfMissingRevocation(_ configuration: TenantConfiguration) -> String? {
        guard let source = Self.source(of: configuration), let addresses = Self.addresses(of: source.address),
            let metadata = known.withLock({ $0[source]?.metadata }), metadata.revocationEndpoint == nil,
            !metadata.hasSoughtRevocation, metadata.address == addresses.openID,
            addresses.oauthBelow != addresses.oauth
        else { return nil }
        return addresses.oauthBelow
    }

    /// The tenant's provider with an endpoint that ends sessions, which the OpenID metadata lacks and the OAuth metadata below the
    /// issuer may announce; nil where there is none.
    func serverWithRevocation(for tenant: Tenant) async throws(BrokerError) -> AuthorizationServer? {
        let configuration = tenant.configuration
        guard configuration.configuredServer == nil, let source = Self.source(of: configuration),
            let address = addressOfMissingRevocation(configuration)
        else { return nil }
        let end = time.monotonic.advanced(by: Self.longestFetch)
        var found: ProviderMetadata?
        switch await document(at: address, of: source.address, for: tenant, until: end) {
        case .metadata(let metadata): found = metadata
        // Asked again at the next logout.
        case .none(_, _, let error?) where error.code == .retryableError: throw error
        case .unanswered(let error): throw error
        case .none, .unusable: break
        }
        let metadata = known.withLock { known -> ProviderMetadata? in
            known[source]?.keepRevocation(of: found)
            return known[source]?.metadata
        }
        return metadata.flatMap(configuration.server(completedBy:)).flatMap { $0.canRevoke ? $0 : nil }
    }

    private static func missing(_ received: [String]) -> BrokerError {
        unusable(
            "The issuer publishes no metadata: \(received.joined(separator: "; ")). Put the tenant with the issuer whose "
                + "metadata is at one of these addresses, or with endpoints.authorization and endpoints.token instead.")
    }

    private static func unusable(_ detail: String) -> BrokerError {
        var error = BrokerError(.illegalConfiguration, detail)
        error.isAboutMetadata = true
        return error
    }

    /// Why a document is not accepted as an issuer's metadata.
    private enum Unusable: Error {
        case notMetadata
        /// The document names this issuer; nil where that is not an address.
        case otherIssuer(String?)
        /// The document names this template of issuers.
        case template(String)
        case endpoints

        var reason: StaticString {
            switch self {
            case .notMetadata: "not_metadata"
            case .otherIssuer: "other_issuer"
            case .template: "issuer_template"
            case .endpoints: "endpoints_missing_or_forbidden"
            }
        }

        /// What is wrong with the document, in words; nil where there is no metadata at all.
        func detail(of issuer: String, at address: String) -> String? {
            switch self {
            case .notMetadata: nil
            case .otherIssuer(let found?):
                "The metadata at \(address) is of the issuer \"\(found)\", and the tenant's issuer is \"\(issuer)\": put the tenant "
                    + "with exactly the issuer of the metadata, a slash at its end included, if that is the provider."
            case .otherIssuer(nil): "The metadata at \(address) is of another issuer than the tenant's, \"\(issuer)\"."
            case .template(let template):
                "The metadata's issuer is a template, \(template), which is found at \(address): set issuer to "
                    + "\(ProviderServers.filled(template))."
            case .endpoints:
                "The metadata at \(address) lacks authorization_endpoint or token_endpoint, or names one that may not be "
                    + "configured either."
            }
        }
    }

    private func parse(
        _ body: [UInt8], issuer: String, of configuration: TenantConfiguration
    ) throws(Unusable) -> ProviderMetadata {
        let client = configuration.client
        func endpoint(_ value: JSONValue?) -> String? { self.endpoint(value, of: configuration) }
        guard let json = try? JSONValue(parsing: body), let named = json["issuer"]?.string else { throw .notMetadata }
        // RFC 8414 §3.3: identical.
        guard named == WireText(issuer) else {
            if let template = Self.template(named, to: client) { throw .template(template) }
            throw .otherIssuer(Self.presentable(named, to: client))
        }
        guard let authorization = endpoint(json["authorization_endpoint"]),
            let token = endpoint(json["token_endpoint"])
        else { throw .endpoints }
        var metadata = ProviderMetadata(
            issuer: issuer, authorizationEndpoint: authorization, tokenEndpoint: token)
        metadata.revocationEndpoint = endpoint(json["revocation_endpoint"])
        metadata.deviceAuthorizationEndpoint = endpoint(json["device_authorization_endpoint"])
        metadata.clientAuthenticationMethods = Self.methods(json["token_endpoint_auth_methods_supported"])
        metadata.revocationAuthenticationMethods = Self.methods(json["revocation_endpoint_auth_methods_supported"])
        metadata.announcesIssuerInResponses = json["authorization_response_iss_parameter_supported"]?.bool ?? false
        metadata.jwksURI = endpoint(json["jwks_uri"])
        metadata.pushedAuthorizationEndpoint = endpoint(json["pushed_authorization_request_endpoint"])
        metadata.requiresPushedAuthorization = json["require_pushed_authorization_requests"]?.bool ?? false
        metadata.proofAlgorithms = json["dpop_signing_alg_values_supported"]?.array?.compactMap(\.string)
        metadata.codeChallengeMethods = json["code_challenge_methods_supported"]?.array?.compactMap(\.string)
        let aliases = json["mtls_endpoint_aliases"]
        metadata.mutualTLS.token = endpoint(aliases?["token_endpoint"])
        metadata.mutualTLS.revocation = endpoint(aliases?["revocation_endpoint"])
        metadata.mutualTLS.deviceAuthorization = endpoint(aliases?["device_authorization_endpoint"])
        metadata.mutualTLS.pushedAuthorization = endpoint(aliases?["pushed_authorization_request_endpoint"])
        metadata.grantTypes = json["grant_types_supported"]?.array?.compactMap(\.string)
        metadata.registrationEndpoint = endpoint(json["registration_endpoint"])
        metadata.takesClientMetadataDocuments = json["client_id_metadata_document_supported"]?.bool ?? false
        return metadata
    }

    private static func methods(_ value: JSONValue?) -> [ProviderPreset.ClientAuthentication]? {
        value?.array?.compactMap { $0.string.flatMap(ProviderPreset.ClientAuthentication.init) }
    }

    /// An issuer with a name in braces, as Entra's metadata for all of its tenants have it; nil for another text.
    private static func template(_ named: WireText, to client: ClientConfiguration) -> String? {
        let pieces = pieces(of: named)
        guard pieces.count > 1, pieces.dropFirst().allSatisfy({ $0.count == 2 }) else { return nil }
        let plain = pieces.joined().reduce("") { $0 + $1.text }
        return presentable(WireText(plain), to: client) == nil ? nil : named.text
    }

    /// The name for which the identifier of a directory stands in Entra's template.
    private static let directory: WireText = "tenantid"

    /// A template with what stands for each of its names.
    private static func filled(_ template: String) -> String {
        let pieces = pieces(of: WireText(template))
        return pieces.dropFirst().reduce(pieces.first?.first?.text ?? "") { text, piece in
            let name = piece[0] == directory ? "tenant id" : piece[0].text
            return text + "<\(name)>" + piece.dropFirst().reduce("") { $0 + $1.text }
        }
    }

    /// What stands before the first name, and then each name with what stands behind it.
    private static func pieces(of template: WireText) -> [[WireText]] {
        template.split(at: "{").map { $0.split(at: "}") }
    }

    /// An address from a provider that may be shown to operators: at most 200 characters, without a query and without the
    /// client's secret. Nil for any other text.
    private static func presentable(_ text: WireText, to client: ClientConfiguration) -> String? {
        guard text.count <= 200, !text.contains("?"), URLTarget(text.text) != nil,
            !SentSecrets(client.secrets).areRepeated(in: text)
        else { return nil }
        return text.text
    }

    /// An endpoint from the metadata, to which the same rules apply as to a configured one; nil for one that breaks them. A
    /// private address is refused here, before a code is spent on it. A name that resolves to a private address is refused by
    /// the HTTPS client.
    private func endpoint(_ value: JSONValue?, of configuration: TenantConfiguration) -> String? {
        guard let text = value?.string?.text, let url = URLTarget(text) else { return nil }
        if url.scheme == .http, !targets.allowsHTTP { return nil }
        let isNamed = url.isNamed(byResource: configuration.protectedResource)
        let targets = isNamed ? targets.withoutNetworks : targets
        let isAllowed = SocketAddress(numericHost: url.host, port: url.port).map(targets.allows) ?? true
        return isAllowed ? text : nil
    }
}
