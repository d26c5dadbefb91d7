internal import OAuth

/// Which entries of the log do not count any more, as the content of a file.
struct LogState: Equatable {
    private static let mark = "TBls"
    private static let format: UInt8 = 1

    /// See `LogBounds`.
    var trimmed: Int64 = 0
    /// The tenants that were removed, each with the last sequence at that time. Their entries up to it do not count.
    private(set) var cuts: [TenantName: Int64] = [:]

    init() {}

    /// Moves the bound, and drops the cuts that are not above it.
    mutating func trim(to sequence: Int64) {
        trimmed = sequence
        cuts = cuts.filter { $0.value > sequence }
    }

    mutating func cut(_ tenant: TenantName, at last: Int64) {
        if last > trimmed { cuts[tenant] = last }
    }

    func hides(_ placed: PlacedLogEntry) -> Bool {
        placed.sequence <= trimmed || cuts[placed.entry.tenant].map { placed.sequence <= $0 } ?? false
    }

    func encode() -> [UInt8] {
        var fields = FieldWriter()
        fields.write(trimmed)
        for (tenant, sequence) in cuts.sorted(by: { $0.key < $1.key }) {
            fields.write(tenant.description)
            fields.write(sequence)
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
            cuts[tenant] = sequence
        }
    }
}
