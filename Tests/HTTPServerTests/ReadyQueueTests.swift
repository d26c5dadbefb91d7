import Reactor
import Testing

@testable import HTTPServer

@Suite struct `The queue of ready connections` {
    private func makeQueue(_ count: Int, began: (Int) -> Int64 = { Int64($0) }) -> ReadyQueue {
        var queue = ReadyQueue()
        for slot in 0..<count {
            queue.append(ReadyQueue.Entry(slot: slot, since: MonotonicInstant(nanoseconds: began(slot))))
        }
        return queue
    }

    private func slots(_ queue: inout ReadyQueue, limit: Int64, most: Int = .max) -> [Int] {
        var slots: [Int] = []
        while slots.count < most, let turn = queue.next(limit: MonotonicInstant(nanoseconds: limit)) {
            slots.append(turn.slot)
        }
        return slots
    }

    @Test(arguments: [0, 1, 63, 64, 65, 128, 129, 1000])
    func `is first in, first out, however long it is`(count: Int) {
        var queue = makeQueue(count)
        #expect(queue.count == count)
        #expect(slots(&queue, limit: .min) == Array(0..<count))
        #expect(queue.count == 0)
    }

    @Test func `keeps its order when its ring buffer wraps and grows`() {
        var queue = makeQueue(50)
        #expect(slots(&queue, limit: .min, most: 40) == Array(0..<40))
        for slot in 50..<200 {
            queue.append(ReadyQueue.Entry(slot: slot, since: MonotonicInstant(nanoseconds: Int64(slot))))
        }
        #expect(slots(&queue, limit: .min) == Array(40..<200))
    }

    @Test func `says since when it is overloaded, and forgets that when it is not`() {
        var queue = makeQueue(ReadyQueue.leastCrowd)
        let instant = MonotonicInstant.init(nanoseconds:)
        #expect(queue.overload(at: instant(100), limit: instant(0)) == nil)
        #expect(queue.overload(at: instant(110), limit: instant(1)) == instant(110))
        #expect(queue.overload(at: instant(120), limit: instant(1)) == instant(110))
        #expect(queue.overload(at: instant(130), limit: instant(0)) == nil)
        #expect(queue.overload(at: instant(140), limit: instant(1)) == instant(140))
        // One entry less is no crowd.
        _ = queue.next(limit: instant(.min))
        #expect(queue.overload(at: instant(150), limit: instant(200)) == nil)
    }

    @Test(arguments: [(63, 1, false), (64, -1, false), (64, 0, false), (64, 1, true), (65, 1, true)])
    func `serves the newest first when the oldest of a crowd waited for too long`(
        count: Int, limit: Int64, isNewestFirst: Bool
    ) {
        var queue = makeQueue(count)
        let turn = queue.next(limit: MonotonicInstant(nanoseconds: limit))
        let slot = isNewestFirst ? count - 1 : 0
        let since = MonotonicInstant(nanoseconds: Int64(slot))
        #expect(turn == ReadyQueue.Turn(slot: slot, since: since, isRefused: false))
    }

    @Test func `refuses the oldest of a crowd now and then, and no entry when the crowd is gone`() {
        let (count, turns) = (100, ReadyQueue.turnsForOldest)
        // The older half has waited for too long.
        var queue = makeQueue(count) { $0 < count / 2 ? 0 : 2 }
        var refused: [Int] = []
        var order: [Int] = []
        while let turn = queue.next(limit: MonotonicInstant(nanoseconds: 1)) {
            order.append(turn.slot)
            if turn.isRefused { refused.append(turn.slot) }
        }
        // The turns until fewer entries than a crowd are left.
        let pressed = count - ReadyQueue.leastCrowd + 1
        #expect(refused == Array(0..<pressed / turns))
        #expect(order[turns - 1] == 0 && order[2 * turns - 1] == 1)
        #expect(Array(order.prefix(turns - 1)) == Array((count - turns + 1..<count).reversed()))
        #expect(Array(order.dropFirst(pressed)) == Array(pressed / turns..<count - pressed + pressed / turns))
        #expect(order.sorted() == Array(0..<count))
    }

    @Test func `refuses the newest, too, when they waited for too long`() {
        var queue = makeQueue(ReadyQueue.leastCrowd + 1) { _ in 0 }
        let turns = (0..<3).compactMap { _ in queue.next(limit: MonotonicInstant(nanoseconds: 1)) }
        #expect(turns.map(\.isRefused) == [true, true, false])
    }
}
