/// The field names that the server or its routes read in every request. A name is recognised once, when its line is
/// read.
package enum FieldName: UInt8, Sendable {
    /// Any other name.
    case other
    case host, connection, contentLength, transferEncoding, expect
    case authorization, ifNoneMatch, prefer, tenant
    /// One of those that ask for a proof (RFC 9449): `DPoP-Htm`, `DPoP-Htu`.
    case proof

    /// A bit for each name.
    var bit: UInt16 { 1 << UInt16(rawValue) }

    /// The name in `range`, compared without case.
    init(_ bytes: Span<UInt8>, _ range: Range<Int>) {
        let start = range.lowerBound
        // The length alone distinguishes these names from nearly all others.
        switch range.count {
        case 4 where ByteRun.has("host", bytes, at: start): self = .host
        case 6 where ByteRun.has("expect", bytes, at: start): self = .expect
        case 6 where ByteRun.has("prefer", bytes, at: start): self = .prefer
        case 8 where ByteRun.has("x-tenant", bytes, at: start): self = .tenant
        case 8 where ByteRun.has("dpop-htm", bytes, at: start): self = .proof
        case 8 where ByteRun.has("dpop-htu", bytes, at: start): self = .proof
        case 10 where ByteRun.has("connection", bytes, at: start): self = .connection
        case 13 where ByteRun.has("authorization", bytes, at: start): self = .authorization
        case 13 where ByteRun.has("if-none-match", bytes, at: start): self = .ifNoneMatch
        case 14 where ByteRun.has("content-length", bytes, at: start): self = .contentLength
        case 17 where ByteRun.has("transfer-encoding", bytes, at: start): self = .transferEncoding
        default: self = .other
        }
    }
}
