import HTTPCodec
import Testing

@Suite struct `The hash of a run of bytes` {
    private static let seed: UInt64 = 0x2026_1122_0735_0001

    /// Around the lengths at which it reads otherwise.
    @Test(arguments: [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 48, 49, 200])
    func `depends on every bit, on the length, and on the seed`(length: Int) {
        var random = SystemRandomNumberGenerator()
        let bytes = (0..<length).map { _ in UInt8.random(in: .min ... .max, using: &random) }
        let hash = ByteRun.hash(bytes.span, seed: Self.seed)
        #expect(ByteRun.hash(Array(bytes).span, seed: Self.seed) == hash)
        #expect(ByteRun.hash(bytes.span, seed: Self.seed ^ 1) != hash)
        #expect(ByteRun.hash((bytes + [0]).span, seed: Self.seed) != hash)
        var seen: Set<UInt64> = [hash]
        for bit in 0..<8 * length {
            var changed = bytes
            changed[bit / 8] ^= 1 << UInt8(bit % 8)
            seen.insert(ByteRun.hash(changed.span, seed: Self.seed))
        }
        #expect(seen.count == 1 + 8 * length)
    }

    /// As keys are that people number: by the bits that choose a shard, and by those that choose a place in it.
    @Test(arguments: ["user-", "u", "a-rather-long-name-of-a-customer:"])
    func `spreads texts that are alike`(prefix: String) {
        let count = 65_536
        var (high, low) = ([Int](repeating: 0, count: 64), [Int](repeating: 0, count: 64))
        for number in 0..<count {
            let digits = "\(number)"
            let text = prefix + String(repeating: "0", count: 8 - digits.utf8.count) + digits
            let hash = ByteRun.hash(Array(text.utf8).span, seed: Self.seed)
            high[Int(hash >> 58)] += 1
            low[Int(hash & 63)] += 1
        }
        // 1,024 each, and what chance does to that.
        for share in high + low { #expect((800...1250).contains(share)) }
    }
}
