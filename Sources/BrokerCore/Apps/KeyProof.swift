import Cryptography
import ExternalText
import JOSE
import JSON
import OAuth

/// A JWT by which an app proves that it has a key. It was read, and its times are right; whether it is signed is for `isSigned` to
/// say.
struct KeyProof: Sendable {
    enum Kind: Sendable {
        /// A device key of app-to-app authentication.
        case device
        case biometric

        fileprivate var type: WireText {
            switch self {
            case .device: "vnd.authgear.app2app-request"
            case .biometric: "vnd.authgear.biometric-request"
            }
        }
    }

    /// How old a proof may be, by its `iat`, and how far ahead of the broker's clock.
    private static let longestAge: Duration = .seconds(600)
    /// How far the clocks of broker and app may differ for `exp` and `nbf`.
    private static let skew: Duration = .seconds(300)
    private static let longestInfo = 8192
    private static let policies: [Kind: JWSPolicy] = [.device: policy(.device), .biometric: policy(.biometric)]

    private static func policy(_ kind: Kind) -> JWSPolicy {
        JWSPolicy(algorithms: [.es256, .rs256, .ps256, .edDSA], types: [kind.type], allowsEmbeddedKey: true)
    }

    private let token: CompactJWS
    let challenge: WireText
    let action: WireText?
    /// The client that is to be let in.
    let clientID: WireText?
    /// As JSON; nil where there is none.
    let deviceInfo: [UInt8]?
    /// The key that the header brings; nil where it brings none.
    let key: JSONWebKey?
    /// `kid` of the header.
    let keyID: WireText?

    /// Nil for a text that is not a proof of this kind, or not of now.
    init?(_ text: WireText, _ kind: Kind, now: Timestamp) {
        guard let token = try? CompactJWS(parsing: text, policy: Self.policies[kind] ?? Self.policy(kind)),
            let payload = try? JSONValue(parsing: token.unverifiedPayload), case .object = payload,
            let challenge = payload["challenge"]?.string,
            let claims = try? ClaimsSet(parsing: token.unverifiedPayload)
        else { return nil }
        let present = NumericDate(sinceEpoch: .milliseconds(now.milliseconds))
        if let expiry = claims.expiry, expiry.advanced(by: Self.skew) <= present { return nil }
        if let notBefore = claims.notBefore, notBefore > present.advanced(by: Self.skew) { return nil }
        if let issued = claims.issuedAt {
            let age = issued.duration(to: present)
            guard age <= Self.longestAge, age >= .zero - Self.longestAge else { return nil }
        }
        if let key = token.header.embeddedKey, !(key.keyID.map(Self.isKeyID) ?? false) { return nil }
        if let keyID = token.header.keyID, token.header.embeddedKey == nil, !Self.isKeyID(keyID) { return nil }
        self.token = token
        self.challenge = challenge
        action = payload["action"]?.string
        clientID = payload["client_id"]?.string
        if let info = payload["device_info"] {
            var json = JSONWriter()
            json.value(info)
            guard json.bytes.count <= Self.longestInfo else { return nil }
            deviceInfo = json.bytes
        } else {
            deviceInfo = nil
        }
        key = token.header.embeddedKey
        keyID = token.header.keyID
    }

    /// Whether a text is 8 to 64 letters, digits, hyphens and underscores.
    private static func isKeyID(_ text: WireText) -> Bool {
        (8...64).contains(text.count)
            && text.utf8.allSatisfy {
                $0.isDigit || $0.isLowercaseLetter || $0.isUppercaseLetter || "-_".utf8.contains($0)
            }
    }

    /// Whether the proof is signed with this key.
    func isSigned(with key: JSONWebKey) -> Bool { (try? token.verified(with: key)) != nil }

    /// Whether the proof is signed with the stored key.
    func isSigned(with key: AppSession.DeviceKey) -> Bool {
        (try? JSONWebKey(parsing: key.jwk)).map { isSigned(with: $0) } ?? false
    }
}

extension AppSession.DeviceKey {
    init(_ key: JSONWebKey) {
        self.init(jwk: key.json, thumbprint: Base64URL.encode(key.thumbprint))
    }
}
