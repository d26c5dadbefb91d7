package import Cryptography
package import ExternalText

/// The algorithms by which tokens may be signed (RFC 7518 §3.1, RFC 8037 §3.1). `none` and the HMAC algorithms are not
/// among them, so no list of algorithms can permit them.
package enum SignatureAlgorithm: String, Hashable, Sendable, CaseIterable {
    case es256 = "ES256"
    case es384 = "ES384"
    case rs256 = "RS256"
    case ps256 = "PS256"
    /// Ed25519 only, not Ed448.
    case edDSA = "EdDSA"

    /// All names that `init(named:)` reads.
    package static var names: [String] { allCases.map(\.rawValue) + [ed25519] }

    private static let ed25519 = "Ed25519"

    /// The algorithm of an `alg`; nil for one that is not supported. RFC 9864 §2.2 calls `Ed25519` what RFC 8037 §3.1 calls
    /// `EdDSA`, for the only curve that is supported here.
    package init?(named name: WireText) {
        self.init(name == WireText(Self.ed25519) ? WireText(Self.edDSA.rawValue) : name)
    }

    package var scheme: SignatureScheme {
        switch self {
        case .es256: .ecdsaP256
        case .es384: .ecdsaP384
        case .rs256: .rsaPKCS1
        case .ps256: .rsaPSS
        case .edDSA: .ed25519
        }
    }

    /// The hash function of an ID token's `at_hash` and `c_hash` (OpenID Connect Core §3.1.3.6): that of the signature.
    /// Ed25519 has SHA-512 within (RFC 8032 §5.1).
    package var hashFunction: HashFunction {
        switch self {
        case .es256, .rs256, .ps256: .sha256
        case .es384: .sha384
        case .edDSA: .sha512
        }
    }
}
