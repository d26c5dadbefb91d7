package import ExternalText
package import JSON

/// The public keys that a provider publishes: a JWK set (RFC 7517 §5).
package struct JSONWebKeySet: Sendable {
    /// Why bytes are no JWK set. Retrying can help when the provider publishes other bytes.
    package enum Fault: Error, Equatable, Sendable, CustomStringConvertible {
        /// More than `longest` bytes.
        case tooLarge
        case notJSON(JSONValue.Fault)
        /// Not an object with an array `keys`.
        case malformed
        /// More than `mostKeys` elements in `keys`.
        case tooManyKeys(Int)

        /// Whether it is a set, and a larger one than is read.
        package var isAboutSize: Bool {
            switch self {
            case .tooLarge, .tooManyKeys: true
            case .notJSON, .malformed: false
            }
        }

        package var description: String {
            switch self {
            case .tooLarge: "The JWK set has more than \(JSONWebKeySet.longest) bytes."
            case .notJSON(let fault): fault.description
            case .malformed: "A JWK set is a JSON object with an array \"keys\"."
            case .tooManyKeys(let count): "The JWK set has \(count) keys; \(JSONWebKeySet.mostKeys) are supported."
            }
        }
    }

    /// The longest set that is read, in bytes: `mostKeys` RSA keys of 4096 bits with a short chain of certificates each.
    package static let longest = 524_288
    /// The most keys of a set. Each costs about a tenth of a millisecond.
    package static let mostKeys = 100

    package let keys: [JSONWebKey]
    /// The elements of the set that were left out, because they are no keys that this service uses.
    package let passedOver: [PassedOver]
    /// How many these are.
    package var skipped: Int { passedOver.count }

    /// An element of a set that is no key which this service uses.
    package struct PassedOver: Sendable, Equatable {
        /// Its `kid`; nil where it has none.
        package let keyID: WireText?
        package let reason: JSONWebKeyError

        /// Whether it is a key that may be good for something else.
        package var isOfOtherKind: Bool { if case .unsupported = reason { true } else { false } }
    }

    package init(_ keys: [JSONWebKey]) {
        self.keys = keys
        passedOver = []
    }

    /// Reads a set. RFC 7517 §5: keys of unknown types, and keys without what they need, are left out; so are weak keys
    /// and those whose secret part is in the set, too.
    /// - Throws: every case of `Fault`.
    package init(parsing bytes: [UInt8]) throws(Fault) {
        guard bytes.count <= Self.longest else { throw .tooLarge }
        let value: JSONValue
        do throws(JSONValue.Fault) {
            value = try JSONValue(parsing: bytes)
        } catch {
            throw .notJSON(error)
        }
        guard let elements = value["keys"]?.array else { throw .malformed }
        guard elements.count <= Self.mostKeys else { throw .tooManyKeys(elements.count) }
        var (keys, passedOver): ([JSONWebKey], [PassedOver]) = ([], [])
        for element in elements {
            do throws(JSONWebKeyError) {
                keys.append(try JSONWebKey(element))
            } catch {
                passedOver.append(PassedOver(keyID: element["kid"]?.string, reason: error))
            }
        }
        (self.keys, self.passedOver) = (keys, passedOver)
    }

    /// The keys of which one may have made a signature; at least one.
    ///
    /// With a `kid` they are those of that name: a provider may give the next key the name of the one before. Without one
    /// it is the only key of the set that fits the algorithm: to try several would let a key be used that its owner has
    /// named for something else.
    /// - Throws: `.unknownKey`, `.ambiguousKey`, `.unsuitableKey`.
    package func keys(for header: JOSEHeader) throws(JWSError) -> [JSONWebKey] {
        let named = keys.filter { header.keyID == nil || $0.keyID == header.keyID }
        let fitting = named.filter { $0.misfit(for: header.algorithm) == nil }
        if fitting.isEmpty {
            if header.keyID != nil, let misfit = named.first?.misfit(for: header.algorithm) {
                throw .unsuitableKey(misfit)
            }
            throw .unknownKey
        }
        guard header.keyID != nil || fitting.count == 1 else { throw .ambiguousKey }
        return fitting
    }

    /// The set as JSON.
    package var json: [UInt8] {
        JSONWriter.object { writer in
            writer.name("keys")
            writer.array { writer in
                for key in keys { writer.object { key.write(to: &$0) } }
            }
        }
    }
}
