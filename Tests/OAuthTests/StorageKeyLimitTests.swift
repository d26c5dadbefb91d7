import ExternalText
import OAuth
import Testing

@Suite struct `A limit to storage keys` {
    private static func limit(_ patterns: [String]) -> StorageKeyLimit {
        StorageKeyLimit(patterns.map { StorageKeyPattern(WireText($0))! })
    }

    private static func includes(_ limit: StorageKeyLimit, _ text: String) -> Bool { limit.includes(text.utf8.span) }

    /// Patterns, the storage keys that they include, and storage keys beside those.
    private static let table: [(patterns: [String], included: [String], others: [String])] = [
        (["alice"], ["alice"], ["alic", "alice2", "alicd", "alicf", "Alice", "alice.", "a", "~"]),
        (
            ["team-a.*"], ["team-a.", "team-a.1", "team-a..", "team-a.~", "team-a.x@y:z"],
            ["team-a", "team-a-1", "team-a/", "team-b.1", "team-", "Team-a.1", "xteam-a.1", "team-a~", "team-a-"]
        ),
        (["user-*"], ["user-", "user-1", "user--"], ["user", "user.", "user_1", "users-1", "uses-1"]),
        (["a*"], ["a", "aa", "a~", "a-"], ["A", "b", "9", "@a", "~"]),
        (
            ["b", "d*", "f", "dz", "d", "b-*"], ["b", "b-", "b-1", "d", "d0", "dz", "dzz", "f"],
            ["a", "b1", "bb", "c", "cz", "e", "f0", "ff", "g", "b.", "b,"]
        ),
        (["a.b*", "a*", "a.bc"], ["a", "a.b", "a.bc", "a.a", "ab"], ["b", "A.b"]),
        (["a.b*", "a.d*", "a.c"], ["a.b", "a.bz", "a.c", "a.d", "a.d1"], ["a", "a.", "a.a", "a.c1", "a.e", "a.az"]),
        ([], [], ["a", "default"]),
        (
            ["12345678*"], ["12345678", "123456789", "12345678.1234567890"],
            ["1234567", "12345679", "1234567a", "22345678"]
        ),
    ]

    @Test(arguments: table)
    func `includes what its patterns say, and no neighbours`(patterns: [String], included: [String], others: [String]) {
        for limit in [Self.limit(patterns), Self.limit(patterns.reversed())] {
            for key in included { #expect(Self.includes(limit, key), "\(patterns) \(key)") }
            for key in others { #expect(!Self.includes(limit, key), "\(patterns) \(key)") }
            #expect(!Self.includes(limit, ""))
            for key in included { #expect(limit.includes(StorageKey(key)!)) }
        }
    }

    @Test(arguments: [
        (["b", "a", "b"], ["a", "b"]), (["a*", "a"], ["a*"]), (["a", "a*", "ab", "ab*", "b"], ["a*", "b"]),
        (["ab", "a.c*", "a.b"], ["a.b", "a.c*", "ab"]), (["a*", "a*"], ["a*"]), (["A", "a*"], ["A", "a*"]),
    ])
    func `leaves out patterns that others contain, and has an order`(given: [String], kept: [String]) {
        #expect(Self.limit(given).patterns.map(\.description) == kept)
        #expect(Self.limit(given.reversed()) == Self.limit(given))
    }

    @Test(arguments: [
        ("a", true), ("a*", true), ("a.*", true), ("*", false), ("", false), ("**", false), ("a**", false),
        ("*a", false),
        ("a*b", false), ("a *", false), ("a?", false), ("é*", false), ("a\u{301}*", false), ("a*\u{301}", false),
        (String(repeating: "k", count: 200), true), (String(repeating: "k", count: 200) + "*", true),
        (String(repeating: "k", count: 201), false), (String(repeating: "k", count: 201) + "*", false),
    ])
    func `has patterns with a star at their end only`(text: String, isPattern: Bool) {
        #expect((StorageKeyPattern(WireText(text)) != nil) == isPattern)
        if isPattern { #expect(StorageKeyPattern(WireText(text))?.description == text) }
    }

    @Test func `finds what looking at each pattern finds`() {
        var generator = SystemRandomNumberGenerator()
        func text(_ longest: Int) -> String {
            String(
                (0..<Int.random(in: 1...longest, using: &generator)).map { _ in
                    "-.aAb~".randomElement(using: &generator)!
                })
        }
        for _ in 0..<300 {
            let patterns = (0..<Int.random(in: 0...8)).map { _ in text(3) + (Bool.random() ? "*" : "") }
            let limit = Self.limit(patterns)
            for _ in 0..<60 {
                let key = text(5)
                let isIncluded = patterns.contains { $0.hasSuffix("*") ? key.hasPrefix($0.dropLast()) : key == $0 }
                #expect(Self.includes(limit, key) == isIncluded, "\(patterns) \(key)")
            }
        }
    }
}
