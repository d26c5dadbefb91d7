import COpenSSL

/// AES-256 in Galois/Counter Mode (NIST SP 800-38D): encrypts the content, and detects any change of the content or of
/// the associated data.
///
/// A nonce must never be used twice with one key: the difference of the two contents and the authentication key would
/// leak. NIST SP 800-38D §8.3 allows 2³² random nonces per key.
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

    /// The plaintext that was given to `seal`.
    /// - Parameter sealed: ciphertext ‖ tag.
    /// - Throws: `.authenticationFailed` when `sealed`, the key, the nonce or the associated data differ from those of
    ///   `seal`; `.invalidLength` as `seal`; else `.libraryFailure`.
    package static func open(
        _ sealed: [UInt8], key: SecretBytes, nonce: [UInt8], associatedData: [UInt8]
    ) throws(CryptographyError) -> SecretBytes {
        guard sealed.count >= tagCount else { throw .authenticationFailed }
        let count = sealed.count - tagCount
        var operation = Operation()
        try operation.begin(key: key, nonce: nonce, sealing: false)
        try operation.authenticate(associatedData.span)
        // GCM decrypts before it can check the tag. When the tag is wrong, the buffer is overwritten and freed as the
        // error is thrown, so that no caller sees unauthenticated content.
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

        // EVP_CIPHER_CTX_free overwrites the expanded key as well.
        deinit { unsafe EVP_CIPHER_CTX_free(context) }

        mutating func begin(key: SecretBytes, nonce: [UInt8], sealing: Bool) throws(CryptographyError) {
            guard key.count == keyCount, nonce.count == nonceCount else { throw .invalidLength }
            let isReady = withCleanErrorQueue {
                key.withRevealed { key in
                    unsafe key.withUnsafeBufferPointer { key in
                        unsafe nonce.withUnsafeBufferPointer { nonce in
                            // 12 octets are OpenSSL's default nonce length.
                            unsafe EVP_CipherInit_ex2(
                                context, algorithm, key.baseAddress, nonce.baseAddress, sealing ? 1 : 0, nil)
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
            // EVP takes an empty input for the end of the message.
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
            // The call takes a mutable pointer for setting as well as for getting.
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

    /// Fetches the algorithm from OpenSSL, which takes about a millisecond, once in a process. Otherwise the first
    /// sealing or opening pays for it. May be called from any thread.
    package static func prepare() { _ = unsafe algorithm }

    // `nonisolated(unsafe)`: the object is constant, OpenSSL permits its use by many threads at once, and it is never
    // freed. It is fetched once, because each implicit fetch by name takes a lock that all threads share.
    nonisolated(unsafe) private static let algorithm: OpaquePointer = {
        guard let fetched = unsafe EVP_CIPHER_fetch(nil, "AES-256-GCM", nil) else {
            preconditionFailure("this libcrypto offers no AES-256-GCM")
        }
        return unsafe fetched
    }()
}
