import Containers
import Cryptography
import ExternalText
import HTTPCodec
import HTTPServer
import JOSE
import JSON

/// Verifies the proofs of keys that come with token requests (RFC 9449 §4.3).
enum ProofVerification {
    /// How far the time of a proof may be from the provider's, in seconds.
    private static let tolerance: Int64 = 60
    private static let policy = JWSPolicy(algorithms: [.es256], types: ["dpop+jwt"], allowsEmbeddedKey: true)
    private static let post: WireText = "POST"

    /// The thumbprint of the key that a request proves; nil for a request without a proof.
    /// - Throws: `invalid_dpop_proof`, `use_dpop_nonce`.
    static func thumbprint(
        of request: Request, issuer: inout TokenIssuer, now: Int64
    ) throws(OAuthError) -> String? {
        let configuration = issuer.configuration
        guard configuration.boundTokens != .off else { return nil }
        let proofs = request.fields.values("DPoP")
        guard let proof = proofs.first else {
            if configuration.boundTokens == .allowed { return nil }
            throw OAuthError(.invalidProof, "DPoP is missing")
        }
        guard proofs.count == 1, let (claims, key) = verified(proof) else {
            throw OAuthError(.invalidProof, "The proof is not signed with its key")
        }
        let uri = configuration.baseURL.description + (configuration.path(of: .token) ?? "")
        guard claims["htm"]?.string == post, claims["htu"]?.string == WireText(uri) else {
            throw OAuthError(.invalidProof, "The proof is for another request")
        }
        guard let issued = claims["iat"]?.integer, abs(now / 1000 - issued) <= tolerance else {
            throw OAuthError(.invalidProof, "The proof is of another time")
        }
        if let nonce = configuration.proofNonce, claims["nonce"]?.string != WireText(nonce) {
            throw OAuthError(.nonceWanted, "The proof lacks the newest nonce")
        }
        guard let identifier = claims["jti"]?.string?.text, !identifier.isEmpty,
            issuer.proofs[Secrets.digest(identifier)] == nil
        else { throw OAuthError(.invalidProof, "The proof was used before") }
        issuer.proofs[Secrets.digest(identifier)] = now
        return Base64URL.encode(key.thumbprint)
    }

    private static func verified(_ proof: WireText) -> (claims: JSONValue, key: JSONWebKey)? {
        guard let token = try? CompactJWS(parsing: proof, policy: policy), let key = token.header.embeddedKey,
            let read = try? token.verified(with: key), let claims = try? JSONValue(parsing: read.payload)
        else { return nil }
        return (claims, key)
    }
}
