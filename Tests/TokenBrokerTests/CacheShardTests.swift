internal import Reactor
internal import Testing

@testable internal import BrokerCore

/// The shard is told the hash of each key, so that a test can have all keys meet.
@Suite struct `One shard of what is kept in memory` {
    private typealias Shard = CacheShard<Int, Int>

    private static let now = MonotonicInstant(nanoseconds: 1)

    private static func set(_ key: Int, _ hash: Int, bytes: Int = 1, in shard: inout Shard) {
        shard.set(key, hash, to: (Shard.Entry(key, key * 10, version: 0), bytes), checked: now)
    }

    private static func value(_ key: Int, _ hash: Int, in shard: Shard) -> Int? {
        shard.find(key, hash).map { shard.entry($0).value }
    }

    /// The plain form of the same: a dictionary, and an array with the newest at the end.
    private struct Model {
        let limit: Int
        var entries: [Int: Int] = [:]
        var order: [Int] = []
        var evictions = 0

        var bytes: Int { entries.values.reduce(0, +) }

        mutating func set(_ key: Int, bytes: Int?) {
            entries[key] = nil
            order.removeAll { $0 == key }
            guard let bytes, bytes <= limit else { return }
            entries[key] = bytes
            order.append(key)
            while self.bytes > limit {
                evictions += 1
                entries[order.removeFirst()] = nil
            }
        }
    }

    // Hashes that differ, that meet in a few places, around the end of the table, and that are all the same.
    @Test(
        arguments: [
            { $0 &* -7_046_029_254_386_353_131 }, { $0 % 3 }, { 14 + $0 % 4 }, { -1 - $0 % 2 }, { _ in 7 },
        ] as [@Sendable (Int) -> Int])
    func `does what a dictionary and a list do`(hash: @Sendable (Int) -> Int) {
        var random = SplitMix(state: 20_261_121)
        var shard = Shard(limit: 500)
        var model = Model(limit: 500)
        for step in 0..<4000 {
            let key = Int.random(in: 0..<90, using: &random)
            switch Int.random(in: 0..<20, using: &random) {
            case 0..<12:
                let bytes = Int.random(in: 1...12, using: &random)
                Self.set(key, hash(key), bytes: bytes, in: &shard)
                model.set(key, bytes: bytes)
            case 12:
                Self.set(key, hash(key), bytes: 501, in: &shard)
                model.set(key, bytes: 501)
            case 13 where step % 50 == 0:
                shard.removeAll { $0.key % 2 == 0 }
                for key in model.entries.keys where key % 2 == 0 { model.set(key, bytes: nil) }
            default:
                shard.set(key, hash(key), to: nil, checked: Self.now)
                model.set(key, bytes: nil)
            }
            #expect(shard.count == model.entries.count)
            #expect(shard.bytes == model.bytes)
            #expect(shard.evictions == model.evictions)
            #expect(Self.value(key, hash(key), in: shard) == (model.entries[key] == nil ? nil : key * 10))
            if step % 100 == 0 {
                for key in 0..<90 {
                    #expect(Self.value(key, hash(key), in: shard) == (model.entries[key] == nil ? nil : key * 10))
                }
            }
        }
    }

    @Test func `whatever goes was not used while three quarters of the others were`() {
        var random = SplitMix(state: 1)
        var shard = Shard(limit: 1000)
        for key in 0..<1000 { Self.set(key, key, in: &shard) }
        var lastUse: [Int: Int] = [:]
        for step in 1...100_000 {
            // Some keys are asked for far more often than others.
            let key = Int.random(in: 0..<1000, using: &random) * Int.random(in: 0..<1000, using: &random) / 700
            if let slot = shard.find(key, key) {
                shard.use(slot)
            } else {
                Self.set(key, key, in: &shard)
                for (known, use) in lastUse where shard.find(known, known) == nil {
                    #expect(step - use >= 740)
                    lastUse[known] = nil
                }
            }
            lastUse[key] = step
        }
    }

    @Test(arguments: [0, 1, 248, 249, 250, 251, 499, 500, 749, 750, 999])
    func `whatever is used stays while three quarters as many come as there are`(before: Int) throws {
        var shard = Shard(limit: 1000)
        for key in 0..<1000 { Self.set(key, key, in: &shard) }
        shard.use(try #require(shard.find(0, 0)))
        for key in 1000..<1000 + before { Self.set(key, key, in: &shard) }
        shard.use(try #require(shard.find(0, 0)))
        var came = 0
        while shard.find(0, 0) != nil {
            came += 1
            Self.set(10_000 + came, 10_000 + came, in: &shard)
        }
        #expect((751...1000).contains(came))
    }

    @Test(arguments: [(99, true), (100, true), (101, false)])
    func `an entry that is larger than the shard is not kept, nor is what it replaces`(bytes: Int, isKept: Bool) {
        var shard = Shard(limit: 100)
        Self.set(1, 1, bytes: 10, in: &shard)
        Self.set(2, 2, bytes: bytes, in: &shard)
        #expect((shard.find(2, 2) != nil) == isKept)
        // A small one does not make room for one that finds none anyway.
        #expect((shard.find(1, 1) != nil) == !isKept)
        Self.set(1, 1, bytes: 10, in: &shard)
        Self.set(1, 1, bytes: 101, in: &shard)
        #expect(shard.find(1, 1) == nil)
    }

    @Test func `an entry that grows in its place drives out others`() {
        var shard = Shard(limit: 100)
        for key in 0..<10 { Self.set(key, key, bytes: 10, in: &shard) }
        Self.set(0, 0, bytes: 30, in: &shard)
        #expect(shard.bytes == 100)
        #expect((0..<10).filter { shard.find($0, $0) == nil } == [1, 2])
    }
}

private struct SplitMix: RandomNumberGenerator {
    var state: UInt64

    mutating func next() -> UInt64 {
        state &+= 0x9e37_79b9_7f4a_7c15
        var mixed = (state ^ (state >> 30)) &* 0xbf58_476d_1ce4_e5b9
        mixed = (mixed ^ (mixed >> 27)) &* 0x94d0_49bb_1331_11eb
        return mixed ^ (mixed >> 31)
    }
}
