internal import Cryptography
internal import HTTPCodec
internal import OAuth

/// The answer of `GET /credentials` to one set of credentials, in one piece of memory with what a warm read has to know
/// before it sends it, and found without a look at any object: what a warm read among a million waits for is memory.
@safe package struct CachedAnswer: CacheHint, @unchecked Sendable {
    /// What a warm read has to know.
    package struct Facts: BitwiseCopyable, Sendable {
        /// Until when the token is good, in milliseconds since 1970.
        package let expires: Int64
        /// The stored record's version.
        package let version: Int64
        fileprivate let count: UInt32
        fileprivate let placeOfSeconds: UInt32
        fileprivate let tenantCount: UInt8
        fileprivate let storageKeyCount: UInt8

        /// Where the digits of the seconds end in the answer.
        package var secondsEnd: Int { Int(placeOfSeconds) }
    }

    /// Nil for none. Never written to, so that any number of threads may read it.
    private let start: UnsafeRawPointer?

    package init() { unsafe start = nil }

    /// - Parameter bytes: that begin with the opening of an answer. Whoever keeps what this makes keeps them as well.
    init(of bytes: SecretBytes) {
        unsafe start = unsafe UnsafeRawPointer(bytes.unownedBytes.baseAddress)
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

    /// Whether it is the answer to the credentials that a text names.
    @inline(__always)
    func isNamed(tenant: TenantName, storageKey: Span<UInt8>) -> Bool {
        guard let start = unsafe start else { return false }
        let facts = unsafe start.loadUnaligned(as: Facts.self)
        let name = unsafe Self.bytes(start, Self.factsSize, Int(facts.tenantCount))
        let other = unsafe Self.bytes(start, Self.factsSize + name.count, Int(facts.storageKeyCount))
        return unsafe ByteRun.equal(other.span, storageKey)
            && ByteRun.equal(name.span, tenant.description.utf8.span)
    }

    /// Lends it. What it was made of is there until then.
    @inline(__always)
    func withBytes<R>(_ body: (Facts, Span<UInt8>) -> R) -> R? {
        guard let start = unsafe start else { return nil }
        let facts = unsafe start.loadUnaligned(as: Facts.self)
        let names = Int(facts.tenantCount) + Int(facts.storageKeyCount)
        let bytes = unsafe Self.bytes(start, Self.factsSize + names, Int(facts.count))
        return unsafe body(facts, bytes.span)
    }

    private static var factsSize: Int { MemoryLayout<Facts>.size }

    @inline(__always)
    private static func bytes(_ start: UnsafeRawPointer, _ offset: Int, _ count: Int) -> UnsafeBufferPointer<UInt8> {
        unsafe UnsafeBufferPointer(start: (start + offset).assumingMemoryBound(to: UInt8.self), count: count)
    }
}
