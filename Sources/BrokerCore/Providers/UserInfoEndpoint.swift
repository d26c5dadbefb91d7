internal import Cryptography
internal import ExternalText
internal import HTTPCodec
internal import HTTPSClient
internal import JOSE
internal import JSON
internal import OAuth
internal import Reactor

/// Asks a provider whose access token it is (OpenID Connect Core §5.3). Of the answer only `sub` is read, to be compared with
/// that of the ID token: without one, nothing says that the answer is about the user who has logged in (§5.3.2).
struct UserInfoEndpoint: Sendable {
    /// The longest time of a request.
    private static let longestRequest: Duration = .seconds(5)
    private static let retryAfter = 5

    private let transport: any ProviderTransport
    private let instruments: Instruments

    init(transport: any ProviderTransport, instruments: Instruments) {
        self.transport = transport
        self.instruments = instruments
    }

    /// The `sub` of the user of an access token.
    /// - Throws: `.refused` where the provider does not accept the token, or answers without a usable `sub`; `.unavailable`
    ///   where it does not answer.
    func subject(
        of token: SecretBytes, at address: String, for configuration: TenantConfiguration
    ) async throws(GrantVerifier.Failure) -> WireText {
        let response: ClientResponse
        let start = instruments.time.monotonic
        do throws(BrokerError) {
            response = try await send(token, to: address, for: configuration, since: start)
        } catch {
            throw .unavailable(error)
        }
        instruments.metrics.providerAnswered(
            provider: configuration.preset.name, endpoint: .userInfo, code: String(response.status.code),
            took: start.duration(to: instruments.time.monotonic))
        switch response.status.code {
        case 200: break
        case 401, 403: throw Self.refused("The provider does not accept its own access token at \(address).")
        default:
            let words = ReceivedAnswer.words(response, to: configuration.client, lacking: "is not a JSON object")
            throw .unavailable(
                BrokerError(
                    .networkError, "The userinfo endpoint \(address) \(words).", retryAfter: Self.retryAfter))
        }
        let members = await InputReading.run(bytes: response.body.count) {
            (try? JSONValue(parsing: response.body))?.object
        }
        guard let subject = members?["sub"]?.string, (1...IDTokenExpectations.longestSubject).contains(subject.count)
        else { throw Self.refused("The answer of \(address) has no usable sub.") }
        return subject
    }

    private func send(
        _ token: SecretBytes, to address: String, for configuration: TenantConfiguration, since start: MonotonicInstant
    ) async throws(BrokerError) -> ClientResponse {
        guard let url = URLTarget(address) else {
            throw BrokerError(.illegalConfiguration, "The address of the userinfo endpoint is not a usable URL.")
        }
        let pins = try PinSet.inForce(configuration.effectivePins, at: url)
        let fields: Fields = [
            "Accept": "application/json", "Authorization": "Bearer \(token.revealedText)", "User-Agent": "token-broker",
        ]
        do throws(TransportError) {
            return try await transport.send(
                ClientRequest(method: .get, url: url, fields: fields, pins: pins, timeLimit: Self.longestRequest))
        } catch {
            instruments.metrics.providerAnswered(
                provider: configuration.preset.name, endpoint: .userInfo, code: "error",
                took: start.duration(to: instruments.time.monotonic))
            instruments.log.warning(
                "userinfo_request_failed", [.provider(configuration.preset), .transport(error)])
            throw .permanentFailure(error, at: address)
                ?? BrokerError(
                    .networkError, "The userinfo endpoint \(address) could not be reached.", retryAfter: Self.retryAfter
                )
        }
    }

    static func refused(_ reason: String) -> GrantVerifier.Failure {
        .refused(
            BrokerError(.tokenResponseError, "The user could not be verified: \(reason) What was stored before stays."))
    }
}
