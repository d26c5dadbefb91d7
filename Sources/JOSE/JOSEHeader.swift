package import ExternalText
import JSON

/// What a caller demands of a JWS before any key is used.
package struct JWSPolicy: Sendable {
    /// The algorithms that are permitted.
    package let algorithms: Set<SignatureAlgorithm>
    /// The media types of `typ` that are permitted, without `application/`; nil permits every `typ` and none at all.
    package let types: [WireText]?
    /// Whether the header may bring the key, as that of a proof of possession does. Such a key says nothing about who
    /// signed, until the caller compares its thumbprint with one that it knows.
    package let allowsEmbeddedKey: Bool

    package init(algorithms: Set<SignatureAlgorithm>, types: [WireText]? = nil, allowsEmbeddedKey: Bool = false) {
        self.algorithms = algorithms
        self.types = types
        self.allowsEmbeddedKey = allowsEmbeddedKey
    }
}

/// The header of a JWS (RFC 7515 §4), as far as it is used.
package struct JOSEHeader: Sendable {
    package let algorithm: SignatureAlgorithm
    /// `kid`, at most `JSONWebKey.longestKeyID` bytes.
    package let keyID: WireText?
    /// `typ` as it stands in the header.
    package let type: WireText?
    /// `jwk`; nil where the policy does not allow it.
    package let embeddedKey: JSONWebKey?

    private static let longestName = 256
    private static let longestType = 256

    /// - Parameter json: the header, decoded.
    /// - Throws: `.malformedHeader`, `.malformedParameter`, `.noAlgorithm`, `.unsecured`, `.algorithmNotAllowed`,
    ///   `.criticalExtension`, `.keySource`, `.embeddedKey`, `.type`.
    init(parsing json: [UInt8], policy: JWSPolicy) throws(JWSError) {
        // RFC 7515 §2: the header is UTF-8 of JSON, which begins with no byte order mark.
        guard json.first == UInt8(ascii: "{") || json.first.map(Self.isSpace) ?? false,
            let members = (try? JSONValue(parsing: json, longestName: Self.longestName))?.object
        else { throw .malformedHeader }
        if members["crit"] != nil { throw .criticalExtension }
        for source in JWSError.KeySource.allCases where members[WireText(source.rawValue)] != nil {
            guard source == .jwk, policy.allowsEmbeddedKey else { throw .keySource(source) }
        }
        guard let name = try Self.text(members["alg"], longest: Self.longestName) else { throw .noAlgorithm }
        // Readers that compare without case have been deceived by "None".
        if name.equalsIgnoringCase("none") { throw .unsecured }
        guard let algorithm = SignatureAlgorithm(named: name), policy.algorithms.contains(algorithm) else {
            throw .algorithmNotAllowed
        }
        self.algorithm = algorithm
        keyID = try Self.text(members["kid"], longest: JSONWebKey.longestKeyID)
        type = try Self.text(members["typ"], longest: Self.longestType)
        if let types = policy.types {
            guard let type, types.contains(where: { Self.mediaType(type).equalsIgnoringCase($0) }) else { throw .type }
        }
        // Some SDKs send a set in its place, of which the first key counts.
        if let key = members["jwk"].map({ $0["keys"]?.array?.first ?? $0 }) {
            do throws(JSONWebKeyError) {
                embeddedKey = try JSONWebKey(key)
            } catch {
                throw .embeddedKey(error)
            }
        } else {
            embeddedKey = nil
        }
    }

    private static func text(_ value: JSONValue?, longest: Int) throws(JWSError) -> WireText? {
        guard let value else { return nil }
        guard let text = value.string, text.count <= longest else { throw .malformedParameter }
        return text
    }

    /// RFC 7515 §4.1.9: `application/` may be left out where no other slash follows.
    private static func mediaType(_ type: WireText) -> WireText {
        let prefix: WireText = "application/"
        return type.prefix(prefix.count).equalsIgnoringCase(prefix) ? type.dropping(prefix.count) : type
    }

    private static func isSpace(_ byte: UInt8) -> Bool {
        [UInt8(ascii: " "), UInt8(ascii: "\t"), UInt8(ascii: "\n"), UInt8(ascii: "\r")].contains(byte)
    }
}
