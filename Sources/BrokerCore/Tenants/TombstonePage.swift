internal import CredentialStore
internal import Cryptography
internal import OAuth

/// Tombstones of one tenant that are in one record: each says up to which version a record of the tenant has ended. A record
/// belongs to the page that the first byte of its digest names.
final class TombstonePage: Cacheable {
    /// Which page of which tenant.
    struct ID: Hashable, Sendable {
        let tenant: TenantName
        let number: UInt8

        init(tenant: TenantName, number: UInt8) {
            self.tenant = tenant
            self.number = number
        }

        /// The page of a record's tombstone.
        init(of record: RecordID) {
            self.init(tenant: record.tenant, number: UInt8(truncatingIfNeeded: TombstonePage.digest(record)))
        }

        /// Nil for a record that is not a page.
        init?(_ id: RecordID) {
            guard id.kind == .tombstones, let bytes = Hex.decode(id.key), bytes.count == 1 else { return nil }
            self.init(tenant: id.tenant, number: bytes[0])
        }

        var recordID: RecordID { RecordID(.tombstones, tenant, key: Hex.encode([number])) }
    }

    /// The format of the content: this byte, then 16 bytes of digest and 8 bytes of version for each tombstone.
    private static let format: UInt8 = 1
    private static let entrySize = 24

    /// The version of the record; 0 where there is none.
    let version: Int64
    private let ended: [UInt128: Int64]

    init(version: Int64, ended: [UInt128: Int64] = [:]) {
        self.version = version
        self.ended = ended
    }

    /// - Throws: `damaged` for a record that this build cannot read.
    init(_ record: OpenRecord) throws(StoreError) {
        let bytes = record.content.revealedBytes
        guard bytes.first == Self.format, bytes.count % Self.entrySize == 1 else {
            throw .damaged("the tombstones '\(record.id.key)' of tenant \(record.id.tenant)")
        }
        var ended: [UInt128: Int64] = [:]
        ended.reserveCapacity(bytes.count / Self.entrySize)
        for start in stride(from: 1, to: bytes.count, by: Self.entrySize) {
            let digest = bytes[start..<start + 16].reduce(UInt128(0)) { $0 << 8 | UInt128($1) }
            ended[digest] = Int64(bigEndian: bytes[start + 16..<start + 24])
        }
        version = record.version
        self.ended = ended
    }

    /// The memory that the tombstones take, in bytes. A dictionary is half empty at worst.
    var memorySize: Int { MemorySize.bytes(2 * Self.entrySize * ended.count) }

    /// Up to which version the record has ended; 0 where it has no tombstone.
    func lastEnded(_ record: RecordID) -> Int64 { ended[Self.digest(record)] ?? 0 }

    /// The page with further tombstones.
    func adding(_ tombstones: [(id: RecordID, version: Int64)], version: Int64) -> TombstonePage {
        var ended = ended
        for tombstone in tombstones {
            ended[Self.digest(tombstone.id), default: 0].rise(to: tombstone.version)
        }
        return TombstonePage(version: version, ended: ended)
    }

    func record(_ id: ID) -> OpenRecord {
        var content = [Self.format]
        content.reserveCapacity(1 + Self.entrySize * ended.count)
        for (digest, version) in ended {
            for shift in stride(from: 120, through: 0, by: -8) {
                content.append(UInt8(truncatingIfNeeded: digest >> shift))
            }
            content += version.bigEndianBytes
        }
        return OpenRecord(id: id.recordID, version: version, content: SecretBytes(content))
    }

    private static func digest(_ id: RecordID) -> UInt128 {
        SHA256.digest(Array("\(id.kind.rawValue) \(id.key)".utf8)).prefix(16).reduce(UInt128(0)) {
            $0 << 8 | UInt128($1)
        }
    }
}

/// The high-water mark of a tenant's tombstones: the least version that each page has. A page with a lower version was put back.
final class TombstoneMark: Cacheable {
    /// The format of the content: this byte, then 8 bytes for each page.
    private static let format: UInt8 = 1
    private static let pages = 256

    /// The version of the record; 0 where there is none.
    let version: Int64
    /// By the numbers of the pages; 0 for a page that does not exist.
    let pages: [Int64]

    /// The mark of a tenant without tombstones.
    static let none = TombstoneMark(version: 0, pages: Array(repeating: 0, count: pages))

    private init(version: Int64, pages: [Int64]) {
        self.version = version
        self.pages = pages
    }

    /// - Throws: `damaged` for a record that this build cannot read.
    init(_ record: OpenRecord) throws(StoreError) {
        let bytes = record.content.revealedBytes
        guard bytes.first == Self.format, bytes.count == 1 + 8 * Self.pages else {
            throw .damaged("the mark of the tombstones of tenant \(record.id.tenant)")
        }
        version = record.version
        pages = (0..<Self.pages).map { Int64(bigEndian: bytes[1 + 8 * $0..<9 + 8 * $0]) }
    }

    static func recordID(_ tenant: TenantName) -> RecordID { RecordID(.tombstoneMark, tenant) }

    /// The mark with the versions that these pages have now.
    func with(_ versions: [UInt8: Int64], version: Int64) -> TombstoneMark {
        var pages = pages
        for (number, version) in versions { pages[Int(number)] = version }
        return TombstoneMark(version: version, pages: pages)
    }

    func record(_ tenant: TenantName) -> OpenRecord {
        OpenRecord(
            id: Self.recordID(tenant), version: version,
            content: SecretBytes([Self.format] + pages.flatMap(\.bigEndianBytes)))
    }
}

extension Int64 {
    fileprivate init(bigEndian bytes: ArraySlice<UInt8>) {
        self = Int64(bitPattern: bytes.reduce(UInt64(0)) { $0 << 8 | UInt64($1) })
    }

    fileprivate var bigEndianBytes: [UInt8] {
        stride(from: 56, through: 0, by: -8).map { UInt8(truncatingIfNeeded: self >> $0) }
    }

    fileprivate mutating func rise(to other: Int64) { self = Swift.max(self, other) }
}
