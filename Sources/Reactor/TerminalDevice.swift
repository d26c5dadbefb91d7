import Glibc
import Synchronization

/// The terminal that a person has started the program in. The calls block.
package enum TerminalDevice {
    /// Whether the descriptor (0, 1 or 2) is a terminal.
    package static func isTerminal(_ descriptor: CInt) -> Bool { isatty(descriptor) == 1 }

    /// The columns of the terminal at standard error, where bars and codes are shown; nil where there is none.
    package static var width: Int? {
        var size = winsize()
        guard unsafe ioctl(2, UInt(TIOCGWINSZ), &size) == 0, size.ws_col > 0 else { return nil }
        return Int(size.ws_col)
    }

    /// Why standard output is not complete: the first write that failed; nil while none has.
    package static var outputFault: SystemError? { fault.withLock(\.self) }

    private static let fault = Mutex<SystemError?>(nil)

    /// Writes everything to standard output (1) or standard error (2). Of standard output the first fault is kept as `outputFault`,
    /// and nothing is written behind it. A fault of standard error cannot be told.
    package static func write(_ bytes: [UInt8], to descriptor: CInt) {
        if descriptor == 1, outputFault != nil { return }
        do throws(SystemError) {
            try writeAll(bytes, to: descriptor)
        } catch {
            if descriptor == 1 { fault.withLock { $0 = $0 ?? error } }
        }
    }

    /// Asks for a line that is not shown while it is typed; a signal that ends the program meanwhile has the terminal show again what is
    /// typed. Where standard input is no terminal, there is no question.
    /// - Returns: as `line`.
    package static func secret(_ prompt: String) -> String? {
        let isTyped = hideTyping()
        defer { if isTyped { showTyping() } }
        // Where standard error is a file, the person sees what is written to the terminal itself.
        if isTyped { write(Array(prompt.utf8), to: isTerminal(2) ? 2 : 0) }
        return line()
    }

    /// Reads a line of standard input, without its end.
    /// - Returns: nil at the end of the input, or for a line of more than 64 KiB.
    package static func line() -> String? {
        var bytes: [UInt8] = []
        while bytes.count <= 64 << 10 {
            var byte: UInt8 = 0
            let count = unsafe Glibc.read(0, &byte, 1)
            if count == -1, errno == EINTR { continue }
            if count <= 0 { return bytes.isEmpty ? nil : String(decoding: bytes, as: UTF8.self) }
            if byte == 0x0a {
                if bytes.last == 0x0d { bytes.removeLast() }
                return String(decoding: bytes, as: UTF8.self)
            }
            bytes.append(byte)
        }
        return nil
    }

    private struct Typing {
        /// The terminal as it was before it stopped to show what is typed; nil while it shows that.
        var shown: termios?
        /// Whether the program ends, so that nothing is hidden any more.
        var isOver = false
    }

    /// The lock is held while the terminal is changed: a signal that comes meanwhile must find what to take back.
    private static let typing = Mutex(Typing())

    /// - Returns: false where standard input is no terminal.
    private static func hideTyping() -> Bool {
        let isHidden = typing.withLock { typing in
            var state = termios()
            guard !typing.isOver, unsafe tcgetattr(0, &state) == 0 else { return false }
            typing.shown = state
            state.c_lflag &= ~tcflag_t(ECHO)
            state.c_lflag |= tcflag_t(ECHONL)
            // At once: a terminal that is held by Control-S must not keep the lock.
            unsafe tcsetattr(0, TCSANOW, &state)
            return true
        }
        // What was typed before the question is no answer to it.
        if isHidden { tcflush(0, TCIFLUSH) }
        return isHidden
    }

    private static func showTyping() {
        typing.withLock { typing in
            guard var state = typing.shown else { return }
            unsafe tcsetattr(0, TCSANOW, &state)
            typing.shown = nil
        }
    }

    /// Has the terminal show what is typed, from now on, before the program ends at a signal.
    package static func restore() {
        typing.withLock { $0.isOver = true }
        showTyping()
    }

    /// Has the terminal show what is typed while `body` runs, and do then again what it did.
    static func showingWhatIsTyped(_ body: () -> Void) {
        var before = termios()
        let isHidden = unsafe tcgetattr(0, &before) == 0 && before.c_lflag & tcflag_t(ECHO) == 0
        if isHidden {
            var shown = before
            shown.c_lflag |= tcflag_t(ECHO)
            unsafe tcsetattr(0, TCSANOW, &shown)
        }
        body()
        if isHidden { unsafe tcsetattr(0, TCSANOW, &before) }
    }

    /// Standard input to its end; nil for more than `limit` bytes, or where it cannot be read.
    package static func input(limit: Int) -> [UInt8]? {
        var bytes: [UInt8] = []
        var part = [UInt8](repeating: 0, count: 64 << 10)
        while true {
            let count = unsafe part.withUnsafeMutableBytes { unsafe Glibc.read(0, $0.baseAddress!, $0.count) }
            if count == -1, errno == EINTR { continue }
            if count < 0 { return nil }
            if count == 0 { return bytes }
            bytes += part[..<count]
            if bytes.count > limit { return nil }
        }
    }
}
