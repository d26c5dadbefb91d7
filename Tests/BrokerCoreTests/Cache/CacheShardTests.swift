import Reactor
import Testing

@testable import BrokerCore

/// The shard is told the hash of each key, so that a test can have all keys meet.
@Suite struct `One shard of what is kept in memory` {
    /// A value whose hint tells it from every other.
    private struct Value: Cacheable {
        struct Hint: CacheHint, Equatable {
            var key = -1
            var number = -1
        }

        let hint: Hint
    }

    private typealias Shard = CacheShard<Int, Value>

    private static let now = MonotonicInstant(nanoseconds: 1)

    private static func set(
        _ key: Int, _ hash: Int, bytes: Int = 1, number: Int = 0, version: Int64 = 0, in shard: inout Shard
    ) {
        let value = Value(hint: Value.Hint(key: key, number: number))
        shard.set(key, hash, to: (Shard.Entry(key, value, version: version), bytes), checked: now)
    }

    /// What is found by the key, and by the hint: the same, or nothing by either.
    private static func number(_ key: Int, _ hash: Int, in shard: Shard) -> Int? {
        let slot = shard.find(key, hash)
        let found = shard.find(hash) { $0.key == key }
        #expect(found?.slot == slot)
        guard let slot, let found else { return nil }
        #expect(shard.hint(found.place) == shard.entry(slot).value.hint)
        return shard.entry(slot).value.hint.number
    }

    /// The plain form of the same: a dictionary. It does not say which entries go where there is no room.
    private struct Model {
        let limit: Int
        var entries: [Int: Int] = [:]
        var evictions = 0

        var bytes: Int { entries.values.reduce(0, +) }

        /// - Parameter isThere: whether the shard has it. What it has let go of must have been in the way, and not be what
        ///   has just come.
        mutating func set(_ key: Int, bytes: Int?, _ isThere: (Int) -> Bool) {
            entries[key] = nil
            guard let bytes, bytes <= limit else { return }
            entries[key] = bytes
            let gone = entries.filter { !isThere($0.key) }
            #expect(gone[key] == nil)
            // One less would not have been enough.
            #expect(gone.isEmpty || self.bytes - gone.values.reduce(0, +) + (gone.values.max() ?? 0) > limit)
            for key in gone.keys { entries[key] = nil }
            evictions += gone.count
            #expect(self.bytes <= limit)
        }
    }

    // Hashes that differ, that meet in a few places, around the end of the table, that are all the same, and that are the
    // same in the half by which they are placed, or in the other one.
    @Test(
        arguments: [
            { $0 &* -7_046_029_254_386_353_131 }, { $0 % 3 }, { 14 + $0 % 4 }, { -1 - $0 % 2 }, { _ in 7 },
            { $0 << 32 | 7 }, { Int.min | $0 },
        ] as [@Sendable (Int) -> Int])
    func `does what a dictionary does that has no room for all`(hash: @Sendable (Int) -> Int) {
        var random = SplitMix(state: 20_261_121)
        var shard = Shard(limit: 500)
        var model = Model(limit: 500)
        var numbers: [Int: Int] = [:]
        let isThere = { (key: Int) in shard.find(key, hash(key)) != nil }
        for step in 0..<4000 {
            let key = Int.random(in: 0..<90, using: &random)
            switch Int.random(in: 0..<20, using: &random) {
            case 0..<12:
                let bytes = Int.random(in: 1...12, using: &random)
                Self.set(key, hash(key), bytes: bytes, number: step, in: &shard)
                model.set(key, bytes: bytes, isThere)
                numbers[key] = step
            case 12:
                Self.set(key, hash(key), bytes: 501, in: &shard)
                model.set(key, bytes: 501, isThere)
            case 13 where step % 50 == 0:
                shard.removeAll { $0.key % 2 == 0 }
                for key in model.entries.keys where key % 2 == 0 { model.set(key, bytes: nil, isThere) }
            case 14, 15:
                if let slot = shard.find(key, hash(key)) { shard.use(slot) }
            default:
                shard.set(key, hash(key), to: nil, checked: Self.now)
                model.set(key, bytes: nil, isThere)
            }
            #expect(shard.count == model.entries.count)
            #expect(shard.bytes == model.bytes)
            #expect(shard.evictions == model.evictions)
            #expect(Self.number(key, hash(key), in: shard) == (model.entries[key] == nil ? nil : numbers[key]))
            if step % 100 == 0 {
                for key in 0..<90 {
                    #expect(Self.number(key, hash(key), in: shard) == (model.entries[key] == nil ? nil : numbers[key]))
                }
            }
        }
    }

    @Test(arguments: [0, 1, 2, 499, 500, 998, 999])
    func `what was used once stays for as long as there come as many as there are`(used: Int) throws {
        for before in [0, 1, 500, 998] {
            var shard = Shard(limit: 1000)
            for key in 0..<1000 { Self.set(key, key, in: &shard) }
            for key in 1000..<1000 + before { Self.set(key, key, in: &shard) }
            guard let slot = shard.find(used, used) else { continue }
            shard.use(slot)
            var came = 0
            while shard.find(used, used) != nil {
                came += 1
                Self.set(10_000 + came, 10_000 + came, in: &shard)
            }
            #expect((1000...2000).contains(came))
        }
    }

    @Test(arguments: [1, 2, 500, 998, 999], [-1, 0])
    func `what is used again and again stays, whatever else comes once`(hot: Int, more: Int) throws {
        var shard = Shard(limit: 1000)
        for key in 0..<1000 { Self.set(key, key, in: &shard) }
        for round in 1...20 {
            for key in 1000 - hot..<1000 { shard.use(try #require(shard.find(key, key))) }
            // As many as have room beside them.
            for came in 0..<1000 - hot + more { Self.set(round * 1000 + came, came, in: &shard) }
        }
        #expect(shard.count == 1000)
    }

    @Test(arguments: [0, 1, 2, 998, 999, 1000])
    func `where all were used the one goes whose turn it is, and it alone`(used: Int) throws {
        var shard = Shard(limit: 1000)
        for key in 0..<1000 { Self.set(key, key, in: &shard) }
        for key in 0..<used { shard.use(try #require(shard.find(key, key))) }
        Self.set(1000, 1000, in: &shard)
        #expect((0...1000).filter { shard.find($0, $0) == nil } == [used == 1000 ? 0 : used])
        #expect(shard.evictions == 1)
        // And the next time it is the next one.
        Self.set(1001, 1001, in: &shard)
        #expect(shard.find(1001, 1001) != nil && shard.evictions == 2)
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

    private static let note = CacheNote(source: 7, conclusion: 8)

    @Test func `what is noted of an entry goes with it`() throws {
        var shard = Shard(limit: 2)
        func note(_ key: Int) throws -> CacheNote { shard.note(try #require(shard.find(key, key))) }
        Self.set(1, 1, version: 1, in: &shard)
        #expect(try note(1) == CacheNote())
        let slot = try #require(shard.find(1, 1))
        shard.note(slot, Self.note)
        shard.use(slot)
        shard.revalidated(slot, shard.entry(slot), checked: Self.now.advanced(by: .seconds(1)))
        #expect(try note(1) == Self.note)
        // The same version is another value all the same.
        Self.set(1, 1, version: 1, in: &shard)
        #expect(try note(1) == CacheNote())
        shard.note(slot, Self.note)
        Self.set(1, 1, version: 2, in: &shard)
        #expect(try note(1) == CacheNote())
        // Another one that comes into its slot.
        shard.note(slot, Self.note)
        shard.set(1, 1, to: nil, checked: Self.now)
        Self.set(2, 2, in: &shard)
        #expect(shard.find(2, 2) == slot)
        #expect(try note(2) == CacheNote())
        // And where there was no room for both.
        shard.note(slot, Self.note)
        Self.set(3, 3, bytes: 2, in: &shard)
        #expect(shard.find(2, 2) == nil)
        #expect(try note(3) == CacheNote())
        Self.set(4, 4, bytes: 2, in: &shard)
        #expect(shard.find(4, 4) == slot)
        #expect(try note(4) == CacheNote())
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
