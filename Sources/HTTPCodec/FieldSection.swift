/// The checked header fields of a request.
///
/// A section depends only on the bytes of the fields and on the protocol version, so two requests with the same bytes
/// have equal sections. It is valid until its parser, or a parser with the same `FieldSections`, reads the next head.
/// For one thread.
package final class FieldSection {
    /// The field lines. Their offsets count from the first byte of the fields.
    package private(set) var lines: [FieldLine] = []
    /// Bytes from the first field to the end of the empty line.
    private(set) var length = 0
    private var names: UInt16 = 0
    private(set) var framing = BodyFraming.none
    private(set) var keepsAlive = false
    private(set) var expectsContinue = false
    // Private to this module, like `heldAt`. Swift checks exclusive access at run time for each property that other
    // modules can see.
    private var conclusion: SIMD4<UInt64>?
    private let heldAt: Int?
    /// A copy of the bytes; empty if the section is not cached.
    fileprivate let text: OutputBuffer

    /// - Parameter position: the position in `FieldSections`; nil for a section that is not cached.
    init(position: Int? = nil) {
        heldAt = position
        text = OutputBuffer(capacity: position == nil ? 1 : 256)
    }

    /// A value that a handler computed from these fields alone, such as the digest of an API key. Nil until a handler
    /// sets it.
    package var note: SIMD4<UInt64>? {
        get { conclusion }
        set { conclusion = newValue }
    }

    /// The position in `FieldSections`; nil if the section is not cached.
    package var position: Int? { heldAt }

    /// Replaces the fields of this section, and removes the note.
    /// - Parameter lines: the new lines. They are exchanged for the section's old lines, so that the caller can reuse
    ///   their memory.
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

    /// Whether there is a field with this name.
    func has(_ name: FieldName) -> Bool { names & name.bit != 0 }
}

/// A cache of the header fields of a worker's recent requests. Fields with the same bytes are not parsed again.
///
/// Most callers send the same fields with each request, on all their connections. An entry is what `RequestParser`
/// found in its bytes, so it never becomes outdated. The number and the size of the entries are bounded. Their texts
/// contain API keys, so `wipe` overwrites them. For one thread.
package final class FieldSections {
    /// The most sections in the cache.
    static let capacity = 64
    /// The longest text in the cache, in bytes: with a JSON Web Token as well, as Kubernetes issues them.
    static let longest = 2048

    private let sections = (0..<capacity).map { FieldSection(position: $0) }
    private let seed = UInt64.random(in: .min ... .max)
    /// The position of the section that was added last. A new connection tries this position first.
    private(set) var latest = 0

    package init() {}

    /// The section at this position, if `bytes` begins with its text. The time does not depend on where the two differ,
    /// because otherwise a client could find out another client's API key by trial.
    @inline(__always)
    func find(_ bytes: Span<UInt8>, at position: Int) -> FieldSection? {
        let section = sections[position]
        return section.text.withBytes { ByteRun.begins(bytes, withSecret: $0) } ? section : nil
    }

    /// A section of the cache for this text, whose fields the caller must then set; nil if the text is too long.
    func makeRoom(for text: Span<UInt8>) -> FieldSection? {
        guard text.count <= Self.longest else { return nil }
        latest = Int(truncatingIfNeeded: ByteRun.hash(text, seed: seed) % UInt64(Self.capacity))
        let section = sections[latest]
        section.text.removeAll()
        section.text.wipe()
        section.text.append(text)
        return section
    }

    /// Removes all sections and overwrites their texts.
    package func wipe() {
        for section in sections {
            section.text.removeAll()
            section.text.wipe()
        }
    }
}
