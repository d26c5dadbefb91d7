import Cryptography
package import OAuth

/// Consecutive entries of one chain of the audit log. One commit writes them, and no commit changes them.
///
/// The hash of an entry is the SHA-256 digest of the hash of the entry before it and of the entry's line, without its
/// newline. The hash before the first entry of a chain is 32 zero octets.
package struct AuditBlock: Sendable, Equatable {
    /// The name of the chain: 1 to 64 characters of `[a-z0-9-]`. Only one process writes a chain.
    package let chain: String
    /// The number of the first entry of the block. The entries of a chain are numbered from 1.
    package let first: Int64
    /// The number of the last entry of the block.
    package let last: Int64
    /// When the block was written.
    package let time: Timestamp
    /// One line for each entry, each with a newline behind it: a JSON object.
    package let body: [UInt8]
    /// The hash of the last entry.
    package let hash: [UInt8]
    /// Authenticates the chain up to the last entry; see `signedMessage`. Nil for most blocks.
    package let signature: [UInt8]?

    package init(
        chain: String, first: Int64, last: Int64, time: Timestamp, body: [UInt8], hash: [UInt8], signature: [UInt8]?
    ) {
        self.chain = chain
        self.first = first
        self.last = last
        self.time = time
        self.body = body
        self.hash = hash
        self.signature = signature
    }

    /// The greatest length of a chain's name, in bytes.
    static let longestName = 64

    /// Whether a process gives a chain such a name.
    static func isName(_ name: some Collection<UInt8>) -> Bool {
        (1...longestName).contains(name.count)
            && name.allSatisfy { $0.isLowercaseLetter || $0.isDigit || $0 == UInt8(ascii: "-") }
    }

    /// The hash before the first entry of a chain.
    static let beginning = [UInt8](repeating: 0, count: SHA256.digestCount)

    /// The label of signatures; see `Keyring.authenticationCode`.
    static let signatureLabel = "audit"

    static func hash(of line: some Sequence<UInt8>, after previous: [UInt8]) -> [UInt8] {
        SHA256.digest(previous + line)
    }

    /// What the signature of a block authenticates.
    static func signedMessage(_ head: AuditHead) -> [UInt8] {
        var fields = FieldWriter(capacity: 128)
        fields.write(head.chain)
        fields.write(head.sequence)
        fields.write(head.hash)
        return fields.bytes
    }

    /// The lines of the body, without their newlines; nil when the last newline is missing.
    var lines: [ArraySlice<UInt8>]? {
        guard body.last == UInt8(ascii: "\n") else { return nil }
        return body.dropLast().split(separator: UInt8(ascii: "\n"), omittingEmptySubsequences: false)
    }

    var end: AuditHead { AuditHead(chain: chain, sequence: last, hash: hash) }
}

/// An entry of a chain, with its hash, which stands for all entries of the chain up to it.
package struct AuditHead: Sendable, Equatable {
    package let chain: String
    package let sequence: Int64
    package let hash: [UInt8]

    package init(chain: String, sequence: Int64, hash: [UInt8]) {
        self.chain = chain
        self.sequence = sequence
        self.hash = hash
    }
}
