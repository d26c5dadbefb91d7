internal import Glibc

/// The signals that ask the process to end, SIGTERM and SIGINT. The main thread waits for them, so no handler interrupts
/// other threads.
package enum TerminationSignal {
    /// Blocks SIGTERM and SIGINT, so that `wait` receives them, and ignores SIGPIPE and SIGHUP. Call this before any
    /// thread is started, since threads inherit the signal mask.
    package static func block() {
        block(signals)
        signal(SIGHUP, SIG_IGN)
    }

    /// Blocks SIGHUP, so that it does not end the process while this reads what it needs to start.
    package static func deferHangUp() {
        var set = sigset_t()
        unsafe sigemptyset(&set)
        unsafe sigaddset(&set, SIGHUP)
        unsafe pthread_sigmask(SIG_BLOCK, &set, nil)
    }

    /// Like `block`, and blocks SIGHUP, so that `waitForHangUp` receives it.
    package static func blockWithHangUp() {
        block(allSignals)
    }

    /// Like `block`, and leaves SIGHUP as the process was started with it.
    package static func blockForCommand() {
        block(signals)
    }

    /// Has a write to a pipe that has no reader any more fail, in place of ending the process.
    package static func ignoreBrokenPipes() {
        signal(SIGPIPE, SIG_IGN)
    }

    private static func block(_ set: sigset_t) {
        var set = set
        unsafe pthread_sigmask(SIG_BLOCK, &set, nil)
        ignoreBrokenPipes()
    }

    /// Blocks the calling thread until SIGTERM or SIGINT arrives.
    package static func wait() {
        _ = wait(for: signals)
    }

    /// Blocks the calling thread until SIGHUP, SIGTERM or SIGINT arrives. Returns whether it was SIGHUP. Requires
    /// `blockWithHangUp`.
    package static func waitForHangUp() -> Bool { wait(for: allSignals) == SIGHUP }

    private static func wait(for set: sigset_t) -> CInt {
        var set = set
        var number: CInt = 0
        while unsafe sigwait(&set, &number) != 0 {}
        return number
    }

    private static var allSignals: sigset_t {
        var set = signals
        unsafe sigaddset(&set, SIGHUP)
        return set
    }

    private static var signals: sigset_t {
        var set = sigset_t()
        unsafe sigemptyset(&set)
        unsafe sigaddset(&set, SIGTERM)
        unsafe sigaddset(&set, SIGINT)
        return set
    }
}
