import HTTPCodec
import Reactor

/// Identifies a connection for a task or an event that may outlive it. The serial number tells the connection from later
/// ones in the same slot.
struct ConnectionID: Sendable {
    let slot: Int
    let serial: UInt64
}

/// One client's connection: its buffers and the state of its current exchange.
///
/// It belongs to one `Worker` and is not `Sendable`. It does no I/O: `ConnectionServer` reads, writes and closes. One
/// exchange is under way at a time; further requests wait in the kernel, `ReadAhead` or `input`, so answers keep their order.
final class Connection {
    enum Phase: Equatable {
        /// Reading a request, or waiting for one.
        case receiving
        /// The handler decides whether to read the content of a request. Nothing is read meanwhile.
        case admitting
        /// The handler has the request. Nothing is read meanwhile.
        case answering
        /// The head of the answer is queued and its content is being made. Nothing is read meanwhile.
        case streaming
        /// The last answer is being sent.
        case closing
        /// The last answer is sent and our side is closed. Input is dropped until the peer closes, too (RFC 9112 §9.6).
        case lingering
        case closed
    }

    /// What `readDeadline` bounds.
    enum Wait {
        case nothing, firstRequest, nextRequest, head, body, linger
    }

    /// What writing the answer needs to know of the request.
    struct Exchange {
        var number: RequestNumber
        var isHead: Bool
        var isHTTP10: Bool
        var keepsAlive: Bool

        init(number: RequestNumber, isHead: Bool, isHTTP10: Bool, keepsAlive: Bool) {
            self.number = number
            self.isHead = isHead
            self.isHTTP10 = isHTTP10
            self.keepsAlive = keepsAlive
        }

        init(_ head: ReceivedHead, number: RequestNumber) {
            self.init(
                number: number, isHead: head.method == .head, isHTTP10: head.isHTTP10, keepsAlive: head.keepsAlive)
        }
    }

    /// An answer whose content is being made.
    final class Stream {
        /// Tells it from earlier and later streams of the same connection.
        let serial: UInt64
        let framing: ResponseEncoder.Framing
        /// Whether the connection ends with the stream.
        let closes: Bool
        let exchange: Exchange
        var writes = 0
        /// Writers that wait until fewer bytes are unsent. A resumed writer checks that again.
        /// Not a `WaitList`: only the loop's thread touches it, and each writer looks again whatever has woken it.
        private var waiting: [CheckedContinuation<Void, Never>] = []

        init(serial: UInt64, framing: ResponseEncoder.Framing, closes: Bool, exchange: Exchange) {
            self.serial = serial
            self.framing = framing
            self.closes = closes
            self.exchange = exchange
        }

        func wait(_ continuation: CheckedContinuation<Void, Never>) {
            waiting.append(continuation)
        }

        func wakeWriters() {
            if waiting.isEmpty { return }
            let woken = waiting
            waiting = []
            for continuation in woken { continuation.resume() }
        }
    }

    /// What was read from a client's bytes.
    enum Event {
        /// A request without content.
        case head(ReceivedHead)
        /// The head of a request whose content waits to be admitted.
        case content(ReceivedHead)
        /// A request with its content, and what was admitted before that arrived.
        case request(ReceivedHead, body: [UInt8], AdmittedRequest?)
        /// - Parameter path: of the request, as far as it can be read; nil where it cannot.
        case fault(RequestFault, path: String?)
    }

    /// A head that has arrived in part. It is a class so that the many connections without one do not hold its memory.
    private final class PartialHead {
        var parser: RequestParser
        init(_ parser: RequestParser) { self.parser = parser }
    }

    // There are many connections, and most are idle, so the small properties stand together: memory that alignment would
    // leave unused is a tenth of a connection.
    let peer: NetworkAddress
    let id: ConnectionID
    let descriptor: CInt
    /// Nil for a connection without TLS.
    let tls: SecureTransport?
    var registration: Registration?
    private let isFromTrustedProxy: Bool
    /// Whether the connection is beyond the server's limit: it is answered 503 and closed.
    let isRefused: Bool
    var phase = Phase.receiving
    var exchange: Exchange?
    /// Whether `ConnectionServer.serve` is under way for this connection; it sends an answer that is queued meanwhile.
    var isBeingServed = false
    /// Whether its answers wait in `AnswerSender.output`. Nothing else is done for the connection meanwhile.
    var isHeld = false
    /// Whether the connection waits for its next turn because its time slice was used up.
    var isQueued = false
    /// Whether input may still arrive after the last answer.
    var mustLinger = false
    /// Whether the client waits for 100 (Continue) before it sends its content.
    var owesContinue = false
    /// Whether its last request was answered by `RequestHandler.answerNow`.
    var isQuick = false
    /// Whether the kept input is the beginning of a head or content whose rest has not arrived.
    var needsMore = false

    // What epoll has reported, until it is used up: registration is edge-triggered.
    var mayHaveInput = false
    var mayWrite = true
    /// Whether the end of the peer's input was reported. A short read does not empty the socket then: the end is still to
    /// be read.
    var peerFinished = false

    private(set) var wait = Wait.nothing
    private var owned: OwnedDescriptor?
    private(set) var waitBegan = MonotonicInstant.distantFuture
    /// When all had been read that the client had sent until then: what is read later was sent later.
    private(set) var quietSince = MonotonicInstant(nanoseconds: .min)
    private(set) var readDeadline = MonotonicInstant.distantFuture
    private(set) var writeDeadline = MonotonicInstant.distantFuture
    /// Since when the client has not read the bytes that `writeDeadline` is for.
    private(set) var stallBegan = MonotonicInstant.distantFuture
    /// How many of the unsent bytes must be sent before `writeDeadline`.
    private var writeMark = 0
    var lingeringBytes = 0

    var stream: Stream?
    /// The content that the handler reads while it comes; nil for other requests.
    var upload: Upload?
    /// The task of a suspended handler or of its stream.
    var task: Task<Void, Never>?
    /// `FieldSection.position` of the last head's fields: the next head's are looked for there first.
    var section: Int?
    private var partialHead: PartialHead?
    private var partialContent: PartialContent?
    private var input: [UInt8] = []
    private var inputStart = 0
    /// Where the bytes that were read ahead of the connection's turn stand in `ReadAhead`. None between turns of the loop.
    private var aheadStart: UInt32 = 0
    private var aheadCount: UInt32 = 0
    /// Unsent answers, from `outputStart` on.
    private(set) var output: [UInt8] = []
    private(set) var outputStart = 0
    private(set) var unsentBytes = 0
    private(set) var unreadBytes = 0

    init(
        id: ConnectionID, descriptor: consuming OwnedDescriptor, tls: SecureTransport?, peer: NetworkAddress,
        isFromTrustedProxy: Bool, isRefused: Bool
    ) {
        self.id = id
        self.tls = tls
        self.peer = peer
        self.isFromTrustedProxy = isFromTrustedProxy
        self.descriptor = descriptor.rawValue
        self.isRefused = isRefused
        owned = consume descriptor
    }

    /// What the connection counts for in the share of a source; nil for a trusted proxy, which has none.
    var source: NetworkSource? { isFromTrustedProxy ? nil : NetworkSource(peer) }

    /// How much has arrived of a content whose end has not.
    var unfinishedContentBytes: Int { partialContent?.bytes.count ?? 0 }
    /// Whether the content that is arriving comes without a known caller.
    var hasOpenContent: Bool { partialContent?.isOpen ?? false }
    /// How much of that `Exchanges` has counted.
    var accountedContentBytes = 0
    /// Whether content is arriving, is to be asked for, or is counted.
    var hasContent: Bool { partialContent != nil || owesContinue || accountedContentBytes > 0 }
    /// When the content that is arriving began; nil when none is arriving.
    var contentBegan: MonotonicInstant? { partialContent?.began }

    /// How many unsent bytes `AnswerSender` has counted.
    var accountedAnswerBytes = 0

    /// Whether no part of a request has arrived and nothing is unsent.
    var isIdle: Bool {
        phase == .receiving && !isInsideRequest && unsentBytes == 0
    }

    /// Whether the TLS handshake is not complete.
    var isShakingHands: Bool { tls.map { !$0.isEstablished } ?? false }

    /// Whether there may be something to read: in the socket, or in records that have arrived.
    var mayHaveMore: Bool { mayHaveInput || tls?.hasInput == true }

    /// Whether a request was begun and not completed.
    var isInsideRequest: Bool { partialHead != nil || partialContent != nil || unreadBytes > 0 }

    /// The path of the request that is arriving, as far as it can be read; nil where it cannot.
    var pathInProgress: String? {
        if let partialContent { return partialContent.head.path }
        let input = input
        return RequestHead.path(beginning: input.span.extracting(inputStart...))
    }

    /// Whether the connection may be closed to make room for another one: it is idle, its head or its content comes from a
    /// client that is not known yet, its last answer is sent, or its client does not read.
    var givesWay: Bool {
        if isStalled { return true }
        switch phase {
        case .receiving:
            if unsentBytes > 0 || isQueued { return false }
            if let partialContent { return partialContent.isOpen }
            return partialHead != nil || unreadBytes == 0
        case .lingering: return true
        case .admitting, .answering, .streaming, .closing, .closed: return false
        }
    }

    /// Whether nothing of a request has arrived on a new connection, or a part of a request, and the connection waits for the rest.
    var awaitsRestOfRequest: Bool {
        givesWay && phase == .receiving && (partialHead != nil || partialContent != nil || wait == .firstRequest)
    }

    /// Whether a whole answer waits for a client that does not read: the kernel's buffers are full of answers.
    var isStalled: Bool {
        (phase == .receiving || phase == .closing) && unsentBytes > 0 && !mayWrite && !isQueued
    }

    /// Since when the connection has waited for its client, if it gives way.
    var waitsSince: MonotonicInstant { isStalled ? stallBegan : waitBegan }

    /// What the connection waits for now. When this changes, `ConnectionServer.updateWait` sets the deadline.
    var currentWait: Wait {
        switch phase {
        case .receiving:
            if isShakingHands {
                // One time-out bounds the handshake and the first byte of the first request together.
                .firstRequest
            } else if unsentBytes > 0, !mayWrite {
                // Further requests are not read meanwhile, and `writeDeadline` bounds the sending.
                .nothing
            } else if partialContent != nil {
                .body
            } else if isInsideRequest {
                .head
            } else {
                wait == .firstRequest ? .firstRequest : .nextRequest
            }
        case .lingering: .linger
        case .answering, .streaming: upload?.isWaiting == true ? .body : .nothing
        case .admitting, .closing, .closed: .nothing
        }
    }

    /// - Parameter timeout: in nanoseconds.
    func beginWait(_ wait: Wait, at now: MonotonicInstant, for timeout: Int64) {
        self.wait = wait
        waitBegan = now
        if wait == .nextRequest, !mayHaveInput, !isQueued { quietSince = now }
        readDeadline = now.advanced(byNanoseconds: timeout)
    }

    /// The connection was accepted at that time.
    func begin(at now: MonotonicInstant) {
        // It may have waited before, and its first request with it, until the loop came to it.
        quietSince = now.advanced(byNanoseconds: -Self.longestBacklog)
    }

    /// A loop that is at work accepts connections in less, in nanoseconds.
    private static let longestBacklog: Int64 = 1_000_000_000

    func endWait() {
        wait = .nothing
        readDeadline = .distantFuture
    }

    /// Appends to the unsent bytes, encrypted where the connection has TLS.
    func queue(_ write: (inout [UInt8]) -> Void) {
        if tls == nil { return queueRecords(write) }
        var plaintext: [UInt8] = []
        write(&plaintext)
        queue(plaintext.span)
    }

    /// Appends the bytes to the unsent ones, encrypted where the connection has TLS.
    func queue(_ bytes: Span<UInt8>) {
        queueRecords { unsent in
            if let tls { tls.encrypt(bytes, into: &unsent) } else { unsent.append(copying: bytes) }
        }
    }

    /// Appends to the unsent bytes as they are.
    func queueRecords(_ write: (inout [UInt8]) -> Void) {
        write(&output)
        unsentBytes = output.count - outputStart
    }

    /// `count` of the unsent bytes were sent.
    func sent(_ count: Int) {
        outputStart += count
        unsentBytes -= count
        writeMark -= count
        if outputStart == output.count {
            output = []
            outputStart = 0
            writeMark = 0
            writeDeadline = .distantFuture
        } else if outputStart >= max(65_536, unsentBytes) {
            // A connection whose output never becomes empty must not keep what it has sent.
            output.removeFirst(outputStart)
            outputStart = 0
        }
    }

    /// The peer does not read, and bytes are unsent. These bytes have to be sent within the time-out, whatever is queued
    /// behind them: a peer that reads a byte now and then does not keep a connection for ever.
    func stalled(_ timeout: Duration, at now: @autoclosure () -> MonotonicInstant) {
        guard writeMark <= 0 else { return }
        writeMark = unsentBytes
        stallBegan = now()
        writeDeadline = stallBegan.advanced(by: timeout)
    }

    /// The client need not read for that long from now on.
    func toleratesStall(_ timeout: Duration, at now: @autoclosure () -> MonotonicInstant) {
        if writeDeadline != .distantFuture { writeDeadline = now().advanced(by: timeout) }
    }

    /// Ends the upload. Returns whether a part of the content was not read.
    func endUpload() -> Bool {
        guard let ended = upload else { return false }
        upload = nil
        ended.wake()
        return !ended.isComplete
    }

    /// Closes the descriptor, at once.
    func closeDescriptor() {
        phase = .closed
        owned = nil
        dropInput()
        output = []
        (outputStart, unsentBytes) = (0, 0)
        exchange = nil
    }

    // MARK: Input

    /// Whether bytes were read ahead, which come before all that is still in the socket.
    var isReadAhead: Bool { aheadCount > 0 }

    /// Notes where the bytes stand that were read ahead.
    func noteReadAhead(_ range: Range<Int>) {
        (aheadStart, aheadCount) = (UInt32(range.lowerBound), UInt32(range.count))
    }

    /// Where the bytes stand that were read ahead, which are read now; nil when there are none.
    func takeReadAhead() -> Range<Int>? {
        if aheadCount == 0 { return nil }
        let range = Int(aheadStart)..<Int(aheadStart) + Int(aheadCount)
        aheadCount = 0
        return range
    }

    /// Input that was received and is not read yet. It begins with a request or the rest of a request's content.
    var keptInput: (bytes: [UInt8], start: Int) { (input, inputStart) }

    /// Drops the kept input before `end`, which has been read.
    func readKeptInput(to end: Int) {
        inputStart = end
        unreadBytes = input.count - end
        guard unreadBytes == 0 else { return }
        input = []
        inputStart = 0
    }

    /// Removes what has been read from the kept input.
    private func compactInput() {
        if inputStart == 0 { return }
        input.removeSubrange(..<inputStart)
        inputStart = 0
    }

    /// Appends to the kept input.
    func keep(_ bytes: Span<UInt8>) {
        compactInput()
        input.append(copying: bytes)
        unreadBytes = input.count
    }

    func dropInput() {
        aheadCount = 0
        input = []
        (inputStart, unreadBytes) = (0, 0)
        partialHead = nil
        partialContent = nil
    }

    /// Whether a content is being read.
    var isInsideContent: Bool { partialContent != nil }

    /// Reads a head.
    /// - Parameters:
    ///   - bytes: everything that has arrived of the head, from its first byte on.
    ///   - parser: a parser in its initial state. The connection takes it over when only a part of the head has arrived.
    /// - Returns: nil when only a part of the head has arrived.
    func readHead(_ bytes: Span<UInt8>, _ parser: inout RequestParser) throws(RequestFault) -> RequestHead? {
        if let partialHead {
            guard let head = try partialHead.parser.parse(bytes) else { return nil }
            self.partialHead = nil
            return head
        }
        parser.reset(section: section)
        if let head = try parser.parse(bytes) { return head }
        partialHead = PartialHead(parser)
        parser = parser.another()
        return nil
    }

    /// Begins to read the content that follows the head which came last.
    /// - Parameters:
    ///   - hasMore: whether some of the content has arrived.
    func begin(_ content: PartialContent, hasMore: Bool) {
        partialContent = content
        // RFC 9110 §10.1.1: a client that waits is asked for its content; one that has begun to send it need not be.
        if content.head.expectsContinue, !hasMore { owesContinue = true }
    }

    /// Reads from `start` on in the content.
    /// - Returns: the request, nil where its content has not all arrived, and where reading stopped.
    func readContent(_ bytes: Span<UInt8>, from start: Int) throws(RequestFault) -> (Event?, end: Int) {
        guard let content = partialContent else { return (nil, start) }
        let (isComplete, end) = try content.read(bytes, from: start)
        guard isComplete else { return (nil, end) }
        partialContent = nil
        return (.request(content.head, body: content.bytes, content.admitted), end)
    }
}
