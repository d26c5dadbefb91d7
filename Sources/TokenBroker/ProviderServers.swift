internal import HTTPCodec
internal import HTTPSClient
internal import JSON
package import OAuth
internal import Reactor
internal import Synchronization

/// Where a tenant's provider is: from the configuration, completed by the provider's metadata where that is needed.
package final class ProviderServers: Sendable {
    private struct Known {
        var metadata: ProviderMetadata
        var until: MonotonicInstant
    }

    /// How long metadata is believed. After it, a provider that does not answer leaves the old in use.
    private static let validity: Duration = .seconds(3600)

    private let transport: any ProviderTransport
    private let allowsInsecureProviders: Bool
    private let time: any Time
    private let metrics: Metrics
    private let log: Log
    private let known = Mutex<[String: Known]>([:])
    private let fetches = SingleFlight<String, Result<ProviderMetadata, BrokerError>>()

    package init(
        transport: any ProviderTransport, allowsInsecureProviders: Bool, time: any Time, metrics: Metrics, log: Log
    ) {
        self.transport = transport
        self.allowsInsecureProviders = allowsInsecureProviders
        self.time = time
        self.metrics = metrics
        self.log = log
    }

    /// Does not suspend where the configuration says everything.
    package func server(for tenant: Tenant) async throws(BrokerError) -> AuthorizationServer {
        let configuration = tenant.configuration
        if let server = configuration.configuredServer { return server }
        guard let issuer = configuration.issuer else {
            throw BrokerError(.illegalConfiguration, "The tenant names neither endpoints nor an issuer.")
        }
        let metadata = try await metadata(of: issuer, pins: configuration.effectivePins, configuration.preset)
        guard let server = configuration.server(completedBy: metadata) else {
            throw BrokerError(.illegalConfiguration, "The issuer's metadata names no usable endpoints.")
        }
        return server
    }

    private func metadata(
        of issuer: String, pins: [String], _ preset: ProviderPreset
    ) async throws(BrokerError) -> ProviderMetadata {
        let held = known.withLock { $0[issuer] }
        if let held, held.until > time.monotonic { return held.metadata }
        let outcome = await fetches.run(issuer, within: nil) { await self.fetch(issuer, pins, preset) }
        switch outcome?.value {
        case .success(let metadata)?:
            let until = time.monotonic.advanced(by: Self.validity)
            known.withLock { known in
                // An operator's few issuers; beyond them, forgetting costs a fetch.
                if known.count >= 4096 { known = [:] }
                known[issuer] = Known(metadata: metadata, until: until)
            }
            return metadata
        case .failure(let error)?:
            if let held { return held.metadata }
            throw error
        case nil:
            throw BrokerError(.retryableError, "The request ended before the provider's metadata was there.")
        }
    }

    /// RFC 8414 §3 first, then OpenID Connect Discovery §4.
    private func fetch(
        _ issuer: String, _ pins: [String], _ preset: ProviderPreset
    ) async -> Result<ProviderMetadata, BrokerError> {
        guard let base = URLTarget(issuer), !base.pathAndQuery.contains("?") else {
            return .failure(BrokerError(.illegalConfiguration, "The issuer is not a URL without a query."))
        }
        let path = base.pathAndQuery == "/" ? "" : base.pathAndQuery
        let trimmed = path.hasSuffix("/") ? String(path.dropLast()) : path
        let origin = "\(base.scheme.rawValue)://\(base.origin.authority)"
        var failure = BrokerError(.illegalConfiguration, "The issuer publishes no metadata; name its endpoints.")
        for address in [
            "\(origin)/.well-known/oauth-authorization-server\(trimmed)",
            "\(origin)\(trimmed)/.well-known/openid-configuration",
        ] {
            guard let url = URLTarget(address) else { continue }
            let pinSet: PinSet?
            do throws(BrokerError) {
                pinSet = try PinSet.inForce(pins, at: url)
            } catch {
                return .failure(error)
            }
            let start = time.monotonic
            do throws(TransportError) {
                let response = try await transport.send(
                    ClientRequest(method: .get, url: url, fields: ["Accept": "application/json"], pins: pinSet))
                metrics.providerAnswered(
                    provider: preset.name, endpoint: "metadata", code: String(response.status.code),
                    took: start.duration(to: time.monotonic))
                if response.status == .ok, let metadata = parse(response.body, issuer: issuer) {
                    return .success(metadata)
                }
                if response.status.code >= 500 {
                    failure = BrokerError(.retryableError, "The issuer cannot answer now.", retryAfter: 5)
                }
            } catch {
                metrics.providerAnswered(
                    provider: preset.name, endpoint: "metadata", code: "error",
                    took: start.duration(to: time.monotonic))
                log.warning("metadata_request_failed", [.provider(preset), .transport(error)])
                switch error {
                case .untrusted:
                    return .failure(
                        BrokerError(.providerUntrusted, "The issuer's certificate, host name or pin does not fit."))
                case .insecureTarget, .forbiddenAddress, .invalidURL, .invalidRequest:
                    return .failure(
                        BrokerError(
                            .illegalConfiguration,
                            "The issuer's address may not be called: http:// and private addresses need "
                                + "TOKEN_BROKER_ALLOW_INSECURE_PROVIDERS=true."))
                default:
                    failure = BrokerError(.networkError, "The issuer could not be reached.", retryAfter: 5)
                }
            }
        }
        return .failure(failure)
    }

    /// Nil when the document is not about this issuer (RFC 8414 §3.3: identical, octet by octet) or lacks an endpoint.
    private func parse(_ body: [UInt8], issuer: String) -> ProviderMetadata? {
        guard let json = try? JSONValue(parsing: body), json["issuer"]?.string == issuer,
            let authorization = endpoint(json["authorization_endpoint"]),
            let token = endpoint(json["token_endpoint"])
        else { return nil }
        return ProviderMetadata(
            issuer: issuer, authorizationEndpoint: authorization, tokenEndpoint: token,
            revocationEndpoint: endpoint(json["revocation_endpoint"]),
            clientAuthenticationMethods: json["token_endpoint_auth_methods_supported"]?.array?
                .compactMap { $0.string.flatMap(ProviderPreset.ClientAuthentication.init) },
            announcesIssuerInResponses: json["authorization_response_iss_parameter_supported"]?.bool ?? false)
    }

    /// What is learnt obeys the rules of what is configured.
    private func endpoint(_ value: JSONValue?) -> String? {
        guard let text = value?.string, let url = URLTarget(text), url.scheme == .https || allowsInsecureProviders
        else { return nil }
        return text
    }
}
