package import HTTPCodec

/// What becomes of a request with content, decided before any of the content is read.
package enum Admission: Sendable {
    /// The content is read; then the request is answered.
    /// - Parameters:
    ///   - contentBytes: how long the content may be: longer is 413. Nil for what `RequestLimits.bodyBytes` says, which
    ///     it cannot exceed.
    ///   - isOpen: whether the caller is not known. Such content gives way where its connection or its bytes are in the
    ///     way of others.
    ///   - found: goes with the request, as `Request.admission`, so that nothing has to be found out twice.
    case admitted(contentBytes: Int? = nil, isOpen: Bool = false, found: (any Sendable)? = nil)
    /// Answered with this. The connection ends behind the answer, and the content is dropped.
    case refused(Response)
}

/// Answers requests.
package protocol RequestHandler: Sendable {
    /// Decides from the head whether the content of a request is read. Asked for each request that has content, except
    /// for GET and HEAD, whose content is dropped. Until it returns nothing is read from the connection.
    ///
    /// It is started like `respond`, and cancelled like it.
    /// - Parameter request: without its content, and otherwise as `respond` will have it.
    func admit(_ request: Request) async -> Admission

    /// Answers one request.
    ///
    /// It is started with `Task.immediate` on the event loop that read the request. When it returns without having
    /// suspended, the answer leaves in the same turn; otherwise it may take its time while the loop serves others.
    /// It must not block. Its task is cancelled when the client is gone, not when the client has merely finished
    /// sending.
    func respond(to request: Request) async -> Response

    /// The answer for a request that never became one: malformed, too large or too slow.
    /// The server has decided on `status` and closes the connection after it. Must return at once.
    func response(toFault status: Status, detail: String) -> Response

    /// The answer, of status 503, to what there is no room for. It is asked for once, and given to all: refusing must
    /// cost little. Must return at once.
    func response(to refusal: Refusal) -> Response

    /// Tells that so many were refused since the last call; at most once a second for each loop and kind. Must return at
    /// once.
    func refused(_ refusal: Refusal, count: Int)

    /// Whether a request is answered even where the server has more to do than it can: a probe, which decides whether the
    /// process is let live. Must return at once.
    func isEssential(_ path: String) -> Bool

    /// Answers a request without content at once, from its bytes and from memory, or leaves it to `respond`. Called on the
    /// loop's thread. Must not block.
    ///
    /// The answer must be the one that `respond` would give to the same request at this moment.
    /// - Parameters:
    ///   - head: of the request.
    ///   - bytes: what `head` was read from.
    ///   - answer: takes the answer. What is written before this returns nil is dropped.
    /// - Returns: what the answer counts as, 0 to `NowAnswer.kinds` - 1; nil where `respond` is to answer.
    func answerNow(_ head: RequestHead, _ bytes: Span<UInt8>, into answer: NowAnswer) -> Int?

    /// Tells how many requests `answerNow` has answered since the last call. Called at the end of a loop's turn. Must
    /// return at once.
    func answeredNow(_ count: Int, kind: Int)

    /// Tells how long the last of a turn's answers by `answerNow` left after the first of their requests was found.
    /// - Parameter count: how many there were.
    func turnEnded(answers count: Int, took: Duration)
}

extension RequestHandler {
    package func admit(_ request: Request) async -> Admission { .admitted() }

    package func response(to refusal: Refusal) -> Response {
        response(toFault: .serviceUnavailable, detail: refusal.detail)
    }

    package func refused(_ refusal: Refusal, count: Int) {}

    package func isEssential(_ path: String) -> Bool { false }

    package func answerNow(_ head: RequestHead, _ bytes: Span<UInt8>, into answer: NowAnswer) -> Int? { nil }

    package func answeredNow(_ count: Int, kind: Int) {}

    package func turnEnded(answers count: Int, took: Duration) {}
}

/// Where `RequestHandler.answerNow` writes an answer. One worker's, on its loop's thread.
package final class NowAnswer {
    /// How many kinds of answers a handler can tell apart.
    package static let kinds = 64

    private let encoder: ResponseEncoder
    /// What the answer says about its connection.
    var connection = ResponseEncoder.Connection.unstated
    // Of this module alone: each access to a property that other modules see is checked for exclusiveness.
    private var noted: (Int64, Int64)?
    /// What the handler notes for its other answers of the same turn, such as the time. Nil where it has noted nothing.
    package var note: (Int64, Int64)? {
        get { noted }
        set { noted = newValue }
    }
    /// Takes the lines of the answer's own fields, an empty line and the content, after `begin`.
    package let output: OutputBuffer

    init(_ encoder: ResponseEncoder, _ output: OutputBuffer) {
        self.encoder = encoder
        self.output = output
    }

    /// Writes the status line and the fields that the server adds to every answer.
    /// - Parameter contentLength: in bytes. Without meaning for a status that has no content.
    package func begin(_ status: Status, contentLength: Int) {
        encoder.begin(
            status, .length(contentLength), number: encoder.nextNumber(), connection: connection, to: output)
    }
}
