package import HTTPCodec
package import TLS

/// Whether the content of a request is read.
package enum Admission: Sendable {
    /// The content is read; then the request is answered.
    /// - Parameters:
    ///   - contentBytes: the most bytes of content; longer content is answered 413. Nil for `RequestLimits.bodyBytes`,
    ///     which it cannot exceed.
    ///   - isStreamed: whether `Request.content` reads the content while it comes, in place of `Request.body`. There is no limit
    ///     of its length then; `RequestHandler.respond` begins at once.
    ///   - isOpen: whether the caller is not known. Such a request is refused first when its connection or its bytes are
    ///     needed for others.
    ///   - found: passed on as `Request.admission`, so that `respond` need not look it up again.
    case admitted(
        contentBytes: Int? = nil, isStreamed: Bool = false, isOpen: Bool = false, found: (any Sendable)? = nil)
    /// The request is answered with this response. The connection ends behind the answer, and the content is dropped.
    case refused(Response)
}

/// Answers requests.
///
/// Objects only: a call through `any RequestHandler` would copy a structure first.
package protocol RequestHandler: AnyObject, Sendable {
    /// Decides from the head whether to read the content of a request. Called for each request that has content, except
    /// GET and HEAD, whose content is dropped. Nothing is read from the connection until it returns.
    ///
    /// It is started and cancelled like `respond`.
    /// - Parameter request: as `respond` will get it, without content.
    func admit(_ request: Request) async -> Admission

    /// Answers one request.
    ///
    /// It is started with `Task.immediate` on the event loop that read the request. If it returns without having
    /// suspended, the answer is sent in the same turn; while it is suspended, the loop serves other requests. It must not
    /// block. Its task is cancelled when the connection is closed or reset, not when the client has only finished sending.
    func respond(to request: Request) async -> Response

    /// The answer to a malformed, too large or too slow request. The server has decided on `status` and closes the
    /// connection after the answer. Must return at once.
    func response(toFault status: Status, detail: String) -> Response

    /// The same, where the path of the request is known.
    func response(toFault status: Status, detail: String, path: String) -> Response

    /// The answer, with status 503, to a refused connection or request. The server calls this once for each kind of
    /// refusal and caches the answer, because refusing must cost little. Must return at once.
    func response(to refusal: Refusal) -> Response

    /// The answer to a refused request for this path, where it is not the one of `response(to:)`; nil where it is. Must return at
    /// once.
    func response(to refusal: Refusal, path: String) -> Response?

    /// Whether such a request may change something, so that it is not begun any more once its client has closed the connection:
    /// the client has given it up, and may have asked another process since. Must return at once.
    func mayChange(_ method: Method, _ path: String) -> Bool

    /// Reports how many connections or requests were refused since the last call. Called at most once a second for each
    /// loop and kind. Must return at once.
    func refused(_ refusal: Refusal, count: Int)

    /// Whether requests for this path are answered even under overload, as a liveness probe must be. Must return at once.
    func isEssential(_ path: String) -> Bool

    /// The digests by which the handler knows a client with this certificate, in order of precedence: `PeerIdentity.digests` of
    /// its connection. Called on the loop's thread, once for each connection whose client has shown a certificate that was
    /// verified. Must return at once.
    func identities(of certificate: PeerCertificate) -> [SIMD4<UInt64>]

    /// Answers a request without content from memory, or leaves it to `respond`. Called on the loop's thread. Must not
    /// block.
    ///
    /// The answer must be the one that `respond` would give to the same request at this moment.
    /// - Parameters:
    ///   - head: the request's head.
    ///   - bytes: the bytes that `head` was read from.
    ///   - peer: as `Request.peer`.
    ///   - answer: receives the answer. What was written to it is dropped if this returns nil.
    /// - Returns: the kind that the answer is counted as, 0 to `NowAnswer.kinds` - 1; nil when `respond` is to answer.
    func answerNow(
        _ head: borrowing RequestHead, _ bytes: Span<UInt8>, from peer: PeerIdentity?, into answer: NowAnswer
    ) -> Int?

    /// Reports how many requests `answerNow` has answered as `kind` since the last call. Called at the end of a loop's
    /// turn. Must return at once.
    func answeredNow(_ count: Int, kind: Int)

    /// Reports a turn in which `answerNow` has answered requests.
    /// - Parameters:
    ///   - count: the number of answers.
    ///   - took: the time from when the first of the requests' connections became ready until the last answer was sent.
    func turnEnded(answers count: Int, took: Duration)
}

extension RequestHandler {
    package func admit(_ request: Request) async -> Admission { .admitted() }

    package func response(to refusal: Refusal) -> Response {
        response(toFault: .serviceUnavailable, detail: refusal.detail)
    }

    package func response(toFault status: Status, detail: String, path: String) -> Response {
        response(toFault: status, detail: detail)
    }

    package func response(to refusal: Refusal, path: String) -> Response? { nil }

    package func mayChange(_ method: Method, _ path: String) -> Bool {
        method != .get && method != .head && method != .options
    }

    package func refused(_ refusal: Refusal, count: Int) {}

    package func isEssential(_ path: String) -> Bool { false }

    package func identities(of certificate: PeerCertificate) -> [SIMD4<UInt64>] { [] }

    package func answerNow(
        _ head: borrowing RequestHead, _ bytes: Span<UInt8>, from peer: PeerIdentity?, into answer: NowAnswer
    ) -> Int? { nil }

    package func answeredNow(_ count: Int, kind: Int) {}

    package func turnEnded(answers count: Int, took: Duration) {}
}

/// Receives an answer of `RequestHandler.answerNow`. It belongs to one worker. On the loop's thread only.
package final class NowAnswer {
    /// How many kinds of answers a handler can tell apart.
    package static let kinds = 64

    private let encoder: ResponseEncoder
    /// The answer's `Connection` field.
    var connection = ResponseEncoder.Connection.unstated
    // Private, because each access to a stored property that other modules see is checked for exclusiveness.
    private var noted: (Int64, Int64)?
    /// What the handler keeps for its other answers of the same turn, such as the time. Nil when a turn begins.
    package var note: (Int64, Int64)? {
        get { noted }
        set { noted = newValue }
    }
    /// Receives, after `begin`, the lines of the answer's own fields, an empty line and the content.
    package let output: OutputBuffer

    init(_ encoder: ResponseEncoder, _ output: OutputBuffer) {
        self.encoder = encoder
        self.output = output
    }

    /// Writes the status line and the fields that the server adds to every answer.
    /// - Parameter contentLength: in bytes. Ignored for a status that has no content.
    package func begin(_ status: Status, contentLength: Int) {
        encoder.begin(
            status, .length(contentLength), number: encoder.nextNumber(), connection: connection, to: output)
    }
}
