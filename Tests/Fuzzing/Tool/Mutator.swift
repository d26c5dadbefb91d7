/// A sequence of random numbers that depends on its seed only (Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators", 2014).
struct SplitMix64: RandomNumberGenerator {
    private var state: UInt64

    init(seed: UInt64) {
        state = seed
    }

    mutating func next() -> UInt64 {
        state &+= 0x9e37_79b9_7f4a_7c15
        var value = state
        value = (value ^ value >> 30) &* 0xbf58_476d_1ce4_e5b9
        value = (value ^ value >> 27) &* 0x94d0_49bb_1331_11eb
        return value ^ value >> 31
    }
}

/// Makes inputs from files, without looking at what they reach: for builds without libFuzzer.
struct Mutator {
    private var generator: SplitMix64
    private let files: [[UInt8]]
    private let longest: Int

    /// Octets at which readers decide.
    private static let special: [UInt8] = [
        0, 1, 9, 10, 13, 0x20, 0x22, 0x25, 0x26, 0x2b, 0x2c, 0x2d, 0x2e, 0x2f, 0x30, 0x39, 0x3a, 0x3b, 0x3d, 0x3f, 0x5b,
        0x5c, 0x5d, 0x7b, 0x7d, 0x7f, 0x80, 0xc0, 0xcc, 0xe2, 0xed, 0xf4, 0xff,
    ]
    /// Numbers at the ends of what integers hold, as text.
    private static let numbers = [
        "-1", "0", "2147483648", "4294967296", "9007199254740993", "9223372036854775807", "9223372036854775808",
        "-9223372036854775808", "18446744073709551616", "1e308", "1e-400", "0.5",
    ]

    /// - Parameter longest: octets of the longest input.
    init(seed: UInt64, _ files: [[UInt8]], longest: Int) {
        generator = SplitMix64(seed: seed)
        self.files = files
        self.longest = longest
    }

    mutating func next() -> [UInt8] {
        var bytes = files.randomElement(using: &generator) ?? []
        for _ in 0..<Int.random(in: 1...5, using: &generator) { change(&bytes) }
        return Array(bytes.prefix(longest))
    }

    private mutating func change(_ bytes: inout [UInt8]) {
        let place = Int.random(in: 0...bytes.count, using: &generator)
        let end = min(bytes.count, place + Int.random(in: 1...16, using: &generator))
        switch Int.random(in: 0..<9, using: &generator) {
        case 0: if place < bytes.count { bytes[place] ^= 1 << UInt8.random(in: 0..<8, using: &generator) }
        case 1: if place < bytes.count { bytes[place] = Self.special.randomElement(using: &generator) ?? 0 }
        case 2: bytes.insert(Self.special.randomElement(using: &generator) ?? 0, at: place)
        case 3: bytes.removeSubrange(place..<end)
        case 4: bytes.insert(contentsOf: bytes[place..<end], at: place)
        case 5: bytes.insert(contentsOf: (Self.numbers.randomElement(using: &generator) ?? "").utf8, at: place)
        case 6: bytes.removeSubrange(place...)
        case 7:
            let other = files.randomElement(using: &generator) ?? []
            bytes.replaceSubrange(place..., with: other.suffix(other.count - min(place, other.count)))
        default:
            // An integer of several octets.
            for index in place..<min(bytes.count, place + 8) {
                bytes[index] = .random(in: 0...1, using: &generator) &* 0xff
            }
        }
    }
}
