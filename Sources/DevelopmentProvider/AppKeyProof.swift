import ExternalText
import JOSE
import JSON

/// A JWT by which an app proves that it has a key. It was read, and its times are right; its signature is checked by
/// `isSigned`.
struct AppKeyProof: Sendable {
    enum Kind: String, Sendable {
        case device = "vnd.authgear.app2app-request"
        case biometric = "vnd.authgear.biometric-request"
    }

    /// How far the clocks of the provider and of the app may differ.
    private static let skew: Duration = .seconds(300)

    private let token: CompactJWS
    let challenge: WireText
    let action: WireText?
    /// The client that is to be let in.
    let clientID: WireText?
    /// The key in the header, with an identifier; nil where the header has none.
    let key: JSONWebKey?
    /// `kid` of the header.
    let keyID: WireText?

    /// Nil for a text that is not a proof of this kind, or whose times are not those of now.
    init?(_ text: WireText, _ kind: Kind, now: Int64) {
        let policy = JWSPolicy(
            algorithms: [.es256, .es384, .rs256, .ps256, .edDSA], types: [WireText(kind.rawValue)],
            allowsEmbeddedKey: true)
        guard let token = try? CompactJWS(parsing: text, policy: policy),
            let payload = try? JSONValue(parsing: token.unverifiedPayload),
            let challenge = payload["challenge"]?.string,
            let claims = try? ClaimsSet(parsing: token.unverifiedPayload)
        else { return nil }
        let present = NumericDate(sinceEpoch: .milliseconds(now))
        if let expiry = claims.expiry, expiry.advanced(by: Self.skew) <= present { return nil }
        if let notBefore = claims.notBefore, notBefore > present.advanced(by: Self.skew) { return nil }
        if let issued = claims.issuedAt, issued > present.advanced(by: Self.skew) { return nil }
        if let key = token.header.embeddedKey, !(key.keyID.map(Self.isKeyID) ?? false) { return nil }
        self.token = token
        self.challenge = challenge
        action = payload["action"]?.string
        clientID = payload["client_id"]?.string
        key = token.header.embeddedKey
        keyID = token.header.keyID
    }

    /// Whether a text is 8 to 64 letters, digits, hyphens and underscores.
    private static func isKeyID(_ text: WireText) -> Bool {
        (8...64).contains(text.count) && text.utf8.allSatisfy { $0.isUnreserved && $0 != 0x2e && $0 != 0x7e }
    }

    func isSigned(with key: JSONWebKey) -> Bool { (try? token.verified(with: key)) != nil }
}
