import Reactor
import Testing

@testable import BrokerCore

@Suite struct `Cache validity` {
    enum Step: Sendable {
        case follow(Int)
        case alive(Int)
        case lose
        case unknownChange(Int)
    }

    private static func at(_ milliseconds: Int) -> MonotonicInstant {
        MonotonicInstant(nanoseconds: 1).advanced(by: .milliseconds(milliseconds))
    }

    private static func validity(_ lifetime: Duration?, _ steps: [Step]) -> CacheValidity {
        let validity = CacheValidity(lifetime: lifetime)
        for step in steps {
            switch step {
            case .follow(let time): validity.feedStarted(at: at(time))
            case .alive(let time): validity.feedSeenAlive(at: at(time))
            case .lose: validity.feedLost()
            case .unknownChange(let time): validity.invalidateAll(at: at(time))
            }
        }
        return validity
    }

    @Test(
        arguments: [
            // Without a feed: for the lifetime.
            ([], 10_000, 14_999, true), ([], 10_000, 15_000, false), ([], 10_000, 15_001, false),
            ([.alive(10_000)], 10_000, 15_000, false),
            // What was read before the feed began is not valid, however recently it was read.
            ([.follow(10_000)], 9_999, 10_000, false), ([.follow(10_000)], 10_000, 10_000, true),
            ([.follow(10_000)], 10_001, 10_001, true),
            // From then on for as long as the feed is seen alive.
            ([.follow(10_000)], 10_000, 14_999, true), ([.follow(10_000)], 10_000, 15_000, false),
            ([.follow(10_000), .alive(60_000)], 10_000, 64_999, true),
            ([.follow(10_000), .alive(60_000)], 10_000, 65_000, false),
            ([.follow(10_000), .alive(60_000)], 9_999, 60_000, false),
            // A feed that is not seen alive covers nothing; what is read meanwhile is valid as without a feed.
            ([.follow(10_000), .alive(60_000)], 63_000, 67_999, true),
            ([.follow(10_000), .alive(60_000)], 63_000, 68_000, false),
            // A feed that is seen alive late has missed nothing.
            ([.follow(10_000), .alive(60_000), .alive(70_000)], 10_001, 70_000, true),
            // A change that the feed does not report is found after a minute.
            ([.follow(10_000), .alive(60_000), .alive(70_000)], 10_000, 70_000, false),
            // A feed that is lost covers nothing either.
            ([.follow(10_000), .alive(60_000), .lose], 10_000, 60_000, false),
            ([.follow(10_000), .alive(60_000), .lose], 58_000, 62_999, true),
            ([.follow(10_000), .alive(60_000), .lose], 58_000, 63_000, false),
            ([.follow(10_000), .lose, .alive(60_000)], 10_000, 60_000, false),
            // When the feed has started again, nothing is valid that was read before.
            ([.follow(10_000), .lose, .follow(60_000)], 10_000, 60_001, false),
            ([.follow(10_000), .lose, .follow(60_000)], 59_999, 60_001, false),
            ([.follow(10_000), .lose, .follow(60_000)], 60_000, 64_999, true),
            // Nor after a change that the feed has not named.
            ([.follow(10_000), .alive(20_000), .unknownChange(20_000)], 19_999, 20_001, false),
            ([.follow(10_000), .alive(20_000), .unknownChange(20_000)], 20_000, 20_001, true),
            ([.unknownChange(20_000)], 19_999, 20_001, true),
            ([.unknownChange(20_000), .alive(20_000)], 10_000, 20_001, false),
        ] as [([Step], Int, Int, Bool)])
    func `lasts for as long as no change can have been missed`(
        steps: [Step], checked: Int, now: Int, isValid: Bool
    ) {
        let validity = Self.validity(.seconds(5), steps)
        #expect(validity.isValid(Self.at(checked), at: Self.at(now)) == isValid)
    }

    @Test(
        arguments: [
            ([], false), ([.follow(10_000)], true), ([.follow(9_000)], true), ([.follow(7_000)], false),
            ([.follow(5_000), .alive(9_000)], true), ([.follow(9_000), .lose], false), ([.alive(10_000)], false),
            ([.follow(9_000), .unknownChange(9_500)], true),
        ] as [([Step], Bool)])
    func `knows whether the feed reports every change`(steps: [Step], isFollowing: Bool) {
        #expect(Self.validity(.seconds(2), steps).isFeedAlive(at: Self.at(10_500)) == isFollowing)
    }

    /// Each in milliseconds; `end` is the last check whose entry expires, and so is to be revalidated.
    @Test(
        arguments: [
            // No feed covers anything.
            ([], nil), ([.follow(100_000), .lose], nil), ([.follow(95_000)], nil),
            ([.follow(10_000), .alive(95_000)], nil),
            // Whatever is still valid, but not what was checked a moment ago.
            ([.follow(10_000), .alive(95_001)], (40_000, 95_000)),
            ([.follow(10_000), .alive(100_000)], (40_000, 95_000)),
            // Nothing that was checked before the feed began, or before a change that the feed has not named.
            ([.follow(40_001), .alive(100_000)], (40_001, 95_000)),
            ([.follow(95_000), .alive(100_000)], (95_000, 95_000)), ([.follow(95_001), .alive(100_000)], nil),
            ([.follow(10_000), .unknownChange(60_000), .alive(100_000)], (60_000, 95_000)),
        ] as [([Step], (start: Int, end: Int)?)])
    func `is renewed by revalidation where the feed covers the entry`(steps: [Step], found: (start: Int, end: Int)?) {
        let range = Self.validity(.seconds(5), steps).checksExpiring(by: Self.at(155_000), at: Self.at(100_000))
        // What was checked exactly a minute ago is valid no longer.
        let first = found.map { Self.at($0.start).advanced(byNanoseconds: $0.start == 40_000 ? 1 : 0) }
        #expect(range?.lowerBound == first)
        #expect(range?.upperBound == found.map { Self.at($0.end).advanced(byNanoseconds: 1) })
    }

    @Test func `is not renewed where no other process writes`() {
        let validity = Self.validity(nil, [.follow(10_000), .alive(100_000)])
        #expect(validity.checksExpiring(by: Self.at(155_000), at: Self.at(100_000)) == nil)
    }

    @Test func `is never given where the lifetime is zero`() {
        let validity = Self.validity(.zero, [.follow(10_000)])
        #expect(!validity.isValid(Self.at(10_000), at: Self.at(10_000)))
        #expect(!validity.isFeedAlive(at: Self.at(10_000)))
    }

    @Test func `is always given where no other process writes`() {
        let validity = Self.validity(nil, [.follow(10_000), .lose])
        #expect(validity.isValid(Self.at(0), at: Self.at(1_000_000_000)))
        #expect(!validity.isFeedAlive(at: Self.at(10_000)))
    }
}
