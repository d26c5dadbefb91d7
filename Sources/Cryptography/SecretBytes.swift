import COpenSSL

/// Bytes that must not be shown: a key, a token, a client secret.
///
/// Copies and slices share one buffer, which is overwritten when the last of them is released. Printing a value does
/// not show its content; code that reads the content calls a member whose name contains `revealed`.
@safe @usableFromInline package struct SecretBytes: Sendable {
    @safe @usableFromInline final class Storage: Sendable {
        // `nonisolated(unsafe)`: the buffer is not written to after `init`, so any number of threads may read it.
        nonisolated(unsafe) let bytes: UnsafeMutableBufferPointer<UInt8>

        init<E: Error>(count: Int, _ fill: (UnsafeMutableBufferPointer<UInt8>) throws(E) -> Void) throws(E) {
            unsafe bytes = .allocate(capacity: count)
            unsafe bytes.initialize(repeating: 0)
            unsafe try fill(bytes)
        }

        deinit {
            // Not memset, which the optimizer may remove as a dead store.
            unsafe OPENSSL_cleanse(bytes.baseAddress, bytes.count)
            unsafe bytes.deallocate()
        }
    }

    @usableFromInline let storage: Storage
    // `nonisolated(unsafe)`: part of the storage's buffer, which is not written to any more. Kept here, so that reading
    // follows one pointer less.
    @usableFromInline nonisolated(unsafe) let bytes: UnsafeBufferPointer<UInt8>

    /// Copies `bytes`. The caller's array is not overwritten.
    package init(_ bytes: [UInt8]) {
        unsafe self.init(count: bytes.count) { _ = unsafe $0.update(from: bytes) }
    }

    /// Joins the three parts in one buffer.
    package init(prefix: [UInt8], secret: SecretBytes, suffix: [UInt8]) {
        unsafe self.init(count: prefix.count + secret.count + suffix.count) { bytes in
            _ = unsafe bytes.update(fromContentsOf: prefix)
            _ = unsafe bytes[prefix.count...].update(fromContentsOf: secret.bytes)
            _ = unsafe bytes[(prefix.count + secret.count)...].update(fromContentsOf: suffix)
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

    /// Lets `fill` write the content in place, so that no second copy exists.
    @unsafe init<E: Error>(count: Int, _ fill: (UnsafeMutableBufferPointer<UInt8>) throws(E) -> Void) throws(E) {
        storage = unsafe try Storage(count: count, fill)
        unsafe bytes = UnsafeBufferPointer(storage.bytes)
    }

    /// A slice that shares the buffer.
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

    /// The content. The pointer is valid while a copy or slice of this value exists.
    @unsafe package var unownedBytes: UnsafeBufferPointer<UInt8> { unsafe bytes }

    /// A copy of the content, which is not overwritten when it is released.
    package var revealedBytes: [UInt8] {
        defer { extendLifetime(storage) }
        return unsafe Array(bytes)
    }

    /// The content as UTF-8, with U+FFFD in place of invalid sequences.
    package var revealedText: String {
        defer { extendLifetime(storage) }
        return unsafe String(decoding: bytes, as: UTF8.self)
    }
}

extension SecretBytes: Equatable {
    /// Takes a time that depends only on the lengths.
    @usableFromInline package static func == (left: SecretBytes, right: SecretBytes) -> Bool {
        left.withRevealed { left in right.withRevealed { right in ConstantTime.equal(left, right) } }
    }
}

extension SecretBytes: CustomStringConvertible, CustomDebugStringConvertible, CustomReflectable {
    @usableFromInline package var description: String { "<secret>" }
    @usableFromInline package var debugDescription: String { description }
    @usableFromInline package var customMirror: Mirror { Mirror(self, children: []) }
}
