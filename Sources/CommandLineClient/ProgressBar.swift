package import Reactor

/// A line on standard error that shows how far a long command is: a bar, the count, the rate, the time that is left; of a work whose
/// length is not known, the count and the rate. Where standard error is no terminal, it shows nothing.
package final class ProgressBar {
    private let terminal: any Terminal
    private let total: Int?
    private let first: Int
    private let begun: MonotonicInstant
    private var shown: MonotonicInstant?
    private var isOnScreen = false

    /// How long a line stays before the next one.
    private static let pause: Duration = .milliseconds(100)

    /// - Parameters:
    ///   - total: how many there are; nil where that is not known.
    ///   - done: how many were done by an earlier run, which do not count for the rate.
    package init(_ terminal: any Terminal, total: Int? = nil, done: Int = 0, now: MonotonicInstant = .now) {
        self.terminal = terminal
        self.total = total
        first = done
        begun = now
    }

    /// Shows that so many are done, at most ten times a second.
    package func advance(to done: Int, now: MonotonicInstant = .now) {
        guard terminal.showsProgress else { return }
        if let shown, shown.duration(to: now) < Self.pause, total.map({ done < $0 }) ?? true { return }
        shown = now
        isOnScreen = true
        let text = Self.text(
            done: done, total: total, sinceBegin: done - first, elapsed: begun.duration(to: now),
            width: terminal.width)
        terminal.writeError("\r" + text + "\u{1b}[K")
    }

    /// Takes the line away, so that another one can be written.
    package func clear() {
        guard isOnScreen else { return }
        isOnScreen = false
        terminal.writeError("\r\u{1b}[K")
    }

    /// - Parameters:
    ///   - sinceBegin: how many were done in the time `elapsed`.
    ///   - width: columns of the terminal; the text leaves the last one free, and has no bar where there is no room for one.
    static func text(done: Int, total: Int?, sinceBegin: Int, elapsed: Duration, width: Int) -> String {
        let seconds = Double(elapsed.components.seconds) + Double(elapsed.components.attoseconds) / 1e18
        let rate = seconds > 0 ? Double(sinceBegin) / seconds : 0
        var text = " \(grouped(done))" + (total.map { " of \(grouped(max(done, $0)))" } ?? "")
        if rate > 0 {
            text += rate >= 10 ? "  \(grouped(Int(min(rate, 1e15))))/s" : "  \((rate * 10).rounded() / 10)/s"
            if let total, total > done {
                text += "  \(clock(Int(min(Double(total - done) / rate, 1e9).rounded(.up)))) left"
            }
        }
        let room = min(40, width - text.count - 3)
        guard let total, room >= 8 else { return String(text.dropFirst().prefix(max(0, width - 1))) }
        let share = total > 0 ? min(1, Double(done) / Double(total)) : 1
        let filled = Int(share * Double(room))
        return "[" + String(repeating: "=", count: filled) + String(repeating: " ", count: room - filled) + "]" + text
    }

    /// `100,000`.
    static func grouped(_ number: Int) -> String {
        var digits = String(number)
        var text = ""
        while digits.count > 3 {
            text = "," + digits.suffix(3) + text
            digits.removeLast(3)
        }
        return digits + text
    }

    /// `0:46`, `2:03:09`.
    private static func clock(_ seconds: Int) -> String {
        func two(_ number: Int) -> String { number < 10 ? "0\(number)" : "\(number)" }
        let (hours, minutes) = (seconds / 3600, seconds / 60 % 60)
        return (hours > 0 ? "\(hours):\(two(minutes))" : "\(minutes)") + ":" + two(seconds % 60)
    }
}
