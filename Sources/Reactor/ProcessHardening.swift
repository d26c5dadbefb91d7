internal import CLinux

package enum ProcessHardening {
    /// Disables core dumps and the attaching of debuggers, so that a crash cannot write secrets to a disk.
    package static func forbidCoreDumps() throws(SystemError) {
        try retryingInterrupts("prctl") { clinux_forbid_core_dumps() }
    }
}
