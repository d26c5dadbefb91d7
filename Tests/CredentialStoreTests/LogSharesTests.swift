import DevelopmentProvider
import OAuth
import Testing

@testable import CredentialStore

@Suite struct `The shares of tenants in the log` {
    struct Case: Sendable {
        let held: [Int]
        let count: Int
        let kept: [Int]
    }

    @Test(arguments: [
        Case(held: [], count: 0, kept: []),
        Case(held: [5], count: 6, kept: [5]), Case(held: [5], count: 5, kept: [5]),
        Case(held: [5], count: 4, kept: [4]),
        Case(held: [5], count: 0, kept: [0]), Case(held: [5], count: -1, kept: [0]),
        Case(held: [9, 1], count: 10, kept: [9, 1]), Case(held: [9, 1], count: 9, kept: [8, 1]),
        Case(held: [9, 1], count: 2, kept: [1, 1]), Case(held: [9, 1], count: 1, kept: [0, 1]),
        Case(held: [4, 4, 4], count: 11, kept: [3, 4, 4]), Case(held: [4, 4, 4], count: 10, kept: [3, 3, 4]),
        Case(held: [4, 4, 4], count: 9, kept: [3, 3, 3]), Case(held: [4, 4, 4], count: 8, kept: [2, 3, 3]),
        Case(held: [2, 7, 5, 0], count: 13, kept: [2, 6, 5, 0]),
        Case(held: [2, 7, 5, 0], count: 12, kept: [2, 5, 5, 0]),
        Case(held: [2, 7, 5, 0], count: 11, kept: [2, 4, 5, 0]),
        Case(held: [2, 7, 5, 0], count: 6, kept: [2, 2, 2, 0]),
        Case(held: [2, 7, 5, 0], count: 5, kept: [1, 2, 2, 0]), Case(held: [1, 1, 9], count: .max, kept: [1, 1, 9]),
    ])
    func `are what is left when the largest loses first`(check: Case) throws {
        var counts: [TenantName: Int] = [:]
        for (index, held) in check.held.enumerated() { counts[try #require(TenantName("t\(index)"))] = held }
        let surplus = LogShares.surplus(of: counts, keeping: check.count)
        #expect(surplus.values.allSatisfy { $0 > 0 })
        let kept = try check.held.enumerated().map { index, held in
            held - (surplus[try #require(TenantName("t\(index)"))] ?? 0)
        }
        #expect(kept == check.kept)
    }

    @Test(arguments: 1...50 as ClosedRange<UInt64>)
    func `are the same as when one entry after the other goes`(seed: UInt64) throws {
        var generator = SplitMix64(seed: seed)
        var counts: [TenantName: Int] = [:]
        for index in 0..<Int.random(in: 1...6, using: &generator) {
            counts[try #require(TenantName("t\(index)"))] = Int.random(in: 0...9, using: &generator)
        }
        var left = counts
        for count in (0...counts.values.reduce(0, +)).reversed() {
            let surplus = LogShares.surplus(of: counts, keeping: count)
            #expect(counts.merging(surplus) { $0 - $1 } == left, "\(counts) to \(count)")
            let largest = left.values.max() ?? 0
            guard let next = left.filter({ $0.value == largest }).keys.min(), largest > 0 else { break }
            left[next] = largest - 1
        }
    }
}
