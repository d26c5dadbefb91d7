internal import CLinux
internal import Cryptography
internal import HTTPCodec
internal import OAuth

/// The answer of `GET /credentials` to one set of credentials, in one piece of memory with what a warm read has to know
/// before it sends it, and found without a look at any object: what a warm read among a million waits for is memory.
@safe package struct CachedAnswer: CacheHint, @unchecked Sendable {
    /// What a warm read has to know.
    package struct Facts: BitwiseCopyable, Sendable {
        /// Until when the token is good, in milliseconds since 1970; that of `Timestamp.never` where it does not end.
        package let expires: Int64
        /// The stored record's version.
        package let version: Int64
        fileprivate let count: UInt32
        fileprivate let placeOfSeconds: UInt32
        fileprivate let tenantCount: UInt8
        fileprivate let storageKeyCount: UInt8

        /// Where the digits of the seconds end in the answer.
        package var secondsEnd: Int { Int(placeOfSeconds) }

        fileprivate var namesCount: Int { Int(tenantCount) + Int(storageKeyCount) }
    }

    /// Nil for none. Never written to, so that any number of threads may read it.
    private let start: UnsafeRawPointer?

    package init() { unsafe start = nil }

    /// - Parameter bytes: the opening of an answer and all of it. Whoever keeps what this makes keeps them as well.
    init(of bytes: SecretBytes) {
        let start = unsafe UnsafeRawPointer(bytes.unownedBytes.baseAddress)
        unsafe self.start = unsafe start
        guard let start = unsafe start, bytes.count >= Self.factsSize else { preconditionFailure() }
        let facts = unsafe start.loadUnaligned(as: Facts.self)
        precondition(bytes.count == Self.factsSize + facts.namesCount + Int(facts.count))
    }

    /// What stands before the answer in its memory.
    /// - Parameters:
    ///   - count: the answer's length.
    ///   - secondsEnd: where the digits of the seconds end in it.
    static func opening(_ id: CredentialsID, expires: Int64, version: Int64, count: Int, secondsEnd: Int) -> [UInt8] {
        let (tenant, storageKey) = (id.tenant.description.utf8, id.storageKey.description.utf8)
        let facts = Facts(
            expires: expires, version: version, count: UInt32(count), placeOfSeconds: UInt32(secondsEnd),
            tenantCount: UInt8(tenant.count), storageKeyCount: UInt8(storageKey.count))
        return unsafe withUnsafeBytes(of: facts) { unsafe Array($0) } + tenant + storageKey
    }

    @inline(__always)
    fileprivate func isNamed(tenant: TenantName, storageKey: Span<UInt8>) -> Bool {
        guard let start = unsafe start else { return false }
        // It is this one, but for a few among millions: what is sent of it comes while its names are compared.
        unsafe clinux_prefetch(start, Self.mostAnswers)
        let facts = unsafe start.loadUnaligned(as: Facts.self)
        let name = unsafe Self.bytes(start, Self.factsSize, Int(facts.tenantCount))
        let other = unsafe Self.bytes(start, Self.factsSize + name.count, Int(facts.storageKeyCount))
        return unsafe ByteRun.equal(other.span, storageKey)
            && ByteRun.equal(name.span, tenant.description.utf8.span)
    }

    @inline(__always)
    fileprivate func withBytes<R>(_ body: (Facts, Span<UInt8>) -> R) -> R? {
        guard let start = unsafe start else { return nil }
        let facts = unsafe start.loadUnaligned(as: Facts.self)
        let bytes = unsafe Self.bytes(start, Self.factsSize + facts.namesCount, Int(facts.count))
        return unsafe body(facts, bytes.span)
    }

    /// As much as there is with a token of 700 bytes.
    private static var mostAnswers: Int { 17 * 64 }

    private static var factsSize: Int { MemoryLayout<Facts>.size }

    @inline(__always)
    private static func bytes(_ start: UnsafeRawPointer, _ offset: Int, _ count: Int) -> UnsafeBufferPointer<UInt8> {
        unsafe UnsafeBufferPointer(start: (start + offset).assumingMemoryBound(to: UInt8.self), count: count)
    }
}

// What a hint leads to is there for as long as the entry is in the shard, so that it is followed here alone, where the
// shard is at hand.
extension CacheShard where Value.Hint == CachedAnswer {
    /// The slot and the place of the credentials that a text names, where they have an answer.
    @inline(__always)
    func find(_ hash: Int, tenant: TenantName, storageKey: Span<UInt8>) -> (slot: Int, place: Int)? {
        find(hash) { $0.isNamed(tenant: tenant, storageKey: storageKey) }
    }

    /// Lends the answer that stands at that place; nil where none does.
    @inline(__always)
    func withAnswer<R>(_ place: Int, _ body: (CachedAnswer.Facts, Span<UInt8>) -> R) -> R? {
        hint(place).withBytes(body)
    }
}
