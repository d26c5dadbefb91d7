internal import CLinux
internal import Glibc

/// The signals that end the process, taken synchronously by one thread instead of interrupting any.
package enum Signals {
    /// Blocks SIGTERM and SIGINT, so that `next` receives them, and ignores SIGPIPE and SIGHUP. To be called before
    /// any thread is started: threads inherit it.
    package static func prepare() {
        var set = terminating
        unsafe pthread_sigmask(SIG_BLOCK, &set, nil)
        signal(SIGPIPE, SIG_IGN)
        signal(SIGHUP, SIG_IGN)
    }

    /// Blocks the calling thread until one of the two arrives.
    package static func next() {
        var set = terminating
        var number: CInt = 0
        while unsafe sigwait(&set, &number) != 0 {}
    }

    private static var terminating: sigset_t {
        var set = sigset_t()
        unsafe sigemptyset(&set)
        unsafe sigaddset(&set, SIGTERM)
        unsafe sigaddset(&set, SIGINT)
        return set
    }
}

package enum ProcessHardening {
    /// Leaves no core file and no way to attach: a crash must not write secrets to a disk.
    package static func forbidCoreDumps() throws(SystemError) {
        try retryingInterrupts("prctl") { clinux_forbid_core_dumps() }
    }
}

package enum DescriptorLimit {
    /// Raises the soft limit on open descriptors, which many systems keep at 1024, to the hard one. Returns it.
    package static func raise() throws(SystemError) -> Int {
        try retryingInterrupts("setrlimit") { clinux_raise_descriptor_limit() }
    }

    /// Has the kernel's table of descriptors have room for so many, if it can, within the limit.
    ///
    /// The table grows by doubling, and in a process with threads whoever opens the descriptor that it grows for waits
    /// until no processor can be looking into the old one: 5 to 20 ms, in which a loop serves nobody. Before the first
    /// thread it costs next to nothing, and the table takes 8 bytes for each of them, of the kernel's memory.
    package static func reserve(_ count: Int) {
        clinux_reserve_descriptors(CInt(clamping: count))
    }
}

/// Plain text to standard output or standard error, for commands and for a start that failed.
package enum Console {
    package static func print(_ text: String) { write(1, text) }

    package static func printError(_ text: String) { write(2, text) }

    private static func write(_ descriptor: CInt, _ text: String) {
        let bytes = Array((text + "\n").utf8)
        var offset = 0
        while offset < bytes.count {
            let written = unsafe bytes.withUnsafeBytes { buffer in
                unsafe Glibc.write(descriptor, buffer.baseAddress! + offset, buffer.count - offset)
            }
            if written > 0 { offset += written } else if errno != EINTR { return }
        }
    }

    /// Ends the process at once. Nothing is torn down first: other threads may be using what exit(3) would take from
    /// under them.
    package static func exit(_ code: Int32) -> Never { Glibc._exit(code) }
}
