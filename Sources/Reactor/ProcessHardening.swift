internal import CLinux

package enum ProcessHardening {
    /// Disables core dumps, the attaching of debuggers and the crash reports of Swift's runtime, which print what registers
    /// point to, so that a crash cannot write secrets to a disk or to standard error. A crash ends the process at once.
    package static func forbidCoreDumps() throws(SystemError) {
        try retryingInterrupts("prctl") { clinux_forbid_core_dumps() }
    }

    /// Keeps all memory of the process out of swap, from now on.
    /// - Throws: `EPERM` unless the process may lock as much memory as it likes: by CAP_IPC_LOCK, or with RLIMIT_MEMLOCK
    ///   unlimited.
    package static func lockMemory() throws(SystemError) {
        try retryingInterrupts("mlockall") { clinux_lock_memory() }
    }
}
