import CredentialStore
import OAuth
import Reactor
import Testing

@testable import BrokerCore

/// The orders in which a change, what the store tells of it, and readings and writings of the same key can meet. A value
/// is its record's version.
@Suite struct `Cache invalidation` {
    enum Step: Sendable {
        /// A reader or writer begins a call of the store, and will return with the result.
        case ask(Character)
        case read(Character, Int?)
        case wrote(Character, Int)
        case news(Int?)
        case removed
        case otherNews
        case pass(Duration)
        case follow
        case alive
        case lose
        case unknown
    }

    private typealias Cache = RevalidatingCache<String, Int>

    /// What is used in the end.
    private static func outcome(_ steps: [Step], lifetime: Duration? = .seconds(5)) -> Int? {
        let validity = CacheValidity(lifetime: lifetime)
        let cache = Cache(bytes: 1 << 20, validity: validity, cost: { _, _ in 0 }, version: { Int64($0) })
        var now = MonotonicInstant(nanoseconds: 1).advanced(by: .seconds(1000))
        var tickets: [Character: Cache.Ticket] = [:]
        var others = 0
        for step in steps {
            switch step {
            case .ask(let who): tickets[who] = cache.ticket("a", now: now)
            case .read(let who, let value): cache.fill("a", value, tickets[who]!)
            case .wrote(let who, let value): cache.put("a", value, tickets[who]!)
            case .news(let version): cache.invalidate("a", olderThan: version.map(Int64.init))
            case .removed: cache.remove("a")
            case .otherNews:
                // As many as the table of changes forgets the oldest over.
                for _ in 0..<100_000 {
                    others += 1
                    cache.invalidate("b\(others)", olderThan: 1)
                }
            case .pass(let duration): now = now.advanced(by: duration)
            case .follow: validity.feedStarted(at: now)
            case .alive: validity.feedSeenAlive(at: now)
            case .lose: validity.feedLost()
            case .unknown: validity.invalidateAll(at: now)
            }
        }
        return cache.fresh("a", now: now)
    }

    @Test(
        arguments: [
            // The older value was read before the newer one was stored, and comes later.
            ([.ask("a"), .ask("b"), .read("a", 2), .read("b", 1)], 2),
            ([.ask("b"), .ask("a"), .read("a", 2), .read("b", 1)], 2),
            ([.ask("a"), .ask("b"), .read("b", 1), .read("a", 2)], 2),
            ([.ask("a"), .ask("b"), .read("a", 2), .read("b", 2)], 2),
            // The store has gone back.
            ([.ask("a"), .read("a", 2), .ask("b"), .read("b", 1)], 1),
        ] as [([Step], Int?)])
    func `of two readings the newer value stays, unless the older one began later`(steps: [Step], value: Int?) {
        #expect(Self.outcome(steps) == value)
    }

    @Test(
        arguments: [
            // The reading is over before the news.
            ([.ask("r"), .read("r", 1), .news(2)], nil), ([.ask("r"), .read("r", 2), .news(2)], 2),
            ([.ask("r"), .read("r", 3), .news(2)], 3), ([.ask("r"), .read("r", 1), .news(nil)], nil),
            // It is under way when the news comes, and has seen the change or has not.
            ([.ask("r"), .news(2), .read("r", 1)], nil), ([.ask("r"), .news(2), .read("r", 2)], 2),
            ([.ask("r"), .news(2), .read("r", 3)], 3), ([.ask("r"), .news(nil), .read("r", 1)], nil),
            ([.ask("r"), .news(2), .news(3), .read("r", 2)], nil), ([.ask("r"), .news(2), .news(3), .read("r", 3)], 3),
            // It begins after the news, and so has seen the change.
            ([.news(2), .ask("r"), .read("r", 2)], 2), ([.news(nil), .ask("r"), .read("r", 1)], 1),
            // A removal, and a record that was made anew by a clock that is behind.
            ([.ask("r"), .read("r", 9), .news(nil), .news(5), .ask("s"), .read("s", 5)], 5),
            ([.ask("r"), .news(nil), .news(5), .read("r", 9)], nil),
            // News that only a full table of changes would remember.
            ([.ask("r"), .news(2), .otherNews, .read("r", 1)], nil), ([.ask("r"), .otherNews, .read("r", 1)], nil),
            ([.otherNews, .ask("r"), .read("r", 1)], 1),
            // Two readings, of which one has seen the change.
            ([.ask("r"), .ask("s"), .read("s", 2), .read("r", 1), .news(2)], 2),
            ([.ask("r"), .ask("s"), .read("s", 2), .news(2), .read("r", 1)], 2),
            ([.ask("r"), .ask("s"), .news(2), .read("s", 2), .read("r", 1)], 2),
            ([.ask("r"), .read("r", 1), .ask("s"), .news(2), .read("s", 2)], 2),
            // A reading of nothing is as old as one can be.
            ([.ask("r"), .news(2), .read("r", nil), .ask("s"), .read("s", 2)], 2),
            ([.ask("r"), .read("r", 1), .ask("s"), .read("s", nil)], nil),
        ] as [([Step], Int?)])
    func `a reading is taken in unless a change came between that it has not seen`(steps: [Step], value: Int?) {
        #expect(Self.outcome(steps, lifetime: nil) == value)
        #expect(Self.outcome([.follow] + steps) == value)
    }

    @Test(
        arguments: [
            // Our own commit comes back as news, before or after its answer.
            ([.ask("w"), .wrote("w", 2), .news(2)], 2), ([.ask("w"), .news(2), .wrote("w", 2)], 2),
            ([.ask("w"), .wrote("w", 2), .ask("v"), .wrote("v", 3), .news(2), .news(3)], 3),
            ([.ask("w"), .wrote("w", 2), .ask("v"), .news(2), .wrote("v", 3), .news(3)], 3),
            ([.ask("w"), .wrote("w", 2), .ask("v"), .news(2), .news(3), .wrote("v", 3)], 3),
            // Another's commit was the later one, or the earlier one.
            ([.ask("w"), .wrote("w", 2), .news(2), .news(3)], nil),
            ([.ask("w"), .news(2), .news(3), .wrote("w", 2)], nil),
            ([.ask("w"), .news(3), .wrote("w", 2)], nil), ([.ask("w"), .wrote("w", 2), .news(3)], nil),
            ([.ask("w"), .news(1), .news(2), .wrote("w", 2)], 2),
            // A removal, whose place among the versions is not known.
            ([.ask("w"), .news(nil), .wrote("w", 2)], nil), ([.ask("w"), .wrote("w", 2), .news(nil)], nil),
            ([.ask("w"), .removed, .news(nil), .wrote("w", 2)], nil),
            // A write whose outcome is not known, told of later.
            ([.ask("w"), .removed, .news(2), .ask("r"), .read("r", 2)], 2),
            ([.ask("r"), .removed, .read("r", 1)], nil),
            ([.ask("r"), .removed, .news(2), .read("r", 2)], nil),
            // A reading that was under way during all of that.
            ([.ask("r"), .ask("w"), .wrote("w", 2), .news(2), .read("r", 1)], 2),
            ([.ask("r"), .ask("w"), .news(2), .wrote("w", 2), .read("r", 1)], 2),
            ([.ask("r"), .ask("w"), .news(2), .read("r", 1), .wrote("w", 2)], 2),
            // Two writes of ours stay undecided, whatever the news.
            ([.ask("v"), .ask("w"), .wrote("w", 3), .wrote("v", 2), .news(2), .news(3)], nil),
        ] as [([Step], Int?)])
    func `what was written stays unless something newer is told of`(steps: [Step], value: Int?) {
        #expect(Self.outcome(steps, lifetime: nil) == value)
        #expect(Self.outcome([.follow] + steps) == value)
    }

    @Test(
        arguments: [
            // While the feed is followed, for as long as it is.
            ([.follow, .ask("r"), .read("r", 1), .pass(.milliseconds(59_999)), .alive], 1),
            ([.follow, .ask("r"), .read("r", 1), .pass(.seconds(60)), .alive], nil),
            ([.follow, .ask("r"), .read("r", 1), .pass(.milliseconds(4999))], 1),
            ([.follow, .ask("r"), .read("r", 1), .pass(.seconds(5))], nil),
            // The question counts, not the answer.
            ([.ask("r"), .follow, .read("r", 1)], 1),
            ([.ask("r"), .pass(.nanoseconds(1)), .follow, .read("r", 1)], nil),
            ([.ask("w"), .pass(.nanoseconds(1)), .follow, .wrote("w", 1)], nil),
            // A loss of the feed, with a change in it that is not reported.
            ([.follow, .ask("r"), .read("r", 1), .pass(.seconds(60)), .alive, .lose], nil),
            ([.follow, .pass(.seconds(60)), .alive, .ask("r"), .read("r", 1), .lose, .pass(.milliseconds(4999))], 1),
            ([.follow, .pass(.seconds(60)), .alive, .ask("r"), .read("r", 1), .lose, .pass(.seconds(5))], nil),
            ([.follow, .ask("r"), .read("r", 1), .lose, .pass(.nanoseconds(1)), .follow], nil),
            ([.follow, .lose, .ask("r"), .read("r", 1), .pass(.nanoseconds(1)), .follow], nil),
            ([.follow, .lose, .ask("r"), .pass(.nanoseconds(1)), .follow, .read("r", 1)], nil),
            ([.follow, .lose, .pass(.nanoseconds(1)), .follow, .ask("r"), .read("r", 2), .news(2)], 2),
            // A change of an unknown record.
            ([.follow, .ask("r"), .read("r", 1), .pass(.nanoseconds(1)), .unknown], nil),
            ([.follow, .ask("r"), .pass(.nanoseconds(1)), .unknown, .read("r", 1)], nil),
            ([.follow, .pass(.nanoseconds(1)), .unknown, .ask("r"), .read("r", 2)], 2),
        ] as [([Step], Int?)])
    func `what may have missed a change is not used`(steps: [Step], value: Int?) {
        #expect(Self.outcome(steps) == value)
    }

    /// A store of one key, replicas that read and write it, and a feed that is late and is lost, in a random order of
    /// everything. Whatever is used is compared with what the store said at the time up to which news had come.
    @Test(arguments: 1...40)
    func `nothing is used that is older than the news, or than the bound`(seed: UInt64) {
        var world = World(seed: seed)
        for _ in 0..<5000 { world.step() }
        #expect(world.faults == [])
        // It would be easy to be right by never using anything.
        #expect(world.used > 500)
        #expect(world.renewed > 20)
    }

    private struct World {
        /// A write or a reading that is under way.
        struct Work {
            let ticket: Cache.Ticket
            /// What was read; of a write, what was written. Nil before the store was there.
            var value: Int?
            let isWrite: Bool
        }

        /// A revalidation that is under way.
        struct Renewal {
            let asked: MonotonicInstant
            let entries: [RevalidationCandidate]
            /// Nil before the store was there.
            var version: Int64?
        }

        let validity = CacheValidity(lifetime: .seconds(5))
        let cache: Cache
        var random: Steps
        var now = MonotonicInstant(nanoseconds: 1_000_000_000_000)
        /// Every version that the store had, with when it was given it.
        var history: [(version: Int, time: MonotonicInstant)] = [(1, MonotonicInstant(nanoseconds: 0))]
        var work: [Work] = []
        var renewal: Renewal?
        var renewed = 0
        /// On its way here.
        var news: [Int] = []
        /// The last version that was told, and whether every one is; nothing is lost before that is known.
        var told = 1
        var isFollowing = false
        /// The connection is gone, and the store has not noticed yet: since then.
        var brokenSince: MonotonicInstant?
        var used = 0
        var faults: [String] = []

        init(seed: UInt64) {
            cache = Cache(bytes: 1 << 20, validity: validity, cost: { _, _ in 0 }, version: { Int64($0) })
            random = Steps(state: seed)
        }

        mutating func step() {
            now = now.advanced(by: .milliseconds(Int64(random.below(200))))
            // The store notices a broken connection before long.
            if let broken = brokenSince, broken.advanced(by: .seconds(4)) <= now { lose() }
            switch random.below(19) {
            case 16...: renew()
            case 0..<3: work.append(Work(ticket: cache.ticket("a", now: now), value: nil, isWrite: false))
            case 3: if work.count < 6 { write() }
            case 4..<8: reachStore()
            case 8..<11: finish()
            case 11, 12: hear()
            case 13:
                if isFollowing, brokenSince == nil, news.isEmpty { validity.feedSeenAlive(at: now) }
            case 14:
                if random.below(40) == 0 {
                    if isFollowing { brokenSince = brokenSince ?? now } else { follow() }
                } else if !isFollowing, random.below(8) == 0 {
                    follow()
                }
            default: commitElsewhere()
            }
            check()
        }

        /// One step of it. Everything is renewed that is a second old, and what was found changed is told of.
        mutating func renew() {
            guard let current = renewal else {
                let later = now.advanced(by: .seconds(59))
                guard let checked = validity.checksExpiring(by: later, at: now) else { return }
                var scan = CacheScan(part: 0, of: 1)
                let entries = cache.candidates(in: &scan, limit: 10, checked: checked) { key, _ in
                    RecordID(.credentials, TenantName("t")!, key: key)
                }
                if !entries.isEmpty { renewal = Renewal(asked: now, entries: entries) }
                return
            }
            guard let version = current.version else {
                renewal?.version = Int64(history.last!.version)
                return
            }
            renewal = nil
            for entry in current.entries {
                if entry.version == version {
                    cache.revalidated([entry], checked: current.asked)
                    renewed += 1
                } else {
                    cache.invalidate("a", olderThan: version > entry.version ? version : nil)
                }
            }
        }

        mutating func write() {
            work.append(Work(ticket: cache.ticket("a", now: now), value: nil, isWrite: true))
        }

        mutating func commitElsewhere() {
            guard random.below(3) == 0 else { return }
            commit()
        }

        @discardableResult
        mutating func commit() -> Int {
            let version = history.last!.version + 1
            history.append((version, now))
            if isFollowing, brokenSince == nil { news.append(version) }
            return version
        }

        mutating func reachStore() {
            guard let index = work.indices.filter({ work[$0].value == nil }).randomElement(using: &random) else {
                return
            }
            work[index].value = work[index].isWrite ? commit() : history.last!.version
        }

        mutating func finish() {
            guard let index = work.indices.filter({ work[$0].value != nil }).randomElement(using: &random) else {
                return
            }
            let done = work.remove(at: index)
            if done.isWrite {
                cache.put("a", done.value!, done.ticket)
            } else {
                cache.fill("a", done.value!, done.ticket)
            }
        }

        mutating func hear() {
            guard !news.isEmpty else { return }
            told = news.removeFirst()
            cache.invalidate("a", olderThan: Int64(told))
        }

        mutating func follow() {
            (isFollowing, news, told) = (true, [], history.last!.version)
            validity.feedStarted(at: now)
        }

        mutating func lose() {
            (isFollowing, brokenSince, news) = (false, nil, [])
            validity.feedLost()
        }

        mutating func check() {
            guard let value = cache.fresh("a", now: now) else { return }
            used += 1
            if isFollowing, brokenSince == nil, validity.isFeedAlive(at: now) {
                if value < told { faults.append("\(value) is older than the news of \(told)") }
            }
            let bound = now.advanced(by: .seconds(-5))
            let standing = history.last { $0.time <= bound }!.version
            if value < standing { faults.append("\(value) is older than \(standing), of 5 seconds ago") }
        }
    }

    private struct Steps: RandomNumberGenerator {
        var state: UInt64

        mutating func next() -> UInt64 {
            state &+= 0x9e37_79b9_7f4a_7c15
            var mixed = (state ^ (state >> 30)) &* 0xbf58_476d_1ce4_e5b9
            mixed = (mixed ^ (mixed >> 27)) &* 0x94d0_49bb_1331_11eb
            return mixed ^ (mixed >> 31)
        }

        mutating func below(_ bound: Int) -> Int { Int.random(in: 0..<bound, using: &self) }
    }
}
