package import Cryptography
package import JSON

/// Why a value is no JWK that this service uses. No case carries a part of a key. Retrying cannot help.
package enum JSONWebKeyError: Error, Equatable, Sendable, CustomStringConvertible {
    /// The members of a JWK that are read.
    package enum Member: String, Sendable {
        case kty, crv, x, y, n, e, d, p, q, dp, dq, qi, kid, alg, use, oth
        case keyOperations = "key_ops"
    }

    /// The bytes are not JSON.
    case notJSON(JSONValue.Fault)
    /// The value is no JSON object.
    case notAnObject
    case missing(Member)
    /// A member has the wrong type or length, or `key_ops` names an operation twice.
    case malformed(Member)
    /// A member is not base64url, which may be padded.
    case notBase64URL(Member)
    /// A symmetric key, another curve, an RSA key of more than two primes, or a `kty` that is not known.
    case unsupported(Member)
    /// A key with a secret part where a public key is expected. Its owner must replace it: it is known to others.
    case secretDisclosed
    /// The numbers are no key, or a weak one.
    case key(KeyError)

    package var description: String {
        switch self {
        case .notJSON(let fault): fault.description
        case .notAnObject: "A JWK is a JSON object."
        case .missing(let member): "The JWK has no \(member.rawValue)."
        case .malformed(let member): "The JWK's \(member.rawValue) has the wrong form or length."
        case .notBase64URL(let member): "The JWK's \(member.rawValue) is not base64url."
        case .unsupported(let member): "The JWK's \(member.rawValue) is not supported."
        case .secretDisclosed: "The JWK has a secret part where only a public key belongs."
        case .key(let error): error.description
        }
    }
}
