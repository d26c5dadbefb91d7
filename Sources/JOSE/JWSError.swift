/// Why a JWS is not believed. No case carries a part of it, so `description` may be shown to anyone. Retrying cannot
/// help, except after `.unknownKey` with keys that were fetched anew.
package enum JWSError: Error, Equatable, Sendable, CustomStringConvertible {
    /// The three parts of the compact serialization.
    package enum Part: String, Sendable {
        case header, payload, signature
    }

    /// Header parameters that bring a key or the address of one.
    package enum KeySource: String, Sendable, CaseIterable {
        case jwk, jku, x5u, x5c
    }

    /// Why a key does not fit.
    package enum Misfit: Error, Equatable, Sendable {
        /// The algorithm is one for keys of another type or curve.
        case type
        /// `use` or `key_ops` says that the key is for something else than signatures.
        case use
        /// `alg` of the key names another algorithm.
        case algorithm
    }

    /// More than `CompactJWS.longest` bytes.
    case tooLarge
    /// Not three parts with two dots between them.
    case malformed
    /// A part is not base64url without padding, white space and leftover bits.
    case notBase64URL(Part)
    /// The header is no JSON object, or names a parameter twice.
    case malformedHeader
    /// A header parameter has the wrong type, or is longer than it may be.
    case malformedParameter
    /// The header has no `alg`.
    case noAlgorithm
    /// The `alg` is `none`: there is no signature.
    case unsecured
    /// The `alg` is none of those that the caller permits.
    case algorithmNotAllowed
    /// The header has `crit`: it demands an extension, and none is supported (RFC 7515 §4.1.11).
    case criticalExtension
    /// The header brings a key where the caller expects none.
    case keySource(KeySource)
    /// The `jwk` in the header is no key that is supported.
    case embeddedKey(JSONWebKeyError)
    /// The `typ` is none of those that the caller permits.
    case type
    /// No key has the `kid` of the header, or there is no `kid` and no key fits.
    case unknownKey
    /// There is no `kid`, and several keys fit.
    case ambiguousKey
    /// The key must not be used for this.
    case unsuitableKey(Misfit)
    /// The signature has not the length that each of this key has.
    case signatureLength
    /// The signature is none of these bytes by this key.
    case signature

    /// Whether the key of the token may have been replaced: another set of the provider's keys may verify it.
    package var concernsKey: Bool {
        switch self {
        case .unknownKey, .unsuitableKey, .signatureLength, .signature: true
        default: false
        }
    }

    package var description: String {
        switch self {
        case .tooLarge: "The token has more than \(CompactJWS.longest) bytes."
        case .malformed: "The token does not consist of a header, a payload and a signature."
        case .notBase64URL(let part): "The token's \(part.rawValue) is not base64url without padding."
        case .malformedHeader: "The token's header is no JSON object, or names a parameter twice."
        case .malformedParameter: "A parameter of the token's header has the wrong type or length."
        case .noAlgorithm: "The token names no algorithm."
        case .unsecured: "The token is not signed."
        case .algorithmNotAllowed: "The token is signed by an algorithm that is not allowed."
        case .criticalExtension: "The token demands an extension that is not supported."
        case .keySource(let source): "The token brings a key (\(source.rawValue)) where none is expected."
        case .embeddedKey(let error): error.description
        case .type: "The token is of another type than the one expected."
        case .unknownKey: "No key is known that the token could be signed with."
        case .ambiguousKey: "Several keys are known that the token could be signed with."
        case .unsuitableKey(.type): "The token's algorithm is not one for its key."
        case .unsuitableKey(.use): "The token's key is not for signatures."
        case .unsuitableKey(.algorithm): "The token's key is for another algorithm."
        case .signatureLength: "The token's signature has a wrong length."
        case .signature: "The token's signature is wrong."
        }
    }
}
