import Cryptography
import ExternalText
import GroundTesting
import JOSE
import JSON
import Reactor
import Testing

/// The files in `Vectors/`.
enum VectorFile {
    private static let folder =
        #filePath.split(separator: "/", omittingEmptySubsequences: false).dropLast().joined(separator: "/")

    static func read(_ name: String) throws -> JSONValue {
        try JSONValue(parsing: try SmallFile.read("\(folder)/Vectors/\(name)", limit: 1 << 20))
    }

    /// The JWK without its secret part.
    static func publicPart(of jwk: JSONValue?) -> JSONValue {
        let secret: Set<WireText> = ["d", "p", "q", "dp", "dq", "qi"]
        return .object((jwk?.object ?? [:]).filter { !secret.contains($0.key) })
    }
}

/// One case of Wycheproof, with what its group has.
struct WycheproofCase: Sendable, CustomTestStringConvertible {
    let group: JSONValue
    let test: JSONValue

    var isValid: Bool { test["valid"]?.bool == true }

    var testDescription: String {
        "\(group["comment"]?.text ?? "") \(test["id"]?.integer ?? 0): \(test["comment"]?.text ?? "")"
    }

    func text(_ member: String) -> WireText { test[member]?.string ?? "" }

    func bytes(_ member: String) -> [UInt8] { Hex.decode(test[member]?.text ?? "") ?? [] }

    static func all(in file: String) throws -> [WycheproofCase] {
        try (VectorFile.read(file).array ?? []).flatMap { group in
            (group["tests"]?.array ?? []).map { WycheproofCase(group: group, test: $0) }
        }
    }
}

/// Every algorithm, for tests in which the choice is not the subject.
let everyAlgorithm = JWSPolicy(algorithms: Set(SignatureAlgorithm.allCases))

extension JSONValue: ExpressibleByStringLiteral {
    public init(stringLiteral text: String) { self = .string(WireText(text)) }
}
