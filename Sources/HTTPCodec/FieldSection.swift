/// What the header fields of a request say, checked.
///
/// It depends on the bytes of the fields and on the protocol version alone, so that two requests with the same bytes have
/// the same section. It holds until its parser, or a parser with the same `FieldSections`, reads the next head. For one
/// thread.
package final class FieldSection {
    /// The field lines. Their offsets count from the first byte of the fields.
    package private(set) var lines: [FieldLine] = []
    /// Bytes from the first field to the end of the empty line.
    private(set) var length = 0
    private var names: UInt16 = 0
    private(set) var framing = BodyFraming.none
    private(set) var keepsAlive = false
    private(set) var expectsContinue = false
    // Of this module alone, like `heldAt`: each access to a property that other modules see is checked for exclusiveness.
    private var conclusion: SIMD4<UInt64>?
    private let heldAt: Int?
    /// A copy of the bytes; empty where the section is not held.
    fileprivate let text: OutputBuffer

    /// - Parameter position: in `FieldSections`; nil for a section that is not held.
    init(position: Int? = nil) {
        heldAt = position
        text = OutputBuffer(capacity: position == nil ? 1 : 256)
    }

    /// What a handler has concluded from these fields alone, such as the digest of an API key. Nil until a handler sets it.
    package var note: SIMD4<UInt64>? {
        get { conclusion }
        set { conclusion = newValue }
    }

    /// The position in `FieldSections`; nil where the section is not held.
    package var position: Int? { heldAt }

    /// Sets what the fields say. What they said before, and its note, are gone.
    /// - Parameter lines: exchanged for those that the section had, so that their memory is used again.
    func set(
        _ lines: inout [FieldLine], names: UInt16, length: Int, framing: BodyFraming, keepsAlive: Bool,
        expectsContinue: Bool
    ) {
        swap(&self.lines, &lines)
        self.names = names
        self.length = length
        self.framing = framing
        self.keepsAlive = keepsAlive
        self.expectsContinue = expectsContinue
        conclusion = nil
    }

    /// Whether there is a field of that name.
    func has(_ name: FieldName) -> Bool { names & name.bit != 0 }
}

/// The header fields that a worker's requests had lately, so that those which come again byte for byte are not read again.
///
/// Most callers send the same fields with each request, and many connections of one caller send the same ones. An entry
/// says what `RequestParser` found in its bytes, which nothing can change, so that it never becomes wrong. The entries are
/// bounded in number and in size, and `wipe` overwrites their texts: there are API keys in them. For one thread.
package final class FieldSections {
    /// How many sections are held.
    static let capacity = 64
    /// The longest text that is held, in bytes.
    static let longest = 1024

    private let sections = (0..<capacity).map { FieldSection(position: $0) }
    private let seed = UInt64.random(in: .min ... .max)
    /// The position of the section that was held last: the best guess for a new connection.
    private(set) var latest = 0

    package init() {}

    /// The section at that position, where `bytes` begins with its text. Takes a time that does not depend on where the
    /// two differ: one client could otherwise find out another client's API key by trying.
    @inline(__always)
    func find(_ bytes: Span<UInt8>, at position: Int) -> FieldSection? {
        let section = sections[position]
        return section.text.withBytes { ByteRun.begins(bytes, withSecret: $0) } ? section : nil
    }

    /// The section for that text, to be set in place of what it was before; nil where the text is too long.
    func makeRoom(for text: Span<UInt8>) -> FieldSection? {
        guard text.count <= Self.longest else { return nil }
        latest = Int(truncatingIfNeeded: ByteRun.hash(text, seed: seed) % UInt64(Self.capacity))
        let section = sections[latest]
        section.text.removeAll()
        section.text.wipe()
        section.text.append(text)
        return section
    }

    /// Forgets all sections and overwrites their texts.
    package func wipe() {
        for section in sections {
            section.text.removeAll()
            section.text.wipe()
        }
    }
}
