import OAuth

/// Which entries of the log do not count any more, as the content of a file.
struct LogState: Equatable {
    private static let mark = "TBls"
    private static let format: UInt8 = 1

    /// See `LogBounds`.
    var trimmed: Int64 = 0
    /// The tenants that were removed, each with the last sequence at that time. Their entries up to it do not count.
    private(set) var cuts: [TenantName: Int64] = [:]
    /// The tenants that had too many entries, each with the last one that was removed therefore. That one is a marker, and those
    /// before it do not count. A tenant has a cut or a marker, whichever was later.
    private var marks: [TenantName: Int64] = [:]

    init() {}

    /// Moves the bound, and drops the cuts that are not above it.
    mutating func trim(to sequence: Int64) {
        trimmed = sequence
        cuts = cuts.filter { $0.value > sequence }
        marks = marks.filter { $0.value > sequence }
    }

    mutating func cut(_ tenant: TenantName, at last: Int64) {
        if last > trimmed { (cuts[tenant], marks[tenant]) = (last, nil) }
    }

    /// - Parameter sequence: that of an entry of the tenant that counts.
    mutating func mark(_ tenant: TenantName, at sequence: Int64) {
        (cuts[tenant], marks[tenant]) = (nil, sequence)
    }

    /// The sequences of the markers.
    var markers: some Collection<Int64> { marks.values }

    /// Whether the entry does not count, and is no marker either.
    func hides(_ placed: PlacedLogEntry) -> Bool {
        if placed.sequence <= trimmed { return true }
        if let cut = cuts[placed.entry.tenant] { return placed.sequence <= cut }
        return marks[placed.entry.tenant].map { placed.sequence < $0 } ?? false
    }

    private func isMarker(_ placed: PlacedLogEntry) -> Bool { marks[placed.entry.tenant] == placed.sequence }

    /// Whether the entry is an entry still, with its content.
    func counts(_ placed: PlacedLogEntry) -> Bool { !hides(placed) && !isMarker(placed) }

    /// The entry as readers see it.
    func shown(_ placed: PlacedLogEntry) -> PlacedLogEntry {
        isMarker(placed) ? PlacedLogEntry(sequence: placed.sequence, entry: placed.entry.marker) : placed
    }

    func encode() -> [UInt8] {
        var fields = FieldWriter()
        fields.write(trimmed)
        for (tenant, sequence) in cuts.merging(marks, uniquingKeysWith: max).sorted(by: { $0.key < $1.key }) {
            // A marker is written twice: earlier builds, which have none, read it as a cut.
            for _ in 0..<(marks[tenant] == nil ? 1 : 2) {
                fields.write(tenant.description)
                fields.write(sequence)
            }
        }
        return FramedFile.encode(mark: Self.mark, format: Self.format, fields.bytes)
    }

    /// The flaw of a file that did not decode.
    static func flaw(_ failure: FramedFile.Failure, of bytes: [UInt8]) -> FileFlaw {
        FramedFile.flaw(failure, of: bytes, expected: nil)
    }

    init(decoding bytes: [UInt8]) throws(FramedFile.Failure) {
        var fields = FieldReader(try FramedFile.decode(bytes, mark: Self.mark, format: Self.format))
        guard let trimmed = fields.integer(Int64.self), trimmed == 0 || LogFrame.sequences.contains(trimmed) else {
            throw .damaged
        }
        self.trimmed = trimmed
        while !fields.isAtEnd {
            guard let tenant = fields.text().flatMap(TenantName.init(stored:)),
                let sequence = fields.integer(Int64.self)
            else { throw .damaged }
            if cuts[tenant] == sequence {
                mark(tenant, at: sequence)
            } else {
                (cuts[tenant], marks[tenant]) = (sequence, nil)
            }
        }
    }
}
