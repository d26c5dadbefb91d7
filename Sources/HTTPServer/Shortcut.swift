package import Reactor

/// Answers some requests from their bytes, at once and from memory, before the usual way would so much as take them
/// apart. Each worker has its own, used on its thread alone, so it needs no lock and may keep what it likes.
///
/// What it answers must be what `RequestHandler.respond` would have answered to the same request at some moment of the
/// same turn.
package protocol Shortcut: AnyObject {
    /// Advances whenever an answer that was kept may not hold any more.
    var generation: Generation { get }

    /// The time, for a turn of the loop: the clock that only runs forward, and the time of day.
    func clocks() -> (monotonic: MonotonicInstant, milliseconds: Int64)

    /// Answers the request that `bytes` begins with, or leaves it alone.
    ///
    /// - Parameter bytes: what has arrived and was not answered yet, from a request's first byte on. It may end in the
    ///   middle of a request, or hold several.
    func answer(_ bytes: Span<UInt8>, _ answer: inout ShortcutAnswer)

    /// So many answers of a kind were given in a turn.
    func answered(_ count: Int, kind: Int)

    /// All of a turn's answers, which were told of before: the last was sent so long after the first request was found.
    func turnEnded(answers: Int, nanoseconds: Int64)
}

/// What a shortcut puts its answer into.
package struct ShortcutAnswer: ~Copyable {
    static let kinds = 16

    package enum Status {
        case ok, notModified
    }

    /// Where the answer goes, after `begin`.
    package let output: OutputBuffer
    private let stamp: ResponseStamp
    /// In the turn.
    package let monotonic: MonotonicInstant
    package let milliseconds: Int64
    /// The length of the request that was answered; 0 where it was left alone.
    package var consumed = 0
    /// Whether the connection ends with this answer.
    package var closes = false
    /// What the answer counts as, 0 to `kinds` - 1.
    package var kind = 0
    /// For how long the same bytes may be answered in the same way, in nanoseconds, as long as the generation stays what
    /// it was before the answer was made. 0 keeps nothing.
    package var life: Int64 = 0

    let start: Int
    private(set) var dateOffset = 0
    private(set) var suffixOffset = 0
    /// 0 where there are none.
    private(set) var secondsOffset = 0
    private(set) var secondsEnd: Int64 = 0
    private(set) var secondsWidth = 0

    init(_ output: OutputBuffer, _ stamp: ResponseStamp, monotonic: MonotonicInstant, milliseconds: Int64) {
        self.output = output
        self.stamp = stamp
        self.monotonic = monotonic
        self.milliseconds = milliseconds
        start = output.count
    }

    /// Appends the status line and the fields that the server adds to every answer, but for the content's length.
    package mutating func begin(_ status: Status, closes: Bool) {
        self.closes = closes
        output.append(status == .ok ? "HTTP/1.1 200 OK\r\nDate: " : "HTTP/1.1 304 Not Modified\r\nDate: ")
        dateOffset = output.count - start
        stamp.appendDate(to: output)
        output.append("\r\nX-Request-ID: ")
        stamp.appendPrefix(to: output)
        suffixOffset = output.count - start
        stamp.appendNextSuffix(to: output)
        output.append(closes ? "\r\nConnection: close\r\n" : "\r\n")
    }

    /// Appends how many whole seconds are left until a time of day, 0 after it, with spaces in front up to `width`, 24 at
    /// most; they are kept right in an answer that is given again.
    package mutating func append(secondsUntil milliseconds: Int64, width: Int) {
        secondsOffset = output.count - start
        secondsEnd = milliseconds
        secondsWidth = width
        output.append(decimal: Self.seconds(until: milliseconds, at: self.milliseconds), width: width)
    }

    static func seconds(until end: Int64, at milliseconds: Int64) -> Int64 { max(0, end - milliseconds) / 1000 }
}
