import CLinux
import Glibc
import Synchronization

package enum ProcessHardening {
    /// Disables core dumps, the attaching of debuggers and the crash reports of Swift's runtime, which print what registers
    /// point to, so that a crash cannot write secrets to a disk or to standard error. A crash ends the process at once.
    /// - Parameter isForGood: false for a process whose place another program may take, which is to have the limit that was there.
    package static func forbidCoreDumps(isForGood: Bool = true) throws(SystemError) {
        var limit = rlimit()
        try retryingInterrupts("getrlimit") { unsafe getrlimit(__rlimit_resource_t(RLIMIT_CORE.rawValue), &limit) }
        coreLimit.withLock { $0 = (limit.rlim_cur, limit.rlim_max) }
        try retryingInterrupts("prctl") { clinux_forbid_core_dumps() }
        if !isForGood { return }
        limit = rlimit(rlim_cur: 0, rlim_max: 0)
        try retryingInterrupts("setrlimit") { unsafe setrlimit(__rlimit_resource_t(RLIMIT_CORE.rawValue), &limit) }
    }

    /// The limit of core dumps before they were forbidden; nil where they were not.
    private static let coreLimit = Mutex<(now: rlim_t, most: rlim_t)?>(nil)

    /// Takes back the limit of core dumps, before another program takes this process's place.
    static func restoreCoreLimit() {
        guard let (now, most) = coreLimit.withLock(\.self) else { return }
        var limit = rlimit(rlim_cur: now, rlim_max: most)
        unsafe setrlimit(__rlimit_resource_t(RLIMIT_CORE.rawValue), &limit)
    }

    /// Keeps all memory of the process out of swap, from now on.
    /// - Throws: `EPERM` unless the process may lock as much memory as it likes: by CAP_IPC_LOCK, or with RLIMIT_MEMLOCK
    ///   unlimited.
    package static func lockMemory() throws(SystemError) {
        try retryingInterrupts("mlockall") { clinux_lock_memory() }
    }
}
