import Reactor
import Testing

@testable import Postgres

@Suite struct `Pool state` {
    private static let start = MonotonicInstant(nanoseconds: 0)

    private static func at(_ milliseconds: Int64) -> MonotonicInstant {
        MonotonicInstant(nanoseconds: milliseconds * 1_000_000)
    }

    private static func state(connections: Int = 2, waiters: Int = 3, lifetime: Duration? = nil) -> PoolState {
        PoolState(PoolState.Limits(connections: connections, waiters: waiters, lifetime: lifetime))
    }

    @Test func `a connection is opened when it is first needed and lent when it is there`() {
        var state = Self.state()
        #expect(state.requested(by: 1, at: Self.start) == [.open(connection: 1)])
        #expect(state.opened(1, at: Self.start) == [.lend(connection: 1, to: 1)])
        #expect(state.returned(1, in: .usable, at: Self.start) == [])
        #expect(state.requested(by: 2, at: Self.start) == [.lend(connection: 1, to: 2)])
    }

    @Test func `no more connections are opened than the limit`() {
        var state = Self.state()
        #expect(state.requested(by: 1, at: Self.start) == [.open(connection: 1)])
        #expect(state.requested(by: 2, at: Self.start) == [.open(connection: 2)])
        #expect(state.requested(by: 3, at: Self.start) == [])
        #expect(state.opened(2, at: Self.start) == [.lend(connection: 2, to: 1)])
        #expect(state.opened(1, at: Self.start) == [.lend(connection: 1, to: 2)])
        #expect(state.returned(1, in: .usable, at: Self.start) == [.lend(connection: 1, to: 3)])
    }

    @Test func `waiters are served in their order, without those that gave up`() {
        var state = Self.state(connections: 1)
        _ = state.requested(by: 1, at: Self.start)
        _ = state.opened(1, at: Self.start)
        for waiter in 2...4 { #expect(state.requested(by: waiter, at: Self.start) == []) }
        state.abandoned(by: 2)
        #expect(state.returned(1, in: .usable, at: Self.start) == [.lend(connection: 1, to: 3)])
        #expect(state.returned(1, in: .usable, at: Self.start) == [.lend(connection: 1, to: 4)])
    }

    @Test func `one waiter more than the limit is refused`() {
        var state = Self.state(connections: 1, waiters: 3)
        _ = state.requested(by: 1, at: Self.start)
        _ = state.opened(1, at: Self.start)
        for waiter in 2...4 { #expect(state.requested(by: waiter, at: Self.start) == []) }
        #expect(state.requested(by: 5, at: Self.start) == [.refuse(waiter: 5, .exhausted)])
    }

    @Test func `a broken connection is replaced for those that wait`() {
        var state = Self.state(connections: 1)
        _ = state.requested(by: 1, at: Self.start)
        _ = state.opened(1, at: Self.start)
        _ = state.requested(by: 2, at: Self.start)
        #expect(state.returned(1, in: .broken, at: Self.start) == [.discard(connection: 1), .open(connection: 2)])
        #expect(state.opened(2, at: Self.start) == [.lend(connection: 2, to: 2)])
    }

    @Test func `a connection found dead costs its waiter no turn`() {
        var state = Self.state(connections: 1)
        _ = state.requested(by: 1, at: Self.start)
        _ = state.opened(1, at: Self.start)
        _ = state.requested(by: 2, at: Self.start)
        _ = state.requested(by: 3, at: Self.start)
        #expect(state.returned(1, in: .usable, at: Self.start) == [.lend(connection: 1, to: 2)])
        #expect(
            state.foundDead(1, for: 2, at: Self.start) == [.discard(connection: 1), .open(connection: 2)])
        #expect(state.opened(2, at: Self.start) == [.lend(connection: 2, to: 2)])
    }

    @Test func `a suspect server discredits every connection made before`() {
        var state = Self.state(connections: 3)
        for id in 1...3 {
            _ = state.requested(by: id, at: Self.start)
        }
        for id in 1...3 { _ = state.opened(id, at: Self.start) }
        #expect(state.returned(1, in: .usable, at: Self.start) == [])
        #expect(
            state.returned(2, in: .serverSuspect, at: Self.start) == [.discard(connection: 1), .discard(connection: 2)])
        #expect(state.returned(3, in: .usable, at: Self.start) == [.discard(connection: 3)])
        #expect(state.requested(by: 4, at: Self.start) == [.open(connection: 4)])
        _ = state.opened(4, at: Self.start)
        #expect(state.returned(4, in: .usable, at: Self.start) == [])
    }

    @Test(arguments: [(999, true), (1000, false), (1001, false)])
    func `a connection lives as long as it may`(age: Int64, kept: Bool) {
        var state = Self.state(lifetime: .milliseconds(1000))
        _ = state.requested(by: 1, at: Self.start)
        _ = state.opened(1, at: Self.start)
        #expect(state.returned(1, in: .usable, at: Self.at(age)) == (kept ? [] : [.discard(connection: 1)]))
    }

    @Test func `when connecting fails all that wait learn of it`() {
        var state = Self.state(connections: 1)
        _ = state.requested(by: 1, at: Self.start)
        _ = state.requested(by: 2, at: Self.start)
        #expect(
            state.openingFailed(1, at: Self.start) == [
                .refuse(waiter: 1, .unreachable), .refuse(waiter: 2, .unreachable),
            ])
    }

    @Test func `during the pause callers are refused at once, and then one tries`() {
        var state = Self.state()
        _ = state.requested(by: 1, at: Self.start)
        _ = state.openingFailed(1, at: Self.start)
        #expect(state.requested(by: 2, at: Self.at(99)) == [.refuse(waiter: 2, .unreachable)])
        #expect(state.requested(by: 3, at: Self.at(100)) == [.open(connection: 2)])
        #expect(state.requested(by: 4, at: Self.at(101)) == [.refuse(waiter: 4, .unreachable)])
        #expect(state.openingFailed(2, at: Self.at(110)) == [.refuse(waiter: 3, .unreachable)])
        #expect(state.requested(by: 5, at: Self.at(309)) == [.refuse(waiter: 5, .unreachable)])
        #expect(state.requested(by: 6, at: Self.at(310)) == [.open(connection: 3)])
        #expect(state.opened(3, at: Self.at(311)) == [.lend(connection: 3, to: 6)])
        #expect(state.requested(by: 7, at: Self.at(311)) == [.open(connection: 4)])
    }

    @Test func `while a connection works its waiters outlast a failure to open another`() {
        var state = Self.state()
        _ = state.requested(by: 1, at: Self.start)
        _ = state.opened(1, at: Self.start)
        #expect(state.requested(by: 2, at: Self.start) == [.open(connection: 2)])
        #expect(state.openingFailed(2, at: Self.start) == [])
        #expect(state.requested(by: 3, at: Self.at(50)) == [])
        #expect(state.returned(1, in: .usable, at: Self.at(60)) == [.lend(connection: 1, to: 2)])
    }

    @Test func `a connection whose making began before the server became suspect is not lent`() {
        var state = Self.state(connections: 3)
        _ = state.requested(by: 1, at: Self.start)
        _ = state.opened(1, at: Self.start)
        #expect(state.requested(by: 2, at: Self.start) == [.open(connection: 2)])
        #expect(state.returned(1, in: .serverSuspect, at: Self.start) == [.discard(connection: 1)])
        #expect(state.opened(2, at: Self.start) == [.discard(connection: 2), .open(connection: 3)])
        #expect(state.opened(3, at: Self.start) == [.lend(connection: 3, to: 2)])
        #expect(state.returned(3, in: .usable, at: Self.start) == [])
    }

    @Test func `who waits for a connection in use gets another one when the pause after a failure is over`() {
        var state = Self.state()
        #expect(state.nextRetry == nil)
        _ = state.requested(by: 1, at: Self.start)
        _ = state.opened(1, at: Self.start)
        #expect(state.requested(by: 2, at: Self.start) == [.open(connection: 2)])
        #expect(state.nextRetry == nil)
        #expect(state.openingFailed(2, at: Self.at(10)) == [])
        #expect(state.nextRetry == Self.at(110))
        #expect(state.retryDue(at: Self.at(109)) == [])
        #expect(state.retryDue(at: Self.at(110)) == [.open(connection: 3)])
        #expect(state.nextRetry == nil)
        #expect(state.opened(3, at: Self.at(111)) == [.lend(connection: 3, to: 2)])
        #expect(state.nextRetry == nil)
        _ = state.requested(by: 3, at: Self.at(111))
        #expect(state.nextRetry == nil)
    }

    @Test(arguments: [(0, 100), (1, 200), (2, 400), (3, 500), (4, 500), (1_000_000, 500)])
    func `the pause doubles up to half a second`(failures: Int, milliseconds: Int) {
        #expect(PoolState.pause(afterFailures: failures) == .milliseconds(milliseconds))
    }

    @Test func `closing refuses those that wait and lets the borrowers finish`() {
        var state = Self.state(connections: 2)
        _ = state.requested(by: 1, at: Self.start)
        _ = state.requested(by: 2, at: Self.start)
        _ = state.opened(1, at: Self.start)
        #expect(state.close(at: Self.start) == [.refuse(waiter: 2, .closed)])
        #expect(state.requested(by: 3, at: Self.start) == [.refuse(waiter: 3, .closed)])
        #expect(state.opened(2, at: Self.start) == [.discard(connection: 2)])
        #expect(state.returned(1, in: .usable, at: Self.start) == [.discard(connection: 1), .drained])
        #expect(state.close(at: Self.start) == [])
    }

    @Test func `closing an unused pool is done at once`() {
        var state = Self.state()
        #expect(state.close(at: Self.start) == [.drained])
    }
}
