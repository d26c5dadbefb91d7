package import Cryptography
package import ExternalText
import JOSE
import JSON

/// The key pair on P-256 to which a set of credentials is bound (RFC 9449). The provider knows its public part by the proofs that
/// come with requests, and grants tokens that are good only with a further proof. Immutable. An object, so that credentials
/// without a key stay small.
package final class DPoPKey: Sendable, Equatable {
    /// The private key (PKCS #8) that proves requests with the access token.
    package let pem: SecretBytes
    /// Whether the access token is bound to the key. False where the provider has answered with a bearer token, which RFC 9449 §5
    /// permits; the refresh token may be bound all the same.
    package let bindsToken: Bool
    /// The private key that proves refreshes, where it is another one: the refresh token is that of an earlier login. Nil elsewhere.
    package let refreshPEM: SecretBytes?

    /// The only algorithm of proofs.
    package static let algorithm: WireText = "ES256"
    /// The longest nonce of a server, in bytes.
    package static let longestNonce = 1024

    package init(pem: SecretBytes, bindsToken: Bool = false, refreshPEM: SecretBytes? = nil) {
        self.pem = pem
        self.bindsToken = bindsToken
        self.refreshPEM = refreshPEM == pem ? nil : refreshPEM
    }

    /// Makes a new key.
    /// - Throws: `.libraryFailure`.
    package static func generate() throws(KeyError) -> DPoPKey {
        DPoPKey(pem: try PrivateKey.generate(.elliptic(.p256)).pem())
    }

    package static func == (left: DPoPKey, right: DPoPKey) -> Bool {
        left.pem == right.pem && left.bindsToken == right.bindsToken && left.refreshPEM == right.refreshPEM
    }

    /// The key of requests with the refresh token.
    package var ofRefreshes: DPoPKey { refreshPEM.map { DPoPKey(pem: $0) } ?? self }

    /// The same key beside the answer to a request that it has proven.
    /// - Parameter bindsToken: whether the answer's access token is bound.
    func answered(bindsToken: Bool) -> DPoPKey { DPoPKey(pem: pem, bindsToken: bindsToken) }

    /// The key of a set that has its access token from one login and its refresh token from another one.
    static func joining(_ token: DPoPKey?, refreshes: DPoPKey?) -> DPoPKey? {
        guard let refreshes else { return token }
        let refreshPEM = refreshes.refreshPEM ?? refreshes.pem
        guard let token else { return DPoPKey(pem: refreshPEM) }
        return DPoPKey(pem: token.pem, bindsToken: token.bindsToken, refreshPEM: refreshPEM)
    }

    /// Whether proofs can be signed: false for what is no private key on P-256.
    package var isUsable: Bool { (try? signer()) != nil }

    /// The SHA-256 thumbprint of the public key (RFC 7638), in base64url, as `dpop_jkt` and `jkt` have it.
    /// - Throws: a reason why the stored key cannot be used.
    package func thumbprint() throws(KeyError) -> String {
        Base64URL.encode(JSONWebKey(try PrivateKey(pem: pem).publicKey).thumbprint)
    }

    /// Signs a proof.
    /// - Throws: a reason why the stored key cannot be used.
    package func sign(_ proof: DPoPProof) throws(KeyError) -> WireText {
        try signer().sign(proof.claims, type: DPoPProof.type, embedsKey: true)
    }

    private func signer() throws(KeyError) -> TokenSigner {
        let key = PrivateJSONWebKey(try PrivateKey(pem: pem))
        do throws(JWSError.Misfit) {
            return try TokenSigner(key, algorithm: .es256)
        } catch {
            throw .unsupported
        }
    }
}

/// Printing a key shows nothing of the secret.
extension DPoPKey: CustomStringConvertible {
    package var description: String { "<DPoP key>" }
}

/// What a proof says of the request that it comes with (RFC 9449 §4.2). Good for that request only.
package struct DPoPProof: Sendable {
    /// `typ`.
    package static let type: WireText = "dpop+jwt"
    private static let identifierBytes = 16

    /// `jti`.
    private let identifier: String
    /// `htm`.
    private let method: String
    /// `htu`, without query and fragment.
    private let uri: WireText
    private let issued: Timestamp
    /// `ath`: the digest of the access token that the request bears; nil for a request without one.
    private let tokenDigest: String?
    private let nonce: WireText?

    /// - Parameters:
    ///   - method: of the request, in capital letters.
    ///   - uri: of the request. Its query and its fragment are left out.
    ///   - token: the access token that the request bears; nil for none.
    ///   - nonce: the newest one that the server has sent; nil for none.
    ///   - identifier: nil for a new one of 128 random bits.
    /// - Throws: `.libraryFailure` where the system's random source fails.
    package init(
        _ method: String, _ uri: WireText, token: SecretBytes? = nil, nonce: WireText? = nil, at now: Timestamp,
        identifier: String? = nil
    ) throws(KeyError) {
        if let identifier {
            self.identifier = identifier
        } else {
            guard let bytes = try? SecureRandom.bytes(Self.identifierBytes) else { throw .libraryFailure }
            self.identifier = Base64URL.encode(bytes)
        }
        self.method = method
        self.uri = Self.bare(uri)
        issued = now
        tokenDigest = token.map { Base64URL.encode($0.withRevealed { SHA256.digest($0) }) }
        self.nonce = nonce
    }

    /// An address without query and fragment.
    private static func bare(_ uri: WireText) -> WireText {
        uri.split(at: "#", limit: 2)[0].split(at: "?", limit: 2)[0]
    }

    /// The JSON text of the claims.
    package var claims: [UInt8] {
        JSONWriter.object { json in
            json.member("jti", identifier)
            json.member("htm", method)
            json.member("htu", uri.text)
            json.member("iat", issued.seconds)
            json.memberIfPresent("ath", tokenDigest)
            json.memberIfPresent("nonce", nonce?.text)
        }
    }

    /// Whether a text can be sent back as a server's nonce: RFC 9449 §8.1 with RFC 6749 §A.
    package static func isNonce(_ text: WireText) -> Bool {
        (1...DPoPKey.longestNonce).contains(text.count)
            && text.utf8.allSatisfy { $0 > 0x20 && $0 < 0x7f && $0 != UInt8(ascii: "\"") && $0 != UInt8(ascii: "\\") }
    }
}
