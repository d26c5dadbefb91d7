import Cryptography
import ExternalText
package import JOSE
package import OAuth

/// A provider's keys, and the tokens that it signs with them.
package struct SigningProvider: Sendable {
    package static let issuer = "https://op.example"
    package static let keysAddress = "https://op.example/keys"

    /// The members of a tenant's configuration that name this provider, with all of its endpoints.
    package static let members = """
        "provider": "oidc", "issuer": "\(issuer)", "endpoints": {"authorization": "\(issuer)/authorize", \
        "token": "\(issuer)/token", "jwks": "\(keysAddress)"}
        """

    package let keys: [PrivateJSONWebKey]

    /// - Parameter names: one key for each, with which `token` signs; the first one unless the caller chooses.
    package init(keys names: [String] = ["k1"]) {
        keys = names.map { name in
            guard let key = try? PrivateKey.generate(.elliptic(.p256)) else { preconditionFailure("no key") }
            return PrivateJSONWebKey(key, keyID: WireText(name), algorithm: .es256)
        }
    }

    /// The JWK set.
    package var keySet: String { String(decoding: JSONWebKeySet(keys.map(\.publicJWK)).json, as: UTF8.self) }

    /// A JWT with these claims, a JSON object.
    package func token(_ claims: String, key index: Int = 0) -> String {
        guard let signer = try? TokenSigner(keys[index], algorithm: .es256),
            let token = try? signer.sign(Array(claims.utf8), type: "JWT")
        else { preconditionFailure("not signed") }
        return token.text
    }

    /// An ID token for the client `c1` that lives for an hour.
    package func idToken(
        of subject: String, at now: Timestamp, nonce: String? = nil, audience: String = "c1",
        issuer: String = issuer, key index: Int = 0
    ) -> String {
        let nonce = nonce.map { #", "nonce": "\#($0)""# } ?? ""
        return token(
            """
            {"iss": "\(issuer)", "aud": "\(audience)", "sub": "\(subject)", "iat": \(now.seconds), \
            "exp": \(now.seconds + 3600)\(nonce)}
            """, key: index)
    }

    /// An access token or a refresh token that lives for an hour.
    package func signed(
        _ scope: String, audience: String, of subject: String = "ada", at now: Timestamp, name: String = "1",
        issuer: String = issuer, key index: Int = 0
    ) -> String {
        token(
            """
            {"iss": "\(issuer)", "aud": "\(audience)", "sub": "\(subject)", "scope": "\(scope)", "jti": "\(name)", \
            "iat": \(now.seconds), "exp": \(now.seconds + 3600)}
            """, key: index)
    }
}
