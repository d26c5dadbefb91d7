import Glibc

/// Writes plain text to standard output or standard error, for commands and for a start that failed. What standard output does not
/// take is told by `TerminalDevice.outputFault`.
package enum Console {
    package static func print(_ text: String) { write(1, text) }

    package static func printError(_ text: String) { write(2, text) }

    private static func write(_ descriptor: CInt, _ text: String) {
        TerminalDevice.write(Array((text + "\n").utf8), to: descriptor)
    }

    /// Ends the process at once with _exit(2), and takes what it has not completed of files. exit(3) would destroy objects that other
    /// threads may be using.
    package static func exit(_ code: Int32) -> Never {
        DraftFile.removeAll()
        Glibc._exit(code)
    }
}
