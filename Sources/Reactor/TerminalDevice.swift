internal import Glibc
internal import Synchronization

/// The terminal that a person has started the program in. The calls block.
package enum TerminalDevice {
    /// Whether the descriptor (0, 1 or 2) is a terminal.
    package static func isTerminal(_ descriptor: CInt) -> Bool { isatty(descriptor) == 1 }

    /// The columns of the terminal at standard output; nil where there is none.
    package static var width: Int? {
        var size = winsize()
        guard unsafe ioctl(1, UInt(TIOCGWINSZ), &size) == 0, size.ws_col > 0 else { return nil }
        return Int(size.ws_col)
    }

    /// Writes everything to standard output (1) or standard error (2), unless its reader has gone.
    package static func write(_ bytes: [UInt8], to descriptor: CInt) { try? writeAll(bytes, to: descriptor) }

    /// Reads a line of standard input, without its end.
    /// - Parameter isShown: false for a secret: what is typed is not shown. A signal that ends the program while it is read has
    ///   the terminal show again what is typed.
    /// - Returns: nil at the end of the input, or for a line of more than 64 KiB.
    package static func line(isShown: Bool = true) -> String? {
        var saved = termios()
        let hides = unsafe !isShown && tcgetattr(0, &saved) == 0
        if hides {
            var changed = saved
            changed.c_lflag &= ~tcflag_t(ECHO)
            changed.c_lflag |= tcflag_t(ECHONL)
            unsafe tcsetattr(0, TCSAFLUSH, &changed)
            shownAgain.withLock { $0 = saved.c_lflag }
        }
        defer {
            if hides {
                unsafe tcsetattr(0, TCSAFLUSH, &saved)
                shownAgain.withLock { $0 = nil }
            }
        }
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

    /// The flags with which the terminal shows what is typed, while it does not.
    private static let shownAgain = Mutex<tcflag_t?>(nil)

    /// Has the terminal show again what is typed, before the program ends at a signal.
    package static func restore() {
        guard let flags = shownAgain.withLock({ $0 }) else { return }
        var state = termios()
        guard unsafe tcgetattr(0, &state) == 0 else { return }
        state.c_lflag = flags
        unsafe tcsetattr(0, TCSANOW, &state)
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
