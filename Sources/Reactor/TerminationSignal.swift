internal import Glibc

/// The signals that ask the process to end, SIGTERM and SIGINT. The main thread waits for them, so no handler interrupts
/// other threads.
package enum TerminationSignal {
    /// Blocks SIGTERM and SIGINT, so that `wait` receives them, and ignores SIGPIPE and SIGHUP. Call this before any
    /// thread is started, since threads inherit the signal mask.
    package static func block() {
        var set = signals
        unsafe pthread_sigmask(SIG_BLOCK, &set, nil)
        signal(SIGPIPE, SIG_IGN)
        signal(SIGHUP, SIG_IGN)
    }

    /// Blocks the calling thread until SIGTERM or SIGINT arrives.
    package static func wait() {
        var set = signals
        var number: CInt = 0
        while unsafe sigwait(&set, &number) != 0 {}
    }

    private static var signals: sigset_t {
        var set = sigset_t()
        unsafe sigemptyset(&set)
        unsafe sigaddset(&set, SIGTERM)
        unsafe sigaddset(&set, SIGINT)
        return set
    }
}
