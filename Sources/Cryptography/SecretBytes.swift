internal import COpenSSL

/// Bytes that must not be seen: a key, a token, a client secret.
///
/// Copies and parts share one buffer, which is overwritten when the last of them goes. Nothing that prints a value shows
/// its content; whoever needs it says so by a name that contains `revealed`.
@safe @usableFromInline package struct SecretBytes: @unchecked Sendable {
    /// Never written to after `init`, so that any number of threads may read it.
    @safe @usableFromInline final class Storage: @unchecked Sendable {
        let bytes: UnsafeMutableBufferPointer<UInt8>

        init<E: Error>(count: Int, _ fill: (UnsafeMutableBufferPointer<UInt8>) throws(E) -> Void) throws(E) {
            unsafe bytes = .allocate(capacity: count)
            unsafe bytes.initialize(repeating: 0)
            unsafe try fill(bytes)
        }

        deinit {
            // Unlike memset, a call that the optimizer may not take for a dead store.
            unsafe OPENSSL_cleanse(bytes.baseAddress, bytes.count)
            unsafe bytes.deallocate()
        }
    }

    @usableFromInline let storage: Storage
    /// Within the storage's, so that a reader need not look there.
    @usableFromInline let bytes: UnsafeBufferPointer<UInt8>

    /// Copies `bytes`; the array that was given is the caller's to forget.
    package init(_ bytes: [UInt8]) {
        unsafe self.init(count: bytes.count) { _ = unsafe $0.update(from: bytes) }
    }

    /// Copies a secret together with what stands before it and behind it.
    package init(_ before: [UInt8], _ secret: SecretBytes, _ behind: [UInt8]) {
        unsafe self.init(count: before.count + secret.count + behind.count) { bytes in
            _ = unsafe bytes.update(fromContentsOf: before)
            _ = unsafe bytes[before.count...].update(fromContentsOf: secret.bytes)
            _ = unsafe bytes[(before.count + secret.count)...].update(fromContentsOf: behind)
        }
        extendLifetime(secret)
    }

    private init(_ storage: Storage, _ bytes: UnsafeBufferPointer<UInt8>) {
        self.storage = storage
        unsafe self.bytes = unsafe bytes
    }

    /// The UTF-8 form of `text`.
    package init(utf8 text: String) {
        self.init(Array(text.utf8))
    }

    /// Lets `fill` write the content in place, so that no other copy of it ever exists.
    @unsafe init<E: Error>(count: Int, _ fill: (UnsafeMutableBufferPointer<UInt8>) throws(E) -> Void) throws(E) {
        storage = unsafe try Storage(count: count, fill)
        unsafe bytes = UnsafeBufferPointer(storage.bytes)
    }

    /// A part of these, in the same memory, which stays until the last of both goes.
    package func extracting(_ range: Range<Int>) -> SecretBytes {
        unsafe SecretBytes(storage, bytes.extracting(range))
    }

    @inlinable package var count: Int { unsafe bytes.count }

    package var isEmpty: Bool { count == 0 }

    /// Lends the content to `body`.
    @inlinable
    package func withRevealed<R: ~Copyable, E: Error>(_ body: (Span<UInt8>) throws(E) -> R) throws(E) -> R {
        defer { extendLifetime(storage) }
        return try body(unsafe bytes.span)
    }

    /// The content, for as long as somebody keeps these or a part of them.
    @unsafe package var unownedBytes: UnsafeBufferPointer<UInt8> { unsafe bytes }

    /// A copy of the content, which nobody overwrites.
    package var revealedBytes: [UInt8] {
        defer { extendLifetime(storage) }
        return unsafe Array(bytes)
    }

    /// The content read as UTF-8, repaired where it is not.
    package var revealedText: String {
        defer { extendLifetime(storage) }
        return unsafe String(decoding: bytes, as: UTF8.self)
    }
}

extension SecretBytes: Equatable {
    /// Takes a time that depends on the lengths only.
    @usableFromInline package static func == (left: SecretBytes, right: SecretBytes) -> Bool {
        left.withRevealed { left in right.withRevealed { right in ConstantTime.equal(left, right) } }
    }
}

extension SecretBytes: CustomStringConvertible, CustomDebugStringConvertible, CustomReflectable {
    @usableFromInline package var description: String { "<secret>" }
    @usableFromInline package var debugDescription: String { description }
    @usableFromInline package var customMirror: Mirror { Mirror(self, children: []) }
}
