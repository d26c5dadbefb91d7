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
    func answer(_ bytes: Span<UInt8>, _ answer: inout ShortcutAnswer, _ output: OutputBuffer)

    /// Whose secret stood in the request that was answered last. It may be held for two seconds longer than the secret's
    /// life.
    var lastHolder: AnyObject? { get }

    /// Answers a request that is as a frame's but for its part and its secret, or leaves it alone.
    ///
    /// - Parameters:
    ///   - part: what stands there in this one: at least one byte, and none that is the one behind the part.
    ///   - frame: what was said of the last whole request with the same frame.
    ///   - holder: the last holder when a whole request with the same secret was answered; nil where the frame has no
    ///     secret.
    func answer(
        part: Span<UInt8>, inFrame frame: Int, of holder: AnyObject?, _ answer: inout ShortcutAnswer,
        _ output: OutputBuffer)

    /// So many answers of a kind were given in a turn.
    func answered(_ count: Int, kind: Int)

    /// All of a turn's answers, which were told of before: the last was sent so long after the first request was found.
    func turnEnded(answers: Int, nanoseconds: Int64)
}

extension Shortcut {
    /// For those that never name a part.
    package var lastHolder: AnyObject? { nil }
    package func answer(
        part: Span<UInt8>, inFrame frame: Int, of holder: AnyObject?, _ answer: inout ShortcutAnswer,
        _ output: OutputBuffer
    ) {}
}

/// What there is to know of a shortcut's answer beside its bytes, which go to the output. It holds no object: counting
/// references to two would be a tenth of what an answer costs.
package struct ShortcutAnswer: ~Copyable {
    static let kinds = 16

    package enum Status {
        case ok, notModified
    }

    /// In the turn.
    package let monotonic: MonotonicInstant
    package let milliseconds: Int64
    /// The length of the request that was answered, or of the part in its frame; 0 where it was left alone.
    package var consumed = 0
    /// The bytes of the request that another one may have otherwise and be found in the same way, if all its other bytes
    /// are the same; empty where there are none.
    package var part = 0..<0
    /// The bytes of the request that say who asks, behind the part: those of another one may be another secret that was in
    /// their place before. Empty where there are none.
    package var secret = 0..<0
    /// By what the shortcut knows how all of the request was read that is neither.
    package var frame = 0
    /// For how long a frame may be made of the request, in nanoseconds.
    package var frameLife: Int64 = 0
    /// For how long the secret may be known by its bytes, in nanoseconds.
    package var secretLife: Int64 = 0
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

    init(start: Int, monotonic: MonotonicInstant, milliseconds: Int64) {
        self.start = start
        self.monotonic = monotonic
        self.milliseconds = milliseconds
    }

    /// Appends the status line and the fields that the server adds to every answer, but for the length of the content and
    /// `X-Content-Type-Options`: what is appended next has these.
    @inline(__always)
    package mutating func begin(_ status: Status, closes: Bool, _ output: OutputBuffer) {
        self.closes = closes
        let before = output.count - start
        let (date, suffix) = output.stamp.appendOpening(isNotModified: status == .notModified, to: output)
        dateOffset = before + date
        suffixOffset = before + suffix
        if closes { output.append("Connection: close\r\n") }
    }

    /// Appends fields and content that have room in them for how many whole seconds are left until a time of day, 0 after
    /// it: spaces, and the last digit's place is before `end`. They are kept right in an answer that is given again.
    ///
    /// - Parameter width: of the room, 19 at most, and `end` at least 19.
    @inline(__always)
    package mutating func append(
        _ bytes: Span<UInt8>, secondsUntil milliseconds: Int64, upTo end: Int, width: Int, _ output: OutputBuffer
    ) {
        secondsOffset = output.count - start + end - width
        secondsEnd = milliseconds
        secondsWidth = width
        output.append(bytes, writing: Self.seconds(until: milliseconds, at: self.milliseconds), upTo: end)
    }

    static func seconds(until end: Int64, at milliseconds: Int64) -> Int64 { max(0, end - milliseconds) / 1000 }
}
