import OAuth
import Reactor
import Testing

@testable import BrokerCore

@Suite struct `Credentials that are kept in memory` {
    private static let now = MonotonicInstant(nanoseconds: 1)

    private static func id(_ number: Int) throws -> CredentialsID {
        CredentialsID(
            tenant: try #require(TenantName("tenant-\(number % 100)")),
            storageKey: try #require(StorageKey("user-\(number)")))
    }

    private static func snapshot(_ id: CredentialsID, octets: Int) throws -> CredentialsSnapshot {
        try .sample(id, String(repeating: "a", count: octets))
    }

    @Test(arguments: [1 << 20, 8 << 20])
    func `take what they may and no more, and the latest are there`(limit: Int) throws {
        let bus = EventBus(cacheValidity: CacheValidity(lifetime: nil))
        let cache = RevalidatingCache<CredentialsID, CredentialsSnapshot>.credentials(bytes: limit, invalidatedBy: bus)
        for number in 0..<10_000 {
            let id = try Self.id(number)
            cache.fill(id, try Self.snapshot(id, octets: 700), cache.ticket(id, now: Self.now))
        }
        let statistics = cache.statistics
        #expect(statistics.bytes <= limit)
        // In each shard less than one entry's room is left over.
        #expect(statistics.bytes > limit - 64 * 4096)
        // The token stands in memory once, for the credentials and for their answer: twice would be 700 bytes more than
        // the 2070 that an entry takes.
        #expect((1400...2304).contains(statistics.bytes / statistics.entries))
        #expect(statistics.entries + statistics.evictions == 10_000)
        for number in 9_990..<10_000 { #expect(cache.fresh(try Self.id(number), now: Self.now) != nil) }
        #expect(cache.fresh(try Self.id(0), now: Self.now) == nil)
    }

    @Test func `are counted by their size`() throws {
        let bus = EventBus(cacheValidity: CacheValidity(lifetime: nil))
        let cache = RevalidatingCache<CredentialsID, CredentialsSnapshot>.credentials(
            bytes: 64 << 20, invalidatedBy: bus)
        let id = try Self.id(1)
        for octets in [0, 700, 10_000, 100_000] {
            cache.put(id, try Self.snapshot(id, octets: octets), cache.ticket(id, now: Self.now))
            let bytes = cache.statistics.bytes
            #expect((octets..<octets + 1416).contains(bytes))
        }
        cache.remove(id)
        #expect(cache.statistics == CacheStatistics())
    }
}
