internal import CLinux

package enum ProcessHardening {
    /// Disables core dumps, the attaching of debuggers and the crash reports of Swift's runtime, which print what registers
    /// point to, so that a crash cannot write secrets to a disk or to standard error. A crash ends the process at once.
    package static func forbidCoreDumps() throws(SystemError) {
        try retryingInterrupts("prctl") { clinux_forbid_core_dumps() }
    }
}
