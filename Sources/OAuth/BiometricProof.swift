package import Cryptography
package import ExternalText
package import JOSE
import JSON

/// The token that proves that its sender has a key which a device guards by biometrics, before it is signed. The device signs it
/// after it has recognised its user.
package struct BiometricProof: Sendable {
    /// What the provider is asked for.
    package enum Action: Sendable, Equatable {
        /// The key is to be known for the user who is logged in.
        case setUp
        /// The key's user is to be logged in.
        case authenticate
        /// The same, and the app with this client identifier is to be let in.
        case authenticateAppToApp(WireText)
    }

    private let key: PublicKey
    private let algorithm: SignatureAlgorithm
    private let unsigned: UnsignedJWS

    /// For how long a proof is valid.
    private static let proofSeconds: Int64 = 60

    /// - Parameters:
    ///   - key: the public key.
    ///   - keyID: the name by which the provider knows it: 8 to 64 letters, digits, hyphens and underscores.
    ///   - deviceInfo: what the provider shows of the device in lists of sessions, each name once.
    /// - Throws: `.unsupported` for a key that does not sign by `algorithm`.
    package init(
        of key: PublicKey, _ algorithm: SignatureAlgorithm, keyID: WireText, for action: Action, challenge: WireText,
        deviceInfo: [(name: String, value: String)], by rules: ProviderPreset.AppToAppRules, at now: Timestamp
    ) throws(KeyError) {
        let webKey = JSONWebKey(key, keyID: keyID, algorithm: algorithm)
        guard webKey.misfit(for: algorithm) == nil else { throw .unsupported }
        let claims = JSONWriter.object { json in
            json.member("iat", now.seconds)
            json.member("exp", now.seconds + Self.proofSeconds)
            json.member("challenge", challenge.text)
            json.member("action", action.name)
            if case .authenticateAppToApp(let clientID) = action { json.member("client_id", clientID.text) }
            json.name("device_info")
            json.object { json in
                for (name, value) in deviceInfo { json.member(name, value) }
            }
        }
        self.key = key
        self.algorithm = algorithm
        unsigned = UnsignedJWS(
            claims, of: webKey, by: algorithm, type: rules.biometricProofType, embedsKey: action == .setUp)
    }

    /// What the device signs.
    package var signingInput: [UInt8] { unsigned.signingInput }

    /// The proof; nil where the signature is not the key's.
    /// - Parameter signature: that of ECDSA in DER (X9.62), or r ‖ s.
    package func signed(by signature: [UInt8]) -> WireText? {
        key.fixedLength(signature, of: signingInput, by: algorithm.scheme).map { unsigned.signed(by: $0) }
    }
}

extension BiometricProof.Action {
    fileprivate var name: String {
        switch self {
        case .setUp: "setup"
        case .authenticate: "authenticate"
        case .authenticateAppToApp: "authenticate_app2app"
        }
    }
}
