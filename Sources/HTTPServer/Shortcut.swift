/// Answers some requests from their bytes, at once and from memory, before the usual way would so much as take them
/// apart. Each worker has its own, used on its thread alone, so it needs no lock and may keep what it likes.
///
/// What it answers must be what `RequestHandler.respond` would have answered to the same request.
package protocol Shortcut: AnyObject {
    /// Answers the request that `bytes` begins with, by appending to `exchange.output`, or leaves it alone.
    ///
    /// - Parameter bytes: what has arrived and was not answered yet, from a request's first byte on. It may end in the
    ///   middle of a request, or hold several.
    func answer(_ bytes: Span<UInt8>, _ exchange: inout ShortcutExchange)

    /// So many requests of one connection were answered since the last time, and what was appended is about to leave.
    func answered(_ count: Int)

    /// Lets go of what was not used for a while. Called about once a second while the server has connections, and once
    /// more after the last of them.
    func tidy()
}

/// What a shortcut is given, and what it says of a request that it has answered.
package struct ShortcutExchange: ~Copyable {
    /// Where the answer goes.
    package let output: OutputBuffer
    /// Writes what the server adds to every answer.
    package let stamp: ResponseStamp
    /// Rises with each turn of the loop: what a clock said is good for the rest of a turn.
    package let turn: UInt64
    /// The shortcut's own note on the connection; -1 at first.
    package var note: Int32
    /// The length of the request that was answered; 0 where it was left alone.
    package var consumed = 0
    /// Whether the connection ends with this answer.
    package var closes = false

    init(output: OutputBuffer, stamp: ResponseStamp, turn: UInt64, note: Int32) {
        self.output = output
        self.stamp = stamp
        self.turn = turn
        self.note = note
    }
}
