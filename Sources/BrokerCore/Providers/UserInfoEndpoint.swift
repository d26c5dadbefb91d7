import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JOSE
import JSON
import OAuth
import Reactor

/// Asks a provider whose access token it is (OpenID Connect Core §5.3). Of the answer only `sub` is read, to be compared with
/// that of the ID token: without one, nothing says that the answer is about the user who has logged in (§5.3.2).
struct UserInfoEndpoint: Sendable {
    /// Sends the proofs.
    private let endpoint: TokenEndpoint
    private let transport: any ProviderTransport
    private let instruments: Instruments

    init(endpoint: TokenEndpoint, transport: any ProviderTransport, instruments: Instruments) {
        self.endpoint = endpoint
        self.transport = transport
        self.instruments = instruments
    }

    /// The `sub` of the user of an access token. A token that is bound to a key is sent with a proof, and once more where the
    /// endpoint asks for a nonce (RFC 9449 §9).
    /// - Throws: `.refused` where the provider does not accept the token, or answers without a usable `sub`; `.unavailable`
    ///   where it does not answer.
    func subject(
        of held: HeldCredentials, at address: String, for configuration: TenantConfiguration
    ) async throws(GrantVerifier.Failure) -> WireText {
        let response: ClientResponse
        do throws(BrokerError) {
            response = try await answer(to: held, at: address, for: configuration)
        } catch {
            throw .unavailable(error)
        }
        switch response.status.code {
        case 200: break
        case 401, 403: throw Self.refused("The provider does not accept its own access token at \(address).")
        default:
            let words = ReceivedAnswer.words(response, to: configuration.client, lacking: "is not a JSON object")
            throw .unavailable(
                BrokerError(
                    .networkError, "The userinfo endpoint \(address) \(words).", retryAfter: ProviderResource.retryAfter
                ))
        }
        let members = await InputReading.run(bytes: response.body.count) {
            (try? JSONValue(parsing: response.body))?.object
        }
        guard let subject = members?["sub"]?.string, (1...IDTokenExpectations.longestSubject).contains(subject.count)
        else { throw Self.refused("The answer of \(address) has no usable sub.") }
        return subject
    }

    private func answer(
        to held: HeldCredentials, at address: String, for configuration: TenantConfiguration
    ) async throws(BrokerError) -> ClientResponse {
        let fields: Fields = [
            "Accept": "application/json", "Authorization": "\(held.tokenType) \(held.accessToken.revealedText)",
            "User-Agent": "token-broker",
        ]
        let resource = ProviderResource.userInfo
        let call = try resource.call(address, fields, for: configuration)
        let key = held.proofKey.flatMap { $0.bindsToken ? $0 : nil }
        let sending = TokenEndpoint.Sending(message: call.request, key: key, bearing: held.accessToken)
        let (_, result) = try await endpoint.send(sending) { request in
            var sent = call
            sent.request = request
            return await resource.attempt(sent, over: self.transport, self.instruments)
        }
        switch result {
        case .success(let response): return response
        case .failure(let error): throw resource.failure(error, at: address)
        }
    }

    static func refused(_ reason: String) -> GrantVerifier.Failure {
        .refused(
            BrokerError(.tokenResponseError, "The user could not be verified: \(reason) What was stored before stays."))
    }
}
