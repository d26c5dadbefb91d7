import BrokerTesting
import OAuth
import Reactor
import Testing

@testable import BrokerCore

// What the tests of caches keep.
extension Int: Cacheable {}

@Suite struct `What is kept in memory` {
    private static func at(_ milliseconds: Int) -> MonotonicInstant {
        MonotonicInstant(nanoseconds: 1).advanced(by: .milliseconds(milliseconds))
    }

    /// - Parameter bytes: as much as 1600 entries take and more, if they are spread evenly.
    private static func make(
        bytes: Int = 6400 * entry, validity: CacheValidity = CacheValidity(lifetime: nil)
    ) -> RevalidatingCache<String, Int> {
        RevalidatingCache(bytes: bytes, validity: validity, cost: { _, _ in 0 }, version: { Int64($0) })
    }

    /// What an entry takes whose key and value have no allocations of their own.
    private static let entry = RevalidatingCache<String, Int>.overhead

    @Test func `what was read or written is found`() {
        let cache = Self.make()
        #expect(cache.fresh("a", now: Self.at(0)) == nil)
        cache.fill("a", 1, cache.ticket("a", now: Self.at(0)))
        #expect(cache.fresh("a", now: Self.at(0)) == 1)
        cache.put("a", 2, cache.ticket("a", now: Self.at(0)))
        #expect(cache.fresh("a", now: Self.at(1_000_000_000)) == 2)
        cache.fill("a", nil, cache.ticket("a", now: Self.at(0)))
        #expect(cache.any("a") == nil)
    }

    @Test(arguments: [(999, 1), (1000, nil), (1001, nil)] as [(Int, Int?)])
    func `an entry is used for as long as the store says, counted from the question`(
        milliseconds: Int, value: Int?
    ) {
        let cache = Self.make(validity: CacheValidity(lifetime: .seconds(1)))
        let (read, written) = (cache.ticket("read", now: Self.at(0)), cache.ticket("written", now: Self.at(0)))
        cache.fill("read", 1, read)
        cache.put("written", 1, written)
        for key in ["read", "written"] {
            #expect(cache.fresh(key, now: Self.at(milliseconds)) == value)
            #expect(cache.any(key) == 1)
        }
    }

    @Test func `what was read before a change is not taken in after it`() {
        let cache = Self.make()
        for change in [
            { cache.put("a", 2, cache.ticket("a", now: Self.at(0))) }, { cache.remove("a") },
            { cache.removeAll { _, _ in false } },
        ] {
            let ticket = cache.ticket("a", now: Self.at(0))
            change()
            let after = cache.any("a")
            cache.fill("a", 1, ticket)
            #expect(cache.any("a") == after)
            cache.fill("a", nil, ticket)
            #expect(cache.any("a") == after)
        }
    }

    @Test func `of two writes whose order is not known neither is kept`() {
        let cache = Self.make()
        let (first, second) = (cache.ticket("a", now: Self.at(0)), cache.ticket("a", now: Self.at(0)))
        cache.put("a", 2, second)
        #expect(cache.any("a") == 2)
        cache.put("a", 1, first)
        #expect(cache.any("a") == nil)
        cache.fill("a", 2, cache.ticket("a", now: Self.at(0)))
        #expect(cache.any("a") == 2)
    }

    @Test func `a write that is answered after a removal is not kept`() {
        let cache = Self.make()
        for removal in [{ cache.remove("a") }, { cache.removeAll { key, _ in key == "a" } }] {
            let ticket = cache.ticket("a", now: Self.at(0))
            removal()
            cache.put("a", 1, ticket)
            #expect(cache.any("a") == nil)
        }
    }

    @Test func `changes of other keys let a read be taken in`() {
        let cache = Self.make()
        let ticket = cache.ticket("a", now: Self.at(0))
        for index in 0..<1000 { cache.put("b\(index)", index, cache.ticket("b\(index)", now: Self.at(0))) }
        cache.fill("a", 1, ticket)
        #expect(cache.any("a") == 1)
    }

    @Test func `a read that is older than the table of changes is not taken in`() {
        let cache = Self.make()
        let ticket = cache.ticket("a", now: Self.at(0))
        cache.remove("a")
        for index in 0..<40_000 { cache.remove("b\(index)") }
        cache.fill("a", 1, ticket)
        #expect(cache.any("a") == nil)
    }

    @Test func `removing all removes what matches`() {
        let cache = Self.make()
        for index in 0..<100 { cache.put("k\(index)", index, cache.ticket("k\(index)", now: Self.at(0))) }
        cache.removeAll { _, value in value % 2 == 0 }
        #expect(cache.count == 50)
        #expect(cache.any("k1") == 1)
        #expect(cache.any("k2") == nil)
    }

    @Test(arguments: [64, 65, 160, 1600])
    func `the capacity holds and the latest stay`(capacity: Int) {
        let cache = Self.make(bytes: capacity * Self.entry)
        for index in 0..<20_000 {
            cache.put("k\(index)", index, cache.ticket("k\(index)", now: Self.at(0)))
            #expect(cache.any("k\(index)") == index)
        }
        #expect(cache.count <= capacity)
        #expect(cache.statistics.bytes == cache.count * Self.entry)
        #expect(cache.statistics.evictions == 20_000 - cache.count)
    }

    @Test func `what is used stays longer than what is not`() {
        let cache = Self.make(bytes: 16 * 64 * Self.entry)
        cache.put("used", 1, cache.ticket("used", now: Self.at(0)))
        for index in 0..<20_000 {
            cache.put("k\(index)", index, cache.ticket("k\(index)", now: Self.at(0)))
            #expect(cache.fresh("used", now: Self.at(0)) == 1)
        }
    }

    @Test func `versions rise past a return and past a clock that steps back`() {
        let versions = VersionSource()
        let now = ManualTime.beginning
        let first = versions.first(at: now)
        #expect((0..<1000).contains(first - now.milliseconds * 1000))
        var last = first
        for _ in 0..<100 {
            let next = versions.next(after: last, at: now)
            #expect(next > last)
            last = next
        }
        #expect(versions.first(at: now) > last)
        #expect(versions.first(at: now.advanced(by: .seconds(-3600))) > last)
        #expect(versions.first(at: now.advanced(by: .seconds(1))) >= (now.milliseconds + 1000) * 1000)
    }
}
