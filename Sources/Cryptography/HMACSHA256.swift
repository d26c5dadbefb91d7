internal import COpenSSL

/// RFC 2104 with SHA-256.
package enum HMACSHA256 {
    /// Octets in an authentication code.
    package static let codeCount = 32

    package static func authenticationCode(for message: [UInt8], key: SecretBytes) -> [UInt8] {
        let code = key.withRevealed { key in
            var computation = Computation(key: key)
            computation.update(message.span)
            return computation.finish()
        }
        return code.revealedBytes
    }

    /// One code in the making, fed piece by piece.
    ///
    /// Each call may fail for want of memory only, which ends the process as it does everywhere in Swift.
    @safe struct Computation: ~Copyable {
        private let context: OpaquePointer

        init(key: Span<UInt8>) {
            // A copy of a prepared context spares the look-ups of HMAC and SHA-256 by name.
            guard let copy = unsafe EVP_MAC_CTX_dup(HMACSHA256.prepared.context) else {
                preconditionFailure("libcrypto made no HMAC context")
            }
            unsafe context = copy
            let isReady = withCleanErrorQueue {
                unsafe key.withUnsafeBufferPointer { key in
                    // A null key means "keep the previous one", an empty key is any other address with length 0.
                    var nothing: UInt8 = 0
                    return unsafe key.isEmpty
                        ? EVP_MAC_init(copy, &nothing, 0, nil) : EVP_MAC_init(copy, key.baseAddress, key.count, nil)
                }
            }
            precondition(isReady == 1, "libcrypto refused an HMAC key")
        }

        deinit { unsafe EVP_MAC_CTX_free(context) }

        mutating func update(_ piece: Span<UInt8>) {
            if piece.isEmpty { return }
            let isDone = withCleanErrorQueue {
                unsafe piece.withUnsafeBufferPointer { piece in
                    unsafe EVP_MAC_update(context, piece.baseAddress, piece.count)
                }
            }
            precondition(isDone == 1, "libcrypto refused HMAC input")
        }

        consuming func finish() -> SecretBytes {
            unsafe SecretBytes(count: HMACSHA256.codeCount) { code in
                var written = 0
                let isDone = withCleanErrorQueue {
                    unsafe EVP_MAC_final(context, code.baseAddress, &written, code.count)
                }
                precondition(isDone == 1 && written == code.count, "libcrypto computed no HMAC")
            }
        }
    }

    private static let prepared = Prepared()

    /// A context that has its algorithms but no key.
    ///
    /// Sendable: after `init` it is only ever the source of copies, which OpenSSL reads as a constant.
    @safe private final class Prepared: @unchecked Sendable {
        let context: OpaquePointer

        init() {
            guard let algorithm = unsafe EVP_MAC_fetch(nil, OSSL_MAC_NAME_HMAC, nil),
                let context = unsafe EVP_MAC_CTX_new(algorithm)
            else { preconditionFailure("this libcrypto offers no HMAC") }
            // The context holds its own reference.
            unsafe EVP_MAC_free(algorithm)
            let isSet = unsafe copenssl_set_digest_sha256(context)
            precondition(isSet == 1, "this libcrypto offers no HMAC with SHA-256")
            unsafe self.context = context
        }

        deinit { unsafe EVP_MAC_CTX_free(context) }
    }
}
