import CredentialStore
import Cryptography
import OAuth

/// Tombstones of one tenant as earlier builds wrote them: many in one record, each with the version up to which a record of the
/// tenant has ended. A record belongs to the page that the first byte of its digest names. This build only reads pages.
final class TombstonePage: Cacheable {
    /// Which page of which tenant.
    struct ID: Hashable, Sendable {
        let tenant: TenantName
        let number: UInt8

        /// The page of a record's tombstone.
        init(of record: RecordID) {
            tenant = record.tenant
            number = UInt8(truncatingIfNeeded: TombstonePage.digest(record))
        }

        var recordID: RecordID { RecordID(.tombstones, tenant, key: Hex.encode([number])) }
    }

    /// The format of the content: this byte, then 16 bytes of digest and 8 bytes of version for each tombstone.
    private static let format: UInt8 = 1
    private static let entrySize = 24

    /// The version of the record.
    let version: Int64
    private let ended: [UInt128: Int64]

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
            let version = bytes[start + 16..<start + 24].reduce(UInt64(0)) { $0 << 8 | UInt64($1) }
            ended[digest] = Int64(bitPattern: version)
        }
        version = record.version
        self.ended = ended
    }

    /// The memory that the tombstones take, in bytes. A dictionary is half empty at worst.
    var memorySize: Int { MemorySize.bytes(2 * Self.entrySize * ended.count) }

    /// Up to which version the record has ended; 0 where it has no tombstone.
    func lastEnded(_ record: RecordID) -> Int64 { ended[Self.digest(record)] ?? 0 }

    private static func digest(_ id: RecordID) -> UInt128 {
        id.tombstoneDigest.reduce(UInt128(0)) { $0 << 8 | UInt128($1) }
    }
}
