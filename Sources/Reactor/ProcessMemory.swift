internal import CLinux

package enum ProcessMemory {
    /// Lets go of the code and the tables that only the start needed: relocations, symbols, the runtime's search for
    /// types, OpenSSL's set-up. They come to a third of the memory that the process holds then, and nothing asks for
    /// them again. Pages that are needed again return from the kernel's cache, at about a microsecond each 64 KiB.
    ///
    /// May be called at any time, from any thread. Does nothing to data. Breakpoints that a debugger has set are lost.
    package static func giveBackStartPages() { _ = clinux_drop_unwritten_pages() }
}
