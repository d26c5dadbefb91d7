/// Writes fields one after another: integers in network order, byte strings behind their length. Two different lists of
/// fields never have the same octets.
struct FieldWriter {
    private(set) var bytes: [UInt8] = []

    /// - Parameter capacity: the expected number of octets.
    init(capacity: Int = 0) {
        bytes.reserveCapacity(capacity)
    }

    mutating func write(_ value: some FixedWidthInteger) {
        for shift in stride(from: value.bitWidth - 8, through: 0, by: -8) {
            bytes.append(UInt8(truncatingIfNeeded: value >> shift))
        }
    }

    mutating func write(_ value: [UInt8]) {
        write(UInt32(value.count))
        bytes += value
    }

    mutating func write(_ value: String) {
        write(UInt32(value.utf8.count))
        bytes.append(contentsOf: value.utf8)
    }

    mutating func write(optional value: [UInt8]?) {
        write(UInt8(value == nil ? 0 : 1))
        if let value { write(value) }
    }

    mutating func write(optional value: Int64?) {
        write(UInt8(value == nil ? 0 : 1))
        if let value { write(value) }
    }

    /// Writes octets without their length, which the reader must know.
    mutating func write(bare value: [UInt8]) {
        bytes += value
    }
}

/// Reads the fields that `FieldWriter` wrote. Each method returns nil when the octets end too soon or have no form that
/// a writer makes.
struct FieldReader {
    private var rest: ArraySlice<UInt8>

    init(_ bytes: ArraySlice<UInt8>) {
        rest = bytes
    }

    var isAtEnd: Bool { rest.isEmpty }

    mutating func bare(_ count: Int) -> [UInt8]? {
        guard rest.count >= count else { return nil }
        defer { rest = rest.dropFirst(count) }
        return Array(rest.prefix(count))
    }

    mutating func integer<T: FixedWidthInteger>(_ type: T.Type = T.self) -> T? {
        bare(T.bitWidth / 8).map { $0.reduce(0) { $0 << 8 | T(truncatingIfNeeded: $1) } }
    }

    mutating func bytes() -> [UInt8]? {
        integer(UInt32.self).flatMap { bare(Int($0)) }
    }

    mutating func text() -> String? {
        bytes().flatMap { String(validating: $0, as: UTF8.self) }
    }

    mutating func optionalBytes() -> [UInt8]?? {
        optional { $0.bytes() }
    }

    mutating func optionalInteger() -> Int64?? {
        optional { $0.integer(Int64.self) }
    }

    private mutating func optional<T>(_ read: (inout FieldReader) -> T?) -> T?? {
        switch integer(UInt8.self) {
        case 0: .some(nil)
        case 1: read(&self).map { .some($0) }
        default: nil
        }
    }
}
