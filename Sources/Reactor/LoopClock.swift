/// A clock that an event loop reads instead of the machine's, so that a test decides when time passes.
///
/// Any thread may read it, and it never runs backwards. The kernel does not know its time, so a loop with such a clock
/// sleeps until a descriptor or a queued job wakes it, and never until a deadline. When the time has been moved,
/// `EventLoop.execute` makes the loop run the actions that are due.
package protocol LoopClock: Sendable {
    var now: MonotonicInstant { get }
}
