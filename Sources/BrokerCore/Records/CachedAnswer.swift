internal import CLinux
internal import Cryptography
internal import HTTPCodec
internal import OAuth

/// The answer of `GET /credentials` to one set of credentials, in one piece of memory with what has to be known before it
/// is sent, and found without a look at any object: what a read among a million waits for is memory.
@safe package struct CachedAnswer: CacheHint, @unchecked Sendable {
    /// What has to be known of an answer before it is sent.
    package struct Facts: BitwiseCopyable, Sendable {
        /// Until when the token is good, in milliseconds since 1970; that of `Timestamp.never` where it does not end.
        package let expires: Int64
        /// The parts' lengths, in bytes, in their order.
        fileprivate let fields: UInt32
        fileprivate let before: UInt32
        fileprivate let after: UInt32
        fileprivate let tenant: UInt8
        fileprivate let storageKey: UInt8
        fileprivate let entityTag: UInt8

        /// - Parameters:
        ///   - fields: the length of the field lines, with the empty line behind them. The entity tag's is the last.
        ///   - before: the length of the body up to the seconds that are left.
        ///   - after: the length of the body behind them.
        init(_ id: CredentialsID, expires: Timestamp, fields: Int, entityTag: Int, before: Int, after: Int) {
            self.expires = expires.milliseconds
            self.fields = UInt32(fields)
            self.before = UInt32(before)
            self.after = UInt32(after)
            tenant = UInt8(id.tenant.description.utf8.count)
            storageKey = UInt8(id.storageKey.description.utf8.count)
            self.entityTag = UInt8(entityTag)
        }

        fileprivate var answerStart: Int { MemoryLayout<Facts>.size + Int(tenant) + Int(storageKey) }
        fileprivate var answerCount: Int { Int(fields) + Int(before) + Int(after) }

        // MARK: Parts, as ranges in the answer

        /// The field lines, with the empty line behind them.
        package var fieldLines: Range<Int> { 0..<Int(fields) }
        /// The entity tag.
        package var tag: Range<Int> { Int(fields) - 4 - Int(entityTag)..<Int(fields) - 4 }
        /// The body up to the seconds that are left; all of it where the token does not end.
        package var bodyBeforeSeconds: Range<Int> { Int(fields)..<Int(fields) + Int(before) }
        /// The body behind them.
        package var bodyAfterSeconds: Range<Int> { Int(fields) + Int(before)..<answerCount }
    }

    /// Nil for none. Never written to, so that any number of threads may read it.
    private let start: UnsafeRawPointer?

    package init() { unsafe start = nil }

    /// - Parameter bytes: facts, names and answer. What this makes is good for as long as they are kept.
    init(of bytes: SecretBytes) {
        let start = unsafe UnsafeRawPointer(bytes.unownedBytes.baseAddress)
        unsafe self.start = unsafe start
        guard let start = unsafe start, bytes.count >= MemoryLayout<Facts>.size else { preconditionFailure() }
        let facts = unsafe start.loadUnaligned(as: Facts.self)
        precondition(bytes.count == facts.answerStart + facts.answerCount)
    }

    /// What stands before the answer in its memory.
    static func opening(_ id: CredentialsID, _ facts: Facts) -> [UInt8] {
        unsafe withUnsafeBytes(of: facts) { unsafe Array($0) } + id.tenant.description.utf8
            + id.storageKey.description.utf8
    }

    @inline(__always)
    fileprivate func isNamed(tenant: TenantName, storageKey: Span<UInt8>) -> Bool {
        guard let start = unsafe start else { return false }
        // It is this one, but for a few among millions: what is sent of it comes while its names are compared.
        unsafe clinux_prefetch(start, Self.mostAnswers)
        let facts = unsafe start.loadUnaligned(as: Facts.self)
        let size = MemoryLayout<Facts>.size
        let name = unsafe Self.bytes(start, size, Int(facts.tenant))
        let other = unsafe Self.bytes(start, size + name.count, Int(facts.storageKey))
        return unsafe ByteRun.equal(other.span, storageKey)
            && ByteRun.equal(name.span, tenant.description.utf8.span)
    }

    @inline(__always)
    fileprivate func withBytes<R>(_ body: (Facts, Span<UInt8>) -> R) -> R? {
        guard let start = unsafe start else { return nil }
        let facts = unsafe start.loadUnaligned(as: Facts.self)
        let bytes = unsafe Self.bytes(start, facts.answerStart, facts.answerCount)
        return unsafe body(facts, bytes.span)
    }

    /// As much as there is with a token of 700 bytes.
    private static var mostAnswers: Int { 17 * 64 }

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
