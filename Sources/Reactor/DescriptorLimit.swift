import CLinux

package enum DescriptorLimit {
    /// Raises the soft limit on open descriptors, which many systems set to 1024, to the hard limit.
    /// - Returns: the limit that holds now.
    package static func raise() throws(SystemError) -> Int {
        try retryingInterrupts("setrlimit") { clinux_raise_descriptor_limit() }
    }

    /// Enlarges the kernel's table of this process's descriptors to `count` entries, as far as the limit allows.
    ///
    /// Otherwise the table grows by doubling. In a process with several threads, the thread whose descriptor makes it grow
    /// waits 5 to 20 ms until no processor reads the old table, and an event loop serves no connection in that time.
    /// Before the first thread is started, enlarging the table takes no noticeable time. An entry takes 8 bytes of the
    /// kernel's memory.
    package static func reserve(_ count: Int) {
        clinux_reserve_descriptors(CInt(clamping: count))
    }
}
