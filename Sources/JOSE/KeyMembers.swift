import Cryptography
import ExternalText
import JSON

/// The members of a JWK.
struct KeyMembers {
    private let members: [WireText: JSONValue]

    /// - Throws: `.notAnObject`.
    init(_ value: JSONValue) throws(JSONWebKeyError) {
        guard let members = value.object else { throw .notAnObject }
        self.members = members
    }

    func has(_ member: JSONWebKeyError.Member) -> Bool { members[WireText(member.rawValue)] != nil }

    subscript(_ member: JSONWebKeyError.Member) -> JSONValue? { members[WireText(member.rawValue)] }

    /// The text of a member; nil when it is missing.
    /// - Throws: `.malformed` for another type.
    func text(_ member: JSONWebKeyError.Member) throws(JSONWebKeyError) -> WireText? {
        guard let value = self[member] else { return nil }
        guard let text = value.string else { throw .malformed(member) }
        return text
    }

    /// The bytes of a member. Some providers pad it, or write it in the alphabet of Base 64, which RFC 7515 §2 forbids; the
    /// key is the same.
    /// - Throws: `.missing`, `.malformed`, `.notBase64URL`.
    func bytes(_ member: JSONWebKeyError.Member) throws(JSONWebKeyError) -> [UInt8] {
        guard let text = try text(member) else { throw .missing(member) }
        guard let bytes = Base64URL.decodeLoosely(text.text) else { throw .notBase64URL(member) }
        return bytes
    }

    /// The bytes of a member that has a fixed length.
    func bytes(_ member: JSONWebKeyError.Member, count: Int) throws(JSONWebKeyError) -> [UInt8] {
        let bytes = try bytes(member)
        guard bytes.count == count else { throw .malformed(member) }
        return bytes
    }

    /// A coordinate of a point, with its leading zero octets.
    ///
    /// RFC 7518 §6.2.1.2 forbids to leave them out. Some libraries do, such as rhonabwy 1.1, Glewlwyd's: one of their keys in
    /// 128 has a coordinate that is too short.
    private func coordinate(
        _ member: JSONWebKeyError.Member, on curve: EllipticCurve
    ) throws(JSONWebKeyError) -> [UInt8] {
        let bytes = try bytes(member)
        let missing = curve.coordinateCount - bytes.count
        guard (0...Self.mostMissingZeros).contains(missing) else { throw .malformed(member) }
        return [UInt8](repeating: 0, count: missing) + bytes
    }

    /// So many leading zero octets may be left out. More are in no key that chance has made.
    private static let mostMissingZeros = 4

    /// A number without leading zero octets. One is allowed: RFC 7518 §6.3.1.1 tells of libraries that add it.
    private func number(_ member: JSONWebKeyError.Member) throws(JSONWebKeyError) -> [UInt8] {
        let bytes = try bytes(member)
        let digits = bytes.first == 0 ? Array(bytes.dropFirst()) : bytes
        guard let first = digits.first, first != 0 else { throw .malformed(member) }
        return digits
    }

    /// The name of Ed25519 in a JWK (RFC 8037 §2).
    private static let ed25519: WireText = "Ed25519"

    /// The name of a curve in a JWK (RFC 7518 §6.2.1.1).
    static func name(of curve: EllipticCurve) -> String {
        switch curve {
        case .p256: "P-256"
        case .p384: "P-384"
        }
    }

    /// - Throws: `.missing`, `.malformed`, `.notBase64URL`, `.unsupported`.
    func publicMaterial() throws(JSONWebKeyError) -> PublicKeyMaterial {
        guard let type = try text(.kty) else { throw .missing(.kty) }
        switch type {
        case "EC":
            guard let name = try text(.crv) else { throw .missing(.crv) }
            guard let curve = EllipticCurve.allCases.first(where: { WireText(Self.name(of: $0)) == name }) else {
                throw .unsupported(.crv)
            }
            return .elliptic(curve, x: try coordinate(.x, on: curve), y: try coordinate(.y, on: curve))
        case "RSA": return .rsa(modulus: try number(.n), exponent: try number(.e))
        case "OKP":
            guard let name = try text(.crv) else { throw .missing(.crv) }
            guard name == Self.ed25519 else { throw .unsupported(.crv) }
            return .ed25519(try bytes(.x, count: PublicKeyMaterial.ed25519Count))
        default: throw .unsupported(.kty)
        }
    }

    /// The secret part of a key whose public part is `material`.
    /// - Throws: `.missing`, `.malformed`, `.notBase64URL`, `.unsupported`.
    func secretMaterial(of material: PublicKeyMaterial) throws(JSONWebKeyError) -> PrivateKeyMaterial {
        switch material {
        case .elliptic(let curve, _, _): return .elliptic(SecretBytes(try bytes(.d, count: curve.coordinateCount)))
        case .rsa:
            guard !has(.oth) else { throw .unsupported(.oth) }
            return .rsa(
                exponent: SecretBytes(try number(.d)), prime1: SecretBytes(try number(.p)),
                prime2: SecretBytes(try number(.q)), exponent1: SecretBytes(try number(.dp)),
                exponent2: SecretBytes(try number(.dq)), coefficient: SecretBytes(try number(.qi)))
        case .ed25519: return .ed25519(SecretBytes(try bytes(.d, count: PublicKeyMaterial.ed25519Count)))
        }
    }
}

/// What a JWK says about the key beside its numbers.
struct KeyDescription {
    let keyID: WireText?
    let algorithm: WireText?
    let isForSignatures: Bool

    /// The `use` of a key for signatures (RFC 7517 §4.2).
    private static let signatures: WireText = "sig"

    /// The most operations that `key_ops` may name. RFC 7517 §4.3 knows eight.
    private static let mostOperations = 16

    init(keyID: WireText?, algorithm: WireText?) {
        self.keyID = keyID
        self.algorithm = algorithm
        isForSignatures = true
    }

    /// - Parameter operation: what `key_ops` must name, where it is given.
    /// - Throws: `.malformed`.
    init(_ members: KeyMembers, operation: WireText) throws(JSONWebKeyError) {
        keyID = try members.text(.kid)
        guard keyID.map({ $0.count <= JSONWebKey.longestKeyID }) ?? true else { throw .malformed(.kid) }
        algorithm = try members.text(.alg)
        let use = try members.text(.use)
        var operations: [WireText]?
        if let value = members[.keyOperations] {
            guard let array = value.array, array.count <= Self.mostOperations else { throw .malformed(.keyOperations) }
            let names = array.compactMap(\.string)
            guard names.count == array.count, Set(names).count == names.count else { throw .malformed(.keyOperations) }
            operations = names
        }
        isForSignatures = (use ?? Self.signatures) == Self.signatures && (operations?.contains(operation) ?? true)
    }
}
