import Reactor
import Testing

@testable import HTTPServer

@Suite struct `A line of those who wait for their turn` {
    private func line(_ count: Int, began: (Int) -> Int64 = { Int64($0) }) -> WaitingLine {
        var line = WaitingLine()
        for slot in 0..<count {
            line.append(WaitingLine.Entry(slot: slot, since: MonotonicInstant(nanoseconds: began(slot))))
        }
        return line
    }

    private func slots(_ line: inout WaitingLine, limit: Int64, most: Int = .max) -> [Int] {
        var slots: [Int] = []
        while slots.count < most, let turn = line.next(limit: MonotonicInstant(nanoseconds: limit)) {
            slots.append(turn.slot)
        }
        return slots
    }

    @Test(arguments: [0, 1, 63, 64, 65, 128, 129, 1000])
    func `serves who came first, however many there are`(count: Int) {
        var line = line(count)
        #expect(line.count == count)
        #expect(slots(&line, limit: .min) == Array(0..<count))
        #expect(line.count == 0)
    }

    @Test func `goes on where it began somewhere in its memory`() {
        var line = line(50)
        #expect(slots(&line, limit: .min, most: 40) == Array(0..<40))
        for slot in 50..<200 {
            line.append(WaitingLine.Entry(slot: slot, since: MonotonicInstant(nanoseconds: Int64(slot))))
        }
        #expect(slots(&line, limit: .min) == Array(40..<200))
    }

    @Test func `tells since when it has been too long, and forgets it when it is no more`() {
        var line = line(WaitingLine.leastCrowd)
        let instant = MonotonicInstant.init(nanoseconds:)
        #expect(line.standing(at: instant(100), limit: instant(0)) == nil)
        #expect(line.standing(at: instant(110), limit: instant(1)) == instant(110))
        #expect(line.standing(at: instant(120), limit: instant(1)) == instant(110))
        #expect(line.standing(at: instant(130), limit: instant(0)) == nil)
        #expect(line.standing(at: instant(140), limit: instant(1)) == instant(140))
        // One less is no crowd.
        _ = line.next(limit: instant(.min))
        #expect(line.standing(at: instant(150), limit: instant(200)) == nil)
    }

    @Test(arguments: [(63, 1, false), (64, -1, false), (64, 0, false), (64, 1, true), (65, 1, true)])
    func `serves the newest first where the oldest of a crowd waited for too long`(
        count: Int, limit: Int64, isNewestFirst: Bool
    ) {
        var line = line(count)
        let turn = line.next(limit: MonotonicInstant(nanoseconds: limit))
        let slot = isNewestFirst ? count - 1 : 0
        let since = MonotonicInstant(nanoseconds: Int64(slot))
        #expect(turn == WaitingLine.Turn(slot: slot, since: since, isRefused: false))
    }

    @Test func `refuses the oldest of a crowd now and then, and nobody once it is none`() {
        let (count, turns) = (100, WaitingLine.turnsForOldest)
        // The older half has waited for too long.
        var line = line(count) { $0 < count / 2 ? 0 : 2 }
        var refused: [Int] = []
        var order: [Int] = []
        while let turn = line.next(limit: MonotonicInstant(nanoseconds: 1)) {
            order.append(turn.slot)
            if turn.isRefused { refused.append(turn.slot) }
        }
        // Until fewer than a crowd are left.
        let pressed = count - WaitingLine.leastCrowd + 1
        #expect(refused == Array(0..<pressed / turns))
        #expect(order[turns - 1] == 0 && order[2 * turns - 1] == 1)
        #expect(Array(order.prefix(turns - 1)) == Array((count - turns + 1..<count).reversed()))
        #expect(Array(order.dropFirst(pressed)) == Array(pressed / turns..<count - pressed + pressed / turns))
        #expect(order.sorted() == Array(0..<count))
    }

    @Test func `refuses the newest, too, where they waited for too long`() {
        var line = line(WaitingLine.leastCrowd + 1) { _ in 0 }
        let turns = (0..<3).compactMap { _ in line.next(limit: MonotonicInstant(nanoseconds: 1)) }
        #expect(turns.map(\.isRefused) == [true, true, false])
    }
}
