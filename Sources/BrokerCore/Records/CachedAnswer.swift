import CLinux
import Cryptography
import HTTPCodec
import OAuth

/// The encoded answer of `GET /credentials` for one set of credentials, in one piece of memory with the facts that are needed
/// before it is sent. A look-up follows one pointer and no reference to an object: with a million entries, memory access is
/// what a read waits for.
@safe package struct CachedAnswer: CacheHint, @unchecked Sendable {
    /// The facts that are needed before an answer is sent.
    package struct Facts: BitwiseCopyable, Sendable {
        /// When the token expires, in milliseconds since 1970; the value of `Timestamp.never` where it does not.
        package let expires: Int64
        /// The parts' lengths, in bytes, in their order.
        fileprivate let fields: UInt32
        fileprivate let before: UInt32
        fileprivate let after: UInt32
        fileprivate let tenant: UInt8
        fileprivate let storageKey: UInt8
        fileprivate let entityTag: UInt8

        /// - Parameters:
        ///   - fields: the length of the field lines, with the empty line after them. The entity tag is the last field.
        ///   - before: the length of the body before the value of `expires_in`.
        ///   - after: the length of the body after it.
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

        /// The field lines, with the empty line after them.
        package var fieldLines: Range<Int> { 0..<Int(fields) }
        /// The entity tag.
        package var tag: Range<Int> { Int(fields) - 4 - Int(entityTag)..<Int(fields) - 4 }
        /// The body before the value of `expires_in`; where the token does not expire, with its `null`.
        package var bodyBeforeSeconds: Range<Int> { Int(fields)..<Int(fields) + Int(before) }
        /// The body after that.
        package var bodyAfterSeconds: Range<Int> { Int(fields) + Int(before)..<answerCount }
    }

    /// Nil where there is no answer. The memory is never written to, so that any number of threads may read it.
    private let start: UnsafeRawPointer?

    package init() { unsafe start = nil }

    /// - Parameter bytes: facts, names and answer. They must exist for as long as the value is used.
    init(of bytes: SecretBytes) {
        let start = unsafe UnsafeRawPointer(bytes.unownedBytes.baseAddress)
        unsafe self.start = unsafe start
        guard let start = unsafe start, bytes.count >= MemoryLayout<Facts>.size else { preconditionFailure() }
        let facts = unsafe start.loadUnaligned(as: Facts.self)
        precondition(bytes.count == facts.answerStart + facts.answerCount)
    }

    /// The bytes before the answer: the facts and the names.
    static func opening(_ id: CredentialsID, _ facts: Facts) -> [UInt8] {
        unsafe withUnsafeBytes(of: facts) { unsafe Array($0) } + id.tenant.description.utf8
            + id.storageKey.description.utf8
    }

    @inline(__always)
    fileprivate func isNamed(tenant: TenantName, storageKey: Span<UInt8>) -> Bool {
        guard let start = unsafe start else { return false }
        // Nearly always the names are equal, so the answer is loaded while they are compared.
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

    /// The length of an answer with a token of 700 bytes, in bytes.
    private static var mostAnswers: Int { 17 * 64 }

    @inline(__always)
    private static func bytes(_ start: UnsafeRawPointer, _ offset: Int, _ count: Int) -> UnsafeBufferPointer<UInt8> {
        unsafe UnsafeBufferPointer(start: (start + offset).assumingMemoryBound(to: UInt8.self), count: count)
    }
}

// A hint's memory exists for as long as the entry is in the shard. So the pointer is followed only here, under the shard's
// lock.
extension CacheShard where Value.Hint == CachedAnswer {
    /// The slot and the place in the hash table of the credentials that a text names; nil where they have no answer.
    @inline(__always)
    func find(_ hash: Int, tenant: TenantName, storageKey: Span<UInt8>) -> (slot: Int, place: Int)? {
        find(hash) { $0.isNamed(tenant: tenant, storageKey: storageKey) }
    }

    /// Calls `body` with the answer at that place; nil where there is none.
    @inline(__always)
    func withAnswer<R>(_ place: Int, _ body: (CachedAnswer.Facts, Span<UInt8>) -> R) -> R? {
        hint(place).withBytes(body)
    }
}
