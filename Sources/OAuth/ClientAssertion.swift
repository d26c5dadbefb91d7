import Cryptography
package import ExternalText
import JOSE
import JSON

/// The `aud` of the JWTs by which clients authenticate (RFC 7523 §3).
package enum AssertionAudience: String, Sendable, CaseIterable {
    /// The issuer of the provider, and where it is not known the token endpoint. It is what RFC 7523 asks for since it became known
    /// that a server could have another one's token endpoint named.
    case issuer
    case tokenEndpoint = "token_endpoint"
    /// The endpoint that the request goes to, such as the one for revocations: the only one that some servers take there.
    case endpoint
}

/// The JWT by which a client authenticates (RFC 7523 §2.2, OpenID Connect Core §9). Each is for one request.
package enum ClientAssertion {
    /// For so long a JWT is valid, in seconds.
    package static let lifetime: Int64 = 60

    /// The parameter `client_assertion_type`.
    static let type = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"

    /// What signs a JWT.
    package enum Signer: Sendable {
        case privateKey
        /// HS256.
        case secret
    }

    /// Why there is no JWT. Retrying cannot help.
    package enum Fault: Error {
        /// The client has no key, or no secret.
        case missing
        /// The secret has less than `SharedSecretSigner.shortestSecret` bytes.
        case shortSecret
        /// The cryptographic library has failed, most likely because memory was short.
        case unavailable
    }

    /// Signs a JWT.
    /// - Parameters:
    ///   - signer: what signs it.
    ///   - now: the time of `iat`.
    package static func sign(
        by signer: Signer, for client: ClientConfiguration, at server: AuthorizationServer, now: Timestamp
    ) throws(Fault) -> WireText {
        guard let identifier = try? SecureRandom.bytes(16) else { throw .unavailable }
        let audience =
            switch server.shape.assertionAudience {
            case .issuer: server.issuer
            case .tokenEndpoint: nil as String?
            case .endpoint: server.requestedEndpoint
            }
        let claims = JSONWriter.object { json in
            json.member("iss", client.clientID.text)
            json.member("sub", client.clientID.text)
            json.member("aud", audience ?? server.tokenEndpoint)
            json.member("jti", Base64URL.encode(identifier))
            json.member("iat", now.seconds)
            json.member("exp", now.seconds + lifetime)
        }
        switch signer {
        case .privateKey:
            guard let key = client.material?.privateKey else { throw .missing }
            guard let signed = try? key.signer.sign(claims, type: "JWT") else { throw .unavailable }
            return signed
        case .secret:
            guard let secret = client.clientSecret else { throw .missing }
            guard let signer = SharedSecretSigner(secret) else { throw .shortSecret }
            return signer.sign(claims, type: "JWT")
        }
    }
}
