import CredentialStore
import Cryptography
import Testing

@Suite struct `A keyring` {
    static let key = "AAAAAQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0="
    static let otherKey = "BAAAAQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0="

    @Test(arguments: [
        "a:" + key, " a:" + key + "\n", "a:\(key),b:\(otherKey)", "\ta:\(key) ,\r\n b:\(otherKey)  ",
        String(repeating: "x", count: 32) + ":" + key, "A-z_09:" + key, "a:\(key),b:\(key)",
    ])
    func `is read from its text form`(text: String) throws {
        let ring = try Keyring(parsing: text)
        #expect(ring.primaryID == text.split(separator: ":")[0].filter { !$0.isWhitespace })
    }

    // H052
    @Test(
        arguments: [
            ("", .empty), (" \n", .empty), (",", .malformedEntry(position: 1)), ("a", .malformedEntry(position: 1)),
            (key, .malformedEntry(position: 1)), (":" + key, .malformedEntry(position: 1)),
            ("a b:" + key, .malformedEntry(position: 1)), ("a.b:" + key, .malformedEntry(position: 1)),
            ("é:" + key, .malformedEntry(position: 1)),
            (String(repeating: "x", count: 33) + ":" + key, .malformedEntry(position: 1)),
            ("a:\(key),", .malformedEntry(position: 2)), ("a:\(key),,b:\(key)", .malformedEntry(position: 2)),
            ("a:\(key),a:\(otherKey)", .duplicateID(position: 2, id: "a")),
            ("a:", .wrongLength(position: 1, id: "a", count: 0)),
            ("a:\(key),b:AAAA", .wrongLength(position: 2, id: "b", count: 3)),
            ("a:" + String(repeating: "A", count: 42) + "==", .wrongLength(position: 1, id: "a", count: 31)),
            ("a:" + String(repeating: "A", count: 44), .wrongLength(position: 1, id: "a", count: 33)),
            ("a:" + key.dropLast(), .invalidEncoding(position: 1, id: "a")),
            ("a:\(key)=", .invalidEncoding(position: 1, id: "a")),
            ("a: \(key)", .invalidEncoding(position: 1, id: "a")),
            ("a:\(key) b:\(key)", .invalidEncoding(position: 1, id: "a")),
            ("a:-" + key.dropFirst(), .invalidEncoding(position: 1, id: "a")),
            ("a:" + key.dropLast(2) + "B=", .invalidEncoding(position: 1, id: "a")),
            ("a:" + encoded([UInt8](repeating: 0, count: 32)), .notRandom(position: 1, id: "a")),
            ("a:" + encoded([UInt8](repeating: 0xff, count: 32)), .notRandom(position: 1, id: "a")),
            ("b:\(key),a:" + encoded((0..<32).map { $0 % 7 }), .notRandom(position: 2, id: "a")),
        ] as [(String, KeyringError)])
    func `a fault is named without the key`(text: String, error: KeyringError) {
        #expect(throws: error) { try Keyring(parsing: text) }
        #expect(!"\(error)".contains("AAA"))
    }

    @Test(arguments: [8, 9, 32] as [UInt8])
    func `a key of eight different bytes or more is taken`(distinct: UInt8) throws {
        let ring = try Keyring(parsing: "a:" + Self.encoded((0..<32).map { $0 % distinct }))
        #expect(ring.primaryID == "a")
    }

    private static func encoded(_ bytes: [UInt8]) -> String { Base64.encode(bytes) }

    @Test func `a generated key can be read and differs from the next`() throws {
        let first = try Keyring.generate(id: "2026-01")
        let second = try Keyring.generate(id: "2026-01")
        #expect(first != second)
        #expect(first.hasPrefix("2026-01:"))
        #expect(try Keyring(parsing: first).primaryID == "2026-01")
        for id in ["", "a.b", "a:b", String(repeating: "x", count: 33)] {
            #expect(throws: CryptographyError.invalidLength) { try Keyring.generate(id: id) }
        }
    }

    @Test func `its description shows no key`() throws {
        let ring = try Keyring(parsing: "main:" + Self.otherKey)
        var dumped = ""
        dump(ring, to: &dumped)
        for text in ["\(ring)", String(reflecting: ring), dumped] { #expect(!text.contains("AAA")) }
    }
}
