import Containers
import Cryptography
package import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
package import OAuth
import Reactor
import Synchronization

/// The newest nonces that servers have sent for proofs (RFC 9449 §8.2), by their origins. A nonce that is forgotten costs one more
/// request, which the server answers with another one.
final class ProofNonces: Sendable {
    private let newest = Mutex(BoundedTable<URLTarget.Origin, WireText>(capacity: 1024))

    subscript(_ url: URLTarget) -> WireText? { newest.withLock { $0[url.origin] } }

    /// Notes the nonce of an answer.
    /// - Returns: the nonce; nil where the answer has none, or one that cannot be sent back.
    @discardableResult
    func note(_ response: ClientResponse, of url: URLTarget) -> WireText? {
        guard let nonce = response.fields["DPoP-Nonce"], DPoPProof.isNonce(nonce) else { return nil }
        newest.withLock { _ = $0.setNewest(nonce, forKey: url.origin) }
        return nonce
    }
}

/// Requests that prove the key of a set of credentials.
extension TokenEndpoint {
    /// What is sent in one way of the client.
    struct Sending {
        /// The request, without what is made for each sending.
        fileprivate let message: ClientRequest
        /// What is made for each sending beside the proof; nil where the client shows the same each time.
        fileprivate var anew: (proving: Proving, way: ClientWay)?
        /// The key that is proven; nil for none.
        fileprivate let key: DPoPKey?
        /// The access token that the request bears, and that is bound to the key; nil for a request without one.
        fileprivate let token: SecretBytes?

        /// A request that shows the client each time in the same way, or none.
        init(message: ClientRequest, key: DPoPKey?, bearing token: SecretBytes? = nil) {
            (self.message, self.key, self.token) = (message, key, token)
        }

        /// A request in which the client shows something new in each sending.
        init(_ request: AuthenticatedRequest, _ proving: Proving, _ way: ClientWay) {
            (message, key, token) = (request.message, proving.server.proofKey, request.boundToken)
            anew = (proving, way)
        }
    }

    /// How often one request is sent where each answer asks for another nonce. A server whose nonces are good for a few requests, such
    /// as Glewlwyd, has requests of the same moment take them from each other.
    private static let mostSendings = 5

    /// Sends a request with a proof of the key, made for this sending. Where the server asks for a nonce that the proof lacks, sends it
    /// again: such an answer has spent nothing (RFC 9449 §8), and is no failure. What the client shows is then made anew, too, since
    /// servers take a JWT once.
    /// - Returns: the request that has the result, and the result.
    /// - Throws: `illegal_configuration` where the client lacks what it shows, such as a file; `internal_error` where the key cannot
    ///   sign. Nothing was sent then.
    func send(
        _ sending: Sending, by send: (ClientRequest) async -> Result<ClientResponse, TransportError>
    ) async throws(BrokerError) -> (message: ClientRequest, result: Result<ClientResponse, TransportError>) {
        var message = try await made(sending)
        guard let key = sending.key else { return (message, await send(message)) }
        var (sendings, nonce) = (0, nonces[message.url])
        while true {
            let request = try proven(message, key, sending.token, nonce)
            let result = await send(request)
            sendings += 1
            guard case .success(let response) = result, let next = nonces.note(response, of: message.url),
                next != nonce, sendings < Self.mostSendings,
                await Self.asksForNonce(response, bears: sending.token != nil)
            else { return (request, result) }
            nonce = next
            message = try await made(sending)
        }
    }

    private func made(_ sending: Sending) async throws(BrokerError) -> ClientRequest {
        guard let (proving, way) = sending.anew else { return sending.message }
        return try await message(sending.message, proving, way)
    }

    private func proven(
        _ message: ClientRequest, _ key: DPoPKey, _ token: SecretBytes?, _ nonce: WireText?
    ) throws(BrokerError) -> ClientRequest {
        var message = message
        do throws(KeyError) {
            let proof = try DPoPProof(
                message.method.description, WireText(message.url.description), token: token, nonce: nonce, at: time.now)
            message.fields.set("DPoP", try key.sign(proof).text)
        } catch {
            log.error("proof_not_signed", [.endpoint(message.url.description)])
            throw BrokerError(.internalError, "The key of the credentials cannot sign.")
        }
        return message
    }

    private static let nonceWanted: WireText = "use_dpop_nonce"

    /// - Parameter isResource: whether the request bore a token. Then the answer says in `WWW-Authenticate` what it is about (RFC 9449
    ///   §9), or nothing, and a nonce that is new counts.
    private static func asksForNonce(_ response: ClientResponse, bears isResource: Bool) async -> Bool {
        if isResource, response.status == .unauthorized { return true }
        guard response.status.code == 400 || response.status.code == 401 else { return false }
        let error = await InputReading.run(bytes: response.body.count) {
            (try? JSONValue(parsing: response.body))?["error"]?.string
        }
        return error == nonceWanted
    }
}

extension AuthorizationServer {
    /// Gives the server a new key for a login, where the tenant's credentials are bound to keys.
    /// - Throws: `illegal_configuration` where the provider takes no such proofs; `internal_error` without randomness.
    mutating func makeProofKey(for configuration: TenantConfiguration) throws(BrokerError) {
        guard configuration.bindsTokens else { return }
        guard takesProofs else {
            throw BrokerError(
                .illegalConfiguration,
                "The provider's dpop_signing_alg_values_supported has no ES256, by which the broker signs: set dpop to false."
            )
        }
        do throws(KeyError) {
            proofKey = try DPoPKey.generate()
        } catch {
            throw BrokerError(.internalError, "The system's random source failed.")
        }
    }

    /// The thumbprint of the key that a login's code is bound to; nil for none.
    var keyThumbprint: String? { proofKey.flatMap { try? $0.thumbprint() } }
}

extension HeldCredentials {
    /// A proof for a request with the access token (RFC 9449 §7); nil for a token that is bound to no key.
    /// - Throws: `internal_error` where the key cannot sign.
    package func proof(
        for method: String, _ uri: WireText, nonce: WireText?, at now: Timestamp
    ) throws(BrokerError) -> WireText? {
        guard let key = proofKey, key.bindsToken else { return nil }
        do throws(KeyError) {
            return try key.sign(DPoPProof(method, uri, token: accessToken, nonce: nonce, at: now))
        } catch {
            throw BrokerError(.internalError, "The key of the credentials cannot sign.")
        }
    }
}
