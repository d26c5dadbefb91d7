internal import COpenSSL

/// AES-256 in Galois/Counter Mode (NIST SP 800-38D): hides the content, and shows any change of it or of the
/// associated data.
///
/// A nonce must never be used twice with a key: that would give away the difference of two contents and the key of the
/// authentication. §8.3 of that document allows 2³² random nonces to a key.
package enum AES256GCM {
    package static let keyCount = 32
    package static let nonceCount = 12
    package static let tagCount = 16

    /// Ciphertext ‖ tag: 16 octets more than `plaintext`.
    /// - Throws: `.invalidLength` for a key or nonce of the wrong length or content of 2 GiB, else `.libraryFailure`.
    package static func seal(
        _ plaintext: SecretBytes, key: SecretBytes, nonce: [UInt8], associatedData: [UInt8]
    ) throws(CryptographyError) -> [UInt8] {
        try plaintext.withRevealed { plaintext throws(CryptographyError) in
            try seal(plaintext, key: key, nonce: nonce, associatedData: associatedData)
        }
    }

    /// Ciphertext ‖ tag: 16 octets more than `plaintext`.
    /// - Throws: `.invalidLength` for a key or nonce of the wrong length or content of 2 GiB, else `.libraryFailure`.
    package static func seal(
        _ plaintext: [UInt8], key: SecretBytes, nonce: [UInt8], associatedData: [UInt8]
    ) throws(CryptographyError) -> [UInt8] {
        try seal(plaintext.span, key: key, nonce: nonce, associatedData: associatedData)
    }

    /// What `seal` was given.
    /// - Parameter sealed: ciphertext ‖ tag.
    /// - Throws: `.authenticationFailed` when anything differs from what was sealed, `.invalidLength` as `seal`, else
    ///   `.libraryFailure`.
    package static func open(
        _ sealed: [UInt8], key: SecretBytes, nonce: [UInt8], associatedData: [UInt8]
    ) throws(CryptographyError) -> SecretBytes {
        guard sealed.count >= tagCount else { throw .authenticationFailed }
        let count = sealed.count - tagCount
        var operation = Operation()
        try operation.begin(key: key, nonce: nonce, sealing: false)
        try operation.authenticate(associatedData.span)
        // The content is decrypted before the tag is known to be right. The error leaves with the buffer, overwritten.
        return unsafe try SecretBytes(count: count) { output throws(CryptographyError) in
            unsafe try operation.process(sealed.span.extracting(first: count), into: output)
            try operation.finishOpening(tag: sealed.span.extracting(last: tagCount))
        }
    }

    private static func seal(
        _ plaintext: Span<UInt8>, key: SecretBytes, nonce: [UInt8], associatedData: [UInt8]
    ) throws(CryptographyError) -> [UInt8] {
        var operation = Operation()
        try operation.begin(key: key, nonce: nonce, sealing: true)
        try operation.authenticate(associatedData.span)
        let count = plaintext.count
        var sealed = [UInt8](repeating: 0, count: count + tagCount)
        let outcome = unsafe sealed.withUnsafeMutableBufferPointer { output -> Result<Void, CryptographyError> in
            Result { () throws(CryptographyError) in
                unsafe try operation.process(plaintext, into: UnsafeMutableBufferPointer(rebasing: output[..<count]))
                unsafe try operation.finishSealing(tag: UnsafeMutableBufferPointer(rebasing: output[count...]))
            }
        }
        try outcome.get()
        return sealed
    }

    /// One sealing or opening.
    @safe private struct Operation: ~Copyable {
        private let context: OpaquePointer

        init() {
            guard let context = unsafe EVP_CIPHER_CTX_new() else {
                preconditionFailure("libcrypto made no cipher context")
            }
            unsafe self.context = context
        }

        // Overwrites the expanded key, too.
        deinit { unsafe EVP_CIPHER_CTX_free(context) }

        mutating func begin(key: SecretBytes, nonce: [UInt8], sealing: Bool) throws(CryptographyError) {
            guard key.count == keyCount, nonce.count == nonceCount else { throw .invalidLength }
            let isReady = withCleanErrorQueue {
                key.withRevealed { key in
                    unsafe key.withUnsafeBufferPointer { key in
                        unsafe nonce.withUnsafeBufferPointer { nonce in
                            // Twelve octets are the default length of the nonce, so it needs no setting.
                            unsafe EVP_CipherInit_ex2(
                                context, algorithm.pointer, key.baseAddress, nonce.baseAddress, sealing ? 1 : 0, nil)
                        }
                    }
                }
            }
            guard isReady == 1 else { throw .libraryFailure }
        }

        mutating func authenticate(_ associatedData: Span<UInt8>) throws(CryptographyError) {
            unsafe try update(associatedData, output: nil)
        }

        mutating func process(
            _ input: Span<UInt8>, into output: UnsafeMutableBufferPointer<UInt8>
        ) throws(CryptographyError) {
            precondition(output.count == input.count, "GCM output has the length of its input")
            unsafe try update(input, output: output.baseAddress)
        }

        private mutating func update(
            _ input: Span<UInt8>, output: UnsafeMutablePointer<UInt8>?
        ) throws(CryptographyError) {
            // To EVP an empty input is the end of the message.
            if input.isEmpty { return }
            guard let length = CInt(exactly: input.count) else { throw .invalidLength }
            var written: CInt = 0
            let isDone = withCleanErrorQueue {
                unsafe input.withUnsafeBufferPointer { input in
                    unsafe EVP_CipherUpdate(context, output, &written, input.baseAddress, length)
                }
            }
            guard isDone == 1, written == length else { throw .libraryFailure }
        }

        mutating func finishSealing(tag: UnsafeMutableBufferPointer<UInt8>) throws(CryptographyError) {
            precondition(tag.count == tagCount, "a GCM tag has 16 octets")
            var unused: UInt8 = 0
            var written: CInt = 0
            let isDone = withCleanErrorQueue {
                unsafe EVP_CipherFinal_ex(context, &unused, &written) == 1
                    && EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, CInt(tagCount), tag.baseAddress) == 1
            }
            guard isDone else { throw .libraryFailure }
        }

        mutating func finishOpening(tag: Span<UInt8>) throws(CryptographyError) {
            precondition(tag.count == tagCount, "a GCM tag has 16 octets")
            // The control call takes a mutable pointer for setting and getting alike.
            var expected = [UInt8](repeating: 0, count: tagCount)
            for index in tag.indices { expected[index] = tag[index] }
            let isSet = withCleanErrorQueue {
                unsafe EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, CInt(tagCount), &expected)
            }
            guard isSet == 1 else { throw .libraryFailure }
            var unused: UInt8 = 0
            var written: CInt = 0
            let isAuthentic = withCleanErrorQueue {
                unsafe EVP_CipherFinal_ex(context, &unused, &written)
            }
            guard isAuthentic == 1 else { throw .authenticationFailed }
        }
    }

    /// Has OpenSSL look for the algorithm, which takes it about a millisecond, once in a process. Without this, whoever
    /// needs it first does so. From any thread.
    package static func prepare() { _ = algorithm }

    private static let algorithm = Algorithm()

    /// Looked up once: each implicit look-up by the older calls takes a lock that all threads share.
    ///
    /// Sendable: the object is constant, and OpenSSL permits its use by many threads at once. It lives as long as the
    /// process.
    @safe private final class Algorithm: @unchecked Sendable {
        let pointer: OpaquePointer

        init() {
            guard let fetched = unsafe EVP_CIPHER_fetch(nil, "AES-256-GCM", nil) else {
                preconditionFailure("this libcrypto offers no AES-256-GCM")
            }
            unsafe pointer = fetched
        }

        deinit { unsafe EVP_CIPHER_free(pointer) }
    }
}
