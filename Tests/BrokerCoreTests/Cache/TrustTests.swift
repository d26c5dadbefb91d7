internal import Reactor
internal import Testing

@testable internal import BrokerCore

@Suite struct `Trust in what was read` {
    enum Step: Sendable {
        case follow(Int)
        case alive(Int)
        case lose
        case distrust(Int)
    }

    private static func at(_ milliseconds: Int) -> MonotonicInstant {
        MonotonicInstant(nanoseconds: 1).advanced(by: .milliseconds(milliseconds))
    }

    private static func trust(_ validity: Duration?, _ steps: [Step]) -> Trust {
        let trust = Trust(validity: validity)
        for step in steps {
            switch step {
            case .follow(let time): trust.follow(at(time))
            case .alive(let time): trust.beAlive(at(time))
            case .lose: trust.lose()
            case .distrust(let time): trust.distrust(at(time))
            }
        }
        return trust
    }

    @Test(
        arguments: [
            // Without a feed: for as long as the validity.
            ([], 10_000, 14_999, true), ([], 10_000, 15_000, false), ([], 10_000, 15_001, false),
            ([.alive(10_000)], 10_000, 15_000, false),
            // What was read before the feed began is not believed at all, however short ago.
            ([.follow(10_000)], 9_999, 10_000, false), ([.follow(10_000)], 10_000, 10_000, true),
            ([.follow(10_000)], 10_001, 10_001, true),
            // From then on for as long as the feed is seen alive.
            ([.follow(10_000)], 10_000, 14_999, true), ([.follow(10_000)], 10_000, 15_000, false),
            ([.follow(10_000), .alive(60_000)], 10_000, 64_999, true),
            ([.follow(10_000), .alive(60_000)], 10_000, 65_000, false),
            ([.follow(10_000), .alive(60_000)], 9_999, 60_000, false),
            // A feed that has fallen silent vouches for nothing; what is read meanwhile is believed as without one.
            ([.follow(10_000), .alive(60_000)], 63_000, 67_999, true),
            ([.follow(10_000), .alive(60_000)], 63_000, 68_000, false),
            // A late sign of life shows that nothing was missed.
            ([.follow(10_000), .alive(60_000), .alive(70_000)], 10_001, 70_000, true),
            // What nobody tells of is found after a minute all the same.
            ([.follow(10_000), .alive(60_000), .alive(70_000)], 10_000, 70_000, false),
            // A feed that is lost likewise.
            ([.follow(10_000), .alive(60_000), .lose], 10_000, 60_000, false),
            ([.follow(10_000), .alive(60_000), .lose], 58_000, 62_999, true),
            ([.follow(10_000), .alive(60_000), .lose], 58_000, 63_000, false),
            ([.follow(10_000), .lose, .alive(60_000)], 10_000, 60_000, false),
            // When it is back, nothing is believed that was read before.
            ([.follow(10_000), .lose, .follow(60_000)], 10_000, 60_001, false),
            ([.follow(10_000), .lose, .follow(60_000)], 59_999, 60_001, false),
            ([.follow(10_000), .lose, .follow(60_000)], 60_000, 64_999, true),
            // Nor after a change that nobody knows.
            ([.follow(10_000), .alive(20_000), .distrust(20_000)], 19_999, 20_001, false),
            ([.follow(10_000), .alive(20_000), .distrust(20_000)], 20_000, 20_001, true),
            ([.distrust(20_000)], 19_999, 20_001, true), ([.distrust(20_000), .alive(20_000)], 10_000, 20_001, false),
        ] as [([Step], Int, Int, Bool)])
    func `is given for as long as nothing can have been missed`(
        steps: [Step], checked: Int, now: Int, isBelieved: Bool
    ) {
        let trust = Self.trust(.seconds(5), steps)
        #expect(trust.believes(Self.at(checked), Self.at(now)) == isBelieved)
    }

    @Test(
        arguments: [
            ([], false), ([.follow(10_000)], true), ([.follow(9_000)], true), ([.follow(7_000)], false),
            ([.follow(5_000), .alive(9_000)], true), ([.follow(9_000), .lose], false), ([.alive(10_000)], false),
            ([.follow(9_000), .distrust(9_500)], true),
        ] as [([Step], Bool)])
    func `knows whether every change is told of`(steps: [Step], isFollowing: Bool) {
        #expect(Self.trust(.seconds(2), steps).isFollowing(Self.at(10_500)) == isFollowing)
    }

    /// Each in milliseconds; `end` is the last check that runs out, and so is to be renewed.
    @Test(
        arguments: [
            // Nobody vouches for anything.
            ([], nil), ([.follow(100_000), .lose], nil), ([.follow(95_000)], nil),
            ([.follow(10_000), .alive(95_000)], nil),
            // Whatever is believed yet, but not what was checked a moment ago.
            ([.follow(10_000), .alive(95_001)], (40_000, 95_000)),
            ([.follow(10_000), .alive(100_000)], (40_000, 95_000)),
            // Nothing that was checked before the feed began, or before a change that nobody can name.
            ([.follow(40_001), .alive(100_000)], (40_001, 95_000)),
            ([.follow(95_000), .alive(100_000)], (95_000, 95_000)), ([.follow(95_001), .alive(100_000)], nil),
            ([.follow(10_000), .distrust(60_000), .alive(100_000)], (60_000, 95_000)),
        ] as [([Step], (start: Int, end: Int)?)])
    func `is renewed where a feed gives it`(steps: [Step], found: (start: Int, end: Int)?) {
        let range = Self.trust(.seconds(5), steps).checksRunningOut(at: Self.at(155_000), Self.at(100_000))
        // What was checked exactly a minute ago is believed no longer.
        let first = found.map { Self.at($0.start).advanced(byNanoseconds: $0.start == 40_000 ? 1 : 0) }
        #expect(range?.lowerBound == first)
        #expect(range?.upperBound == found.map { Self.at($0.end).advanced(byNanoseconds: 1) })
    }

    @Test func `is not renewed where nobody else writes`() {
        let trust = Self.trust(nil, [.follow(10_000), .alive(100_000)])
        #expect(trust.checksRunningOut(at: Self.at(155_000), Self.at(100_000)) == nil)
    }

    @Test func `is never given where the store is to be asked every time`() {
        let trust = Self.trust(.zero, [.follow(10_000)])
        #expect(!trust.believes(Self.at(10_000), Self.at(10_000)))
        #expect(!trust.isFollowing(Self.at(10_000)))
    }

    @Test func `is always given where nobody else writes`() {
        let trust = Self.trust(nil, [.follow(10_000), .lose])
        #expect(trust.believes(Self.at(0), Self.at(1_000_000_000)))
        #expect(!trust.isFollowing(Self.at(10_000)))
    }
}
