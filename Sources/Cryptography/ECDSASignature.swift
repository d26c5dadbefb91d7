import COpenSSL

/// The two forms of an ECDSA signature: r ‖ s of fixed length (RFC 7518 §3.4), and OpenSSL's DER.
enum ECDSASignature {
    /// The DER of r ‖ s.
    /// - Parameter signature: two coordinates' length of octets.
    /// - Returns: DER whatever r and s are; the verification refuses those that are out of range.
    static func encoded(_ signature: [UInt8], on curve: EllipticCurve) -> [UInt8] {
        let count = curve.coordinateCount
        precondition(signature.count == 2 * count, "an ECDSA signature is r and s of a coordinate's length")
        return DER.sequence(DER.integer(Array(signature[..<count])), DER.integer(Array(signature[count...])))
    }

    /// r ‖ s of the DER that OpenSSL has made. Nil when it is none of this curve.
    static func fixedLength(_ encoded: [UInt8], on curve: EllipticCurve) -> [UInt8]? {
        withCleanErrorQueue {
            let decoded = unsafe encoded.withUnsafeBufferPointer { bytes -> OpaquePointer? in
                var next = bytes.baseAddress
                return unsafe d2i_ECDSA_SIG(nil, &next, bytes.count)
            }
            guard let decoded = unsafe decoded else { return nil }
            defer { unsafe ECDSA_SIG_free(decoded) }
            let count = curve.coordinateCount
            var r = [UInt8](repeating: 0, count: count)
            var s = r
            let written = unsafe BN_bn2binpad(ECDSA_SIG_get0_r(decoded), &r, CInt(count))
            let alsoWritten = unsafe BN_bn2binpad(ECDSA_SIG_get0_s(decoded), &s, CInt(count))
            return Int(written) == count && Int(alsoWritten) == count ? r + s : nil
        }
    }
}
