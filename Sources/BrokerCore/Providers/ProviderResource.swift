internal import HTTPCodec
internal import HTTPSClient
internal import OAuth
internal import Reactor

/// What a provider answers to a GET request, apart from the metadata of issuers, which have several addresses.
enum ProviderResource {
    /// Its JWK set.
    case keys
    /// The user of an access token.
    case userInfo
    /// A resource that tokens are for, and its metadata.
    case resource

    /// The longest time of a request, and so the longest that a caller waits for one.
    private static let longestRequest: Duration = .seconds(5)
    /// After how many seconds a caller may ask again for what the provider has not answered.
    static let retryAfter = 5

    private var endpoint: Metrics.ProviderEndpoint {
        switch self {
        case .keys: .jwks
        case .userInfo: .userInfo
        case .resource: .metadata
        }
    }

    /// How errors call it.
    private var name: String {
        switch self {
        case .keys: "provider's JWK set"
        case .userInfo: "userinfo endpoint"
        case .resource: "resource"
        }
    }

    private var failureEvent: StaticString {
        switch self {
        case .keys: "keys_request_failed"
        case .userInfo: "userinfo_request_failed"
        case .resource: "resource_request_failed"
        }
    }

    /// Sends one request. Counts it, and logs a failure.
    /// - Parameters:
    ///   - configuration: of the tenant that asks.
    /// - Returns: the answer, whatever its status.
    /// - Throws: `illegal_configuration` where the address or the pins are not usable; `provider_untrusted`; `network_error` where
    ///   no answer comes within 5 seconds. Only after the last one, a retry may help.
    func get(
        _ address: String, _ fields: Fields, for configuration: TenantConfiguration,
        over transport: any ProviderTransport, _ instruments: Instruments
    ) async throws(BrokerError) -> ClientResponse {
        guard let url = URLTarget(address) else {
            throw BrokerError(.illegalConfiguration, "The address of the \(name) is not a usable URL.")
        }
        let preset = configuration.preset
        let request = try ClientRequest(get: url, fields, for: configuration, timeLimit: Self.longestRequest)
        let start = instruments.time.monotonic
        func count(_ code: String) {
            instruments.metrics.providerAnswered(
                provider: preset.name, endpoint: endpoint, code: code,
                took: start.duration(to: instruments.time.monotonic))
        }
        do throws(TransportError) {
            let response = try await transport.send(request)
            count(String(response.status.code))
            return response
        } catch {
            count("error")
            instruments.log.warning(failureEvent, [.provider(preset), .transport(error)])
            throw .permanentFailure(error, at: address)
                ?? BrokerError(
                    .networkError, "The \(name) could not be reached at \(address).", retryAfter: Self.retryAfter)
        }
    }
}
