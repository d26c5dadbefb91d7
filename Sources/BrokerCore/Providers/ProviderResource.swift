import HTTPCodec
import HTTPSClient
import OAuth
import Reactor

/// What a provider answers to a request that asks for no token, apart from the metadata of issuers, which have several addresses.
enum ProviderResource {
    /// Its JWK set.
    case keys
    /// The user of an access token.
    case userInfo
    /// A resource that tokens are for, and its metadata.
    case resource
    /// The registration of a client there.
    case registration

    /// The longest time of a request, and so the longest that a caller waits for one.
    private static let longestRequest: Duration = .seconds(5)
    /// After how many seconds a caller may ask again for what the provider has not answered.
    static let retryAfter = 5

    private var endpoint: Metrics.ProviderEndpoint {
        switch self {
        case .keys: .jwks
        case .userInfo: .userInfo
        case .resource: .metadata
        case .registration: .registration
        }
    }

    /// How errors call it.
    private var name: String {
        switch self {
        case .keys: "provider's JWK set"
        case .userInfo: "userinfo endpoint"
        case .resource: "resource"
        case .registration: "address for registrations"
        }
    }

    private var failureEvent: StaticString {
        switch self {
        case .keys: "keys_request_failed"
        case .userInfo: "userinfo_request_failed"
        case .resource: "resource_request_failed"
        case .registration: "registration_request_failed"
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
        try await send(try call(address, fields, for: configuration), over: transport, instruments)
    }

    /// Makes a GET request.
    /// - Throws: `illegal_configuration` where the address or the pins are not usable.
    func call(
        _ address: String, _ fields: Fields, for configuration: TenantConfiguration
    ) throws(BrokerError) -> Call {
        guard let url = URLTarget(address) else {
            throw BrokerError(.illegalConfiguration, "The address of the \(name) is not a usable URL.")
        }
        return Call(
            request: try ClientRequest(get: url, fields, for: configuration, timeLimit: Self.longestRequest),
            address: address, preset: configuration.preset)
    }

    /// A request that is made already.
    struct Call {
        var request: ClientRequest
        /// As errors name it.
        let address: String
        let preset: ProviderPreset
        /// Of the line in the log that tells of a failure, before those of the provider and of the failure.
        var fields: [LogField] = []
    }

    /// Sends one request. Counts it, and logs a failure.
    /// - Returns: the answer, whatever its status.
    /// - Throws: as `get`, except for what concerns the making of the request.
    func send(
        _ call: Call, over transport: any ProviderTransport, _ instruments: Instruments
    ) async throws(BrokerError) -> ClientResponse {
        switch await attempt(call, over: transport, instruments) {
        case .success(let response): return response
        case .failure(let error): throw failure(error, at: call.address)
        }
    }

    /// Sends one request. Counts it, and logs a failure, of which `failure` says what callers get.
    func attempt(
        _ call: Call, over transport: any ProviderTransport, _ instruments: Instruments
    ) async -> Result<ClientResponse, TransportError> {
        let preset = call.preset
        let start = instruments.time.monotonic
        func count(_ code: String) {
            instruments.metrics.providerAnswered(
                provider: preset.name, endpoint: endpoint, code: code,
                took: start.duration(to: instruments.time.monotonic))
        }
        do throws(TransportError) {
            let response = try await transport.send(call.request)
            count(String(response.status.code))
            return .success(response)
        } catch {
            count("error")
            instruments.log.warning(failureEvent, call.fields + [.provider(preset), .transport(error)])
            return .failure(error)
        }
    }

    /// What callers get of a request without an answer.
    func failure(_ error: TransportError, at address: String) -> BrokerError {
        .permanentFailure(error, at: address)
            ?? BrokerError(
                .networkError, "The \(name) could not be reached at \(address).", retryAfter: Self.retryAfter)
    }
}
