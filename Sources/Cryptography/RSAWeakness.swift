/// RSA moduli that can be factored although they are long enough.
enum RSAWeakness {
    /// The small primes that divide the primorial from which the keys of CVE-2017-15361 were made.
    private static let primes: [UInt32] = [
        3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109,
        113, 127, 131, 137, 139, 149, 151, 157, 163, 167,
    ]

    /// For each prime, whether a remainder is a power of 65537 modulo that prime.
    private static let powers: [[Bool]] = primes.map { prime in
        var isPower = [Bool](repeating: false, count: Int(prime))
        var power: UInt32 = 1
        while !isPower[Int(power)] {
            isPower[Int(power)] = true
            power = power * (65_537 % prime) % prime
        }
        return isPower
    }

    /// Whether the modulus is even, or has the mark of the keys of CVE-2017-15361 (ROCA): their primes are powers of
    /// 65537 modulo many small primes, and so is their product. Of other moduli, fewer than one in 10⁸ has the mark.
    /// - Parameter modulus: in big-endian order.
    static func isWeak(modulus: [UInt8]) -> Bool {
        guard let last = modulus.last, !last.isMultiple(of: 2) else { return true }
        return zip(primes, powers).allSatisfy { prime, isPower in
            isPower[Int(modulus.reduce(UInt32(0)) { ($0 << 8 | UInt32($1)) % prime })]
        }
    }
}
