import COpenSSL

/// The hash functions of FIPS 180-4 §6.
package enum HashFunction: Hashable, Sendable {
    case sha256
    case sha384
    case sha512

    /// Octets in a digest.
    package var digestCount: Int {
        switch self {
        case .sha256: 32
        case .sha384: 48
        case .sha512: 64
        }
    }

    package func digest(_ bytes: [UInt8]) -> [UInt8] {
        var digest = [UInt8](repeating: 0, count: digestCount)
        let function =
            switch self {
            case .sha256: unsafe EVP_sha256()
            case .sha384: unsafe EVP_sha384()
            case .sha512: unsafe EVP_sha512()
            }
        let isDone = withCleanErrorQueue { unsafe EVP_Digest(bytes, bytes.count, &digest, nil, function, nil) }
        // Only a lack of memory is left as a cause, which ends the process as it does everywhere in Swift.
        precondition(isDone == 1, "libcrypto computed no digest")
        return digest
    }
}
