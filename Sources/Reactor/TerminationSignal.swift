import Glibc
import Synchronization

/// The signals that ask the process to end, SIGTERM and SIGINT. The main thread waits for them, so no handler interrupts
/// other threads.
package enum TerminationSignal {
    /// Blocks SIGTERM and SIGINT, so that `wait` receives them, and ignores SIGPIPE and SIGHUP. Call this before any
    /// thread is started, since threads inherit the signal mask.
    package static func block() {
        block(signals)
        if !isIgnored(SIGHUP) { changed.withLock { _ = $0.insert(SIGHUP) } }
        signal(SIGHUP, SIG_IGN)
    }

    private static func isIgnored(_ number: CInt) -> Bool {
        var before = sigaction()
        unsafe sigaction(number, nil, &before)
        return unsafe unsafeBitCast(before.__sigaction_handler.sa_handler, to: Int.self) == ignoring
    }

    /// What `SIG_IGN` is as a number.
    private static let ignoring = 1

    /// The signals that are ignored since this process has started, and were not before, as nohup(1) has it.
    private static let changed = Mutex<Set<CInt>>([])

    /// Takes back what `block` has changed, for the calling thread: before another program takes this process's place.
    package static func restore() {
        var none = sigset_t()
        unsafe sigemptyset(&none)
        unsafe pthread_sigmask(SIG_SETMASK, &none, nil)
        for number in changed.withLock(\.self) { signal(number, SIG_DFL) }
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

    /// Like `block` but for SIGHUP, and blocks what a terminal sends, so that `waitForCommand` receives it: SIGHUP, SIGQUIT and
    /// SIGTSTP, unless the process was started with them ignored, as by nohup(1).
    package static func blockForCommand() {
        let numbers = [SIGTERM, SIGINT] + [SIGHUP, SIGQUIT, SIGTSTP].filter { !isIgnored($0) }
        ofCommand.withLock { $0 = numbers }
        block(signalSet(of: numbers))
    }

    /// What `blockForCommand` has blocked.
    private static let ofCommand = Mutex<[CInt]>([])

    /// Blocks the calling thread until a signal arrives that ends a command. At SIGTSTP the process stops, and goes on at SIGCONT;
    /// meanwhile the terminal shows what is typed, whatever it does for this process. Requires `blockForCommand`.
    /// - Returns: what a shell says of a program that SIGHUP (129) or SIGQUIT (131) has ended; nil for SIGTERM and SIGINT.
    package static func waitForCommand() -> CInt? {
        let all = signalSet(of: ofCommand.withLock(\.self))
        while true {
            let number = wait(for: all)
            if number != SIGTSTP { return number == SIGHUP || number == SIGQUIT ? 128 + number : nil }
            TerminalDevice.showingWhatIsTyped {
                var stop = signalSet(of: [SIGTSTP])
                raise(SIGTSTP)
                unsafe pthread_sigmask(SIG_UNBLOCK, &stop, nil)
                unsafe pthread_sigmask(SIG_BLOCK, &stop, nil)
            }
        }
    }

    /// Has a write to a pipe that has no reader any more fail, in place of ending the process.
    package static func ignoreBrokenPipes() {
        changed.withLock { _ = $0.insert(SIGPIPE) }
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

    private static var signals: sigset_t { signalSet(of: [SIGTERM, SIGINT]) }

    private static func signalSet(of numbers: [CInt]) -> sigset_t {
        var set = sigset_t()
        unsafe sigemptyset(&set)
        for number in numbers { unsafe sigaddset(&set, number) }
        return set
    }
}
