package import Cryptography
import ExternalText
import JSON

/// A code that a login is redeeming: what is needed to present it again if the process ends before the login does.
///
/// A provider that gets a code for the second time refuses it, and revokes what it has granted for it (RFC 6749 §4.1.2). One that
/// gets it for the first time grants tokens, which are revoked then. So no grant is left that no login has stored.
package struct UnsettledCode: Sendable, Equatable {
    package let storageKey: StorageKey
    package let code: SecretBytes
    package let redirectURI: String
    package let codeVerifier: SecretBytes
    /// The address that the code belongs to. No other one is sent it.
    package let tokenEndpoint: String
    /// What the login asked for beside the client's scopes.
    package let asked: AskedGrant?
    /// When the login began to redeem it.
    package let begun: Timestamp
    /// The key that the code is bound to; nil for none.
    package let proofKey: DPoPKey?

    /// For how long a code is presented again. It is good for ten minutes at most (RFC 6749 §4.1.2); longer, a provider may
    /// remember what it has granted for it.
    package static let span: Duration = .seconds(3600)

    package init(
        storageKey: StorageKey, code: SecretBytes, redirectURI: String, codeVerifier: SecretBytes,
        tokenEndpoint: String, asked: AskedGrant? = nil, begun: Timestamp, proofKey: DPoPKey? = nil
    ) {
        self.storageKey = storageKey
        self.code = code
        self.redirectURI = redirectURI
        self.codeVerifier = codeVerifier
        self.tokenEndpoint = tokenEndpoint
        self.asked = asked
        self.begun = begun
        self.proofKey = proofKey
    }

    /// When to present it again after a try that has failed; nil where no further try is made.
    package func nextTry(after now: Timestamp) -> Timestamp? {
        PendingRevocation.nextTry(since: begun, after: now, within: Self.span)
    }

    /// The sealed content of a record, as JSON.
    package var encoded: [UInt8] {
        JSONWriter.object { json in
            json.member("storage_key", storageKey.description)
            json.member("code", code.revealedText)
            json.member("redirect_uri", redirectURI)
            json.member("code_verifier", codeVerifier.revealedText)
            json.member("token_endpoint", tokenEndpoint)
            if let asked {
                json.name("asked")
                asked.encode(to: &json)
            }
            json.member("begun", begun.milliseconds)
            json.memberIfPresent("dpop_key", proofKey?.pem.revealedText)
        }
    }

    /// Nil when `bytes` are not such a record.
    package init?(decoding bytes: [UInt8]) {
        guard let json = try? JSONValue(parsing: bytes),
            let storageKey = json["storage_key"]?.string.flatMap({ StorageKey($0) }),
            let code = json["code"]?.string?.text, let redirectURI = json["redirect_uri"]?.string?.text,
            let verifier = json["code_verifier"]?.string?.text,
            let tokenEndpoint = json["token_endpoint"]?.string?.text, let begun = json["begun"]?.integer
        else { return nil }
        self.init(
            storageKey: storageKey, code: SecretBytes(utf8: code), redirectURI: redirectURI,
            codeVerifier: SecretBytes(utf8: verifier), tokenEndpoint: tokenEndpoint,
            asked: json["asked"].flatMap { AskedGrant($0) }, begun: Timestamp(milliseconds: begun),
            proofKey: (json["dpop_key"]?.string?.text).map { DPoPKey(pem: SecretBytes(utf8: $0)) })
    }
}
