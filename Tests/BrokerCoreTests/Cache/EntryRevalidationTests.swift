import CredentialStore
import OAuth
import Reactor
import Testing

@testable import BrokerCore

@Suite struct `Revalidation of a cache entry` {
    private typealias Cache = RevalidatingCache<String, Int>

    /// A cache whose values are their records' versions, at a time when the feed has been followed for long.
    private struct Setting {
        let validity = CacheValidity(lifetime: .seconds(5))
        let cache: Cache

        init() {
            cache = Cache(bytes: 64 << 20, validity: validity, cost: { _, _ in 0 }, version: { Int64($0) })
            validity.feedStarted(at: at(0))
            validity.feedSeenAlive(at: at(200))
        }

        func fill(_ key: String, _ version: Int, at time: Double = 50) {
            cache.fill(key, version, cache.ticket(key, now: `Revalidation of a cache entry`.at(time)))
        }

        /// All entries that are to be revalidated and were checked up to that time.
        func found(of parts: Int = 1, limit: Int = 1_000_000, until time: Double = 100) -> [RevalidationCandidate] {
            (0..<parts).flatMap { part in
                var scan = CacheScan(part: part, of: parts)
                var found: [RevalidationCandidate] = []
                while true {
                    let range = at(0)..<at(time).advanced(byNanoseconds: 1)
                    let more = cache.candidates(in: &scan, limit: limit, checked: range) { key, _ in
                        RecordID(.login, TenantName("t1")!, key: key)
                    }
                    if more.isEmpty { return found }
                    found += more
                }
            }
        }

        /// When the entry was checked last, in seconds, as its end tells.
        func checked(_ key: String) -> Double? {
            cache.holding(key, now: at(100)).map { Double($0.end.nanoseconds - 1) / 1e9 - 60 }
        }

        private func at(_ seconds: Double) -> MonotonicInstant { `Revalidation of a cache entry`.at(seconds) }
    }

    private static func at(_ seconds: Double) -> MonotonicInstant {
        MonotonicInstant(nanoseconds: 1).advanced(byNanoseconds: Int64(seconds * 1e9))
    }

    @Test(arguments: [(49.999, 0), (50, 1), (50.001, 1)])
    func `is due for entries that were checked in time`(until time: Double, count: Int) {
        let setting = Setting()
        setting.fill("a", 7)
        let found = setting.found(until: time)
        #expect(found.map(\.id.key) == ["a", "a"].prefix(count).map { $0 })
        #expect(found.allSatisfy { $0.version == 7 })
    }

    @Test func `counts from the question on`() {
        let setting = Setting()
        setting.fill("a", 1)
        setting.cache.revalidated(setting.found(), checked: Self.at(60))
        #expect(setting.cache.fresh("a", now: Self.at(119.999)) == 1)
        #expect(setting.cache.fresh("a", now: Self.at(120)) == nil)
        #expect(setting.cache.statistics.revalidations == 1)
    }

    @Test func `happens six times after the last use of an entry`() {
        let setting = Setting()
        setting.fill("a", 1)
        setting.fill("b", 1)
        for round in 1...6 {
            let found = setting.found()
            #expect(found.map(\.id.key).sorted() == ["a", "b"])
            setting.cache.revalidated(found, checked: Self.at(50 + Double(round)))
            // One is used.
            #expect(setting.cache.fresh("b", now: Self.at(60)) == 1)
        }
        for _ in 1...6 {
            let found = setting.found()
            #expect(found.map(\.id.key) == ["b"])
            setting.cache.revalidated(found, checked: Self.at(60))
        }
        #expect(setting.found().isEmpty)
        #expect(setting.cache.statistics.revalidations == 18)
        // An idle entry that is used again, or read anew, is revalidated again.
        #expect(setting.cache.fresh("a", now: Self.at(60)) == 1)
        #expect(setting.found().map(\.id.key) == ["a"])
        setting.fill("b", 1)
        #expect(setting.found().map(\.id.key).sorted() == ["a", "b"])
    }

    @Test func `does not touch an entry that has replaced the one that was asked for`() {
        let setting = Setting()
        for (version, time) in [(1, 55.0), (2, 55), (1, 65)] {
            setting.fill("a", 1)
            let found = setting.found()
            setting.fill("a", version, at: time)
            setting.cache.revalidated(found, checked: Self.at(60))
            #expect(setting.checked("a") == time)
        }
    }

    @Test func `does not bring back what was changed, removed or evicted meanwhile`() {
        let setting = Setting()
        for change in [
            { setting.cache.invalidate("a", olderThan: 2) }, { setting.cache.invalidate("a", olderThan: nil) },
            { setting.cache.remove("a") }, { setting.cache.removeAll { _, _ in true } },
        ] as [() -> Void] {
            setting.fill("a", 1)
            let found = setting.found()
            change()
            setting.cache.revalidated(found, checked: Self.at(60))
            #expect(setting.cache.any("a") == nil)
            // Others have taken the slots.
            for number in 0..<1000 { setting.fill("other \(number)", 1) }
            setting.cache.revalidated(found, checked: Self.at(60))
            #expect((0..<1000).allSatisfy { setting.checked("other \($0)") == 50 })
            setting.cache.removeAll { _, _ in true }
        }
        #expect(setting.cache.statistics.revalidations == 0)
    }

    @Test func `lasts no longer than a reading where the feed was lost meanwhile`() {
        for isBack in [false, true] {
            let setting = Setting()
            setting.fill("a", 1)
            let found = setting.found()
            setting.validity.feedLost()
            if isBack { setting.validity.feedStarted(at: Self.at(60.001)) }
            setting.cache.revalidated(found, checked: Self.at(60))
            #expect(setting.cache.fresh("a", now: Self.at(64.999)) == (isBack ? nil : 1))
            #expect(setting.cache.fresh("a", now: Self.at(65)) == nil)
        }
        let setting = Setting()
        setting.fill("a", 1)
        let found = setting.found()
        setting.validity.invalidateAll(at: Self.at(60.001))
        setting.cache.revalidated(found, checked: Self.at(60))
        #expect(setting.cache.fresh("a", now: Self.at(61)) == nil)
    }

    @Test(arguments: [(1, 10), (7, 100), (200, 500), (200, 1)])
    func `comes to every entry once a round, some at a time`(parts: Int, limit: Int) {
        let setting = Setting()
        let keys = (0..<3000).map { "k\($0)" }
        for key in keys { setting.fill(key, 1) }
        #expect(setting.found(of: parts, limit: limit).map(\.id.key).sorted() == keys.sorted())
        var scan = CacheScan(part: 0, of: 1)
        let first = setting.cache.candidates(in: &scan, limit: limit, checked: Self.at(0)..<Self.at(100)) { key, _ in
            RecordID(.login, TenantName("t1")!, key: key)
        }
        // A look at one shard gives no more than it looks at.
        #expect((limit..<limit + 128).contains(first.count))
    }

    @Test func `comes to every entry once a round although others come meanwhile`() {
        let setting = Setting()
        let keys = (0..<3000).map { "k\($0)" }
        for key in keys { setting.fill(key, 1) }
        var found: [String] = []
        for part in 0..<10 {
            var scan = CacheScan(part: part, of: 10)
            while true {
                let more = setting.cache.candidates(in: &scan, limit: 100, checked: Self.at(0)..<Self.at(51)) {
                    key, _ in
                    RecordID(.login, TenantName("t1")!, key: key)
                }
                if more.isEmpty { break }
                found += more.map(\.id.key)
            }
            for number in 0..<500 { setting.fill("late \(part) \(number)", 1, at: 60) }
        }
        #expect(found.sorted() == keys.sorted())
    }
}
