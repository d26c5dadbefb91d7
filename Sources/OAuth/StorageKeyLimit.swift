import Containers
package import ExternalText
import HTTPCodec

/// A storage key, or all storage keys that begin with a text: `alice`, `team-a.*`. No storage key has a `*`.
package struct StorageKeyPattern: Sendable, Hashable, Comparable, CustomStringConvertible {
    private static let wildcard = UInt8(ascii: "*")

    /// The storage key, or the text that it begins with: 1 to 200 characters of a storage key.
    package let key: StorageKey
    /// Whether storage keys that begin with `key` match, and not only `key`.
    package let isPrefix: Bool

    /// Nil when `text` is no pattern.
    package init?(_ text: WireText) {
        isPrefix = text.utf8.last == Self.wildcard
        guard let key = StorageKey(isPrefix ? WireText(text.utf8.dropLast()) : text) else { return nil }
        self.key = key
    }

    package init(_ key: StorageKey) {
        (self.key, isPrefix) = (key, false)
    }

    package var description: String { isPrefix ? key.description + "*" : key.description }

    package func matches(_ storageKey: StorageKey) -> Bool { matches(storageKey.description.utf8.span) }

    /// Whether the storage key with that text matches.
    func matches(_ text: Span<UInt8>) -> Bool {
        let own = key.description.utf8.span
        guard isPrefix else { return ByteRun.equal(own, text) }
        return own.count <= text.count && ByteRun.equal(own, text.extracting(first: own.count))
    }

    /// In the order of their texts; a storage key comes before the storage keys that begin with it.
    package static func < (left: Self, right: Self) -> Bool {
        left.key == right.key ? !left.isPrefix && right.isPrefix : left.key < right.key
    }
}

/// The storage keys that an API key is limited to.
package struct StorageKeyLimit: Sendable, Equatable {
    /// How many patterns a limit can have, and how many of them can be prefixes: to list the credentials of a limit, the store
    /// is asked for each prefix.
    package static let most = 1000
    package static let mostPrefixes = 32

    /// In their order. None matches a storage key that another one matches, so that at most one of them, the last one before
    /// a storage key or at it, can match that storage key.
    package let patterns: [StorageKeyPattern]

    /// - Parameter patterns: in any order. Those that others contain are left out.
    package init(_ patterns: some Sequence<StorageKeyPattern>) {
        var kept: [StorageKeyPattern] = []
        // A prefix is preceded by none that it contains but the storage key that is the same text.
        for pattern in patterns.sorted() {
            if let last = kept.last, last == pattern || last.isPrefix && last.matches(pattern.key.description.utf8.span)
            {
                continue
            }
            if kept.last?.key == pattern.key { kept.removeLast() }
            kept.append(pattern)
        }
        self.patterns = kept
    }

    package func includes(_ storageKey: StorageKey) -> Bool { includes(storageKey.description.utf8.span) }

    /// Whether it includes the storage key with that text. Allocates nothing, because each read of credentials asks it.
    package func includes(_ text: Span<UInt8>) -> Bool {
        let next = patterns.partitioningIndex { Self.isAfter($0.key.description.utf8.span, text) }
        return next > 0 && patterns[next - 1].matches(text)
    }

    /// Whether a text comes after another one, by their bytes.
    private static func isAfter(_ one: Span<UInt8>, _ other: Span<UInt8>) -> Bool {
        for index in 0..<min(one.count, other.count) where one[index] != other[index] {
            return one[index] > other[index]
        }
        return one.count > other.count
    }
}
