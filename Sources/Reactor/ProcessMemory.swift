import CLinux

package enum ProcessMemory {
    /// Releases memory that holds code and tables that only the start needed: relocations, symbols, the runtime's type
    /// lookup, OpenSSL's initialisation. After the start this is a third of the process's memory. If a released page is
    /// needed again, the kernel maps it from its page cache, in about a microsecond for 64 KiB.
    ///
    /// Any thread may call this at any time. Data is not affected. Breakpoints that a debugger has set are lost.
    package static func releaseStartPages() { _ = clinux_drop_unwritten_pages() }
}
