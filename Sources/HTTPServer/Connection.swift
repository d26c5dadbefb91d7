internal import HTTPCodec
internal import Reactor

/// Names a connection to whatever outlives it: a late answer or event finds another serial number, or none.
struct ConnectionID: Sendable {
    let slot: Int
    let serial: UInt64
}

/// One client's connection: its buffers and how far its current exchange has come.
///
/// It belongs to one `Worker`, is not `Sendable`, and does no waiting: the worker decides when it reads, writes and ends.
/// One exchange is in flight at a time; further requests wait in `input` or in the kernel, so answers cannot overtake.
final class Connection {
    enum Phase: Equatable {
        /// Reading a request, or waiting for one.
        case receiving
        /// The handler decides from the head of a request whether its content is read. Nothing is read meanwhile.
        case admitting
        /// The handler has the request. Nothing is read meanwhile.
        case answering
        /// The head of the answer is queued and its content is being made. Nothing is read meanwhile.
        case streaming
        /// The last answer is on its way out.
        case closing
        /// The last answer is out and our side closed; input is dropped until the peer closes too (RFC 9112 §9.6).
        case lingering
        case closed
    }

    /// What `readDeadline` bounds.
    enum Wait {
        case nothing, firstRequest, nextRequest, head, body, linger
    }

    /// What the answer must know of its request.
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
        /// Tells it from earlier and later ones of the same connection.
        let serial: UInt64
        let framing: ResponseEncoder.Framing
        /// Whether the connection ends with it.
        let closes: Bool
        let exchange: Exchange
        var writes = 0
        /// Writers that wait until fewer bytes are unsent. Each looks again for itself when resumed.
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

    /// What was found in the bytes that a client sent.
    enum Event {
        /// A request without content.
        case head(ReceivedHead)
        /// The head of a request whose content waits to be admitted: `beginContent` lets it be read.
        case content(ReceivedHead)
        /// A request with its content.
        case request(ReceivedHead, body: [UInt8])
        case fault(RequestFault)
    }

    /// A head that has arrived in part. In a box, because most heads arrive whole and idle connections have none.
    private final class PartialHead {
        var parser: RequestParser
        init(_ parser: RequestParser) { self.parser = parser }
    }

    /// A request whose content is arriving.
    private final class PartialBody {
        let head: ReceivedHead
        /// For content of a known length: what is still to come.
        var remaining: Int
        /// For chunked content.
        var decoder: ChunkedDecoder?
        /// Grows with what arrives; nothing is reserved for what is only declared.
        var bytes: [UInt8] = []
        /// Whether the content is read and not kept.
        let isDropped: Bool
        /// Whether no known caller sends it.
        let isOpen: Bool

        init(_ head: ReceivedHead, remaining: Int, decoder: ChunkedDecoder?, isDropped: Bool, isOpen: Bool) {
            self.head = head
            self.remaining = remaining
            self.decoder = decoder
            self.isDropped = isDropped
            self.isOpen = isOpen
        }
    }

    let id: ConnectionID
    let descriptor: CInt
    let peer: NetworkAddress
    /// What the connection counts for in the share of a source; nil for a trusted proxy, which has none.
    let source: NetworkSource?
    /// Beyond the server's limit: told so and closed.
    let isRefused: Bool
    var registration: Registration?
    var phase = Phase.receiving
    var exchange: Exchange?
    var stream: Stream?
    /// The handler's task while it is suspended, also in its stream.
    var task: Task<Void, Never>?
    /// The worker is in the middle of this connection; an answer given now will be found by it.
    var isBeingServed = false
    /// A continuation of the serving has been queued behind other connections.
    var isQueued = false
    /// After the last answer, input may still be on its way.
    var mustLinger = false
    var lingeringBytes = 0
    /// The client waits for 100 before it sends its content.
    var owesContinue = false
    /// Whether its last request was answered by `RequestHandler.answerNow`.
    var isQuick = false
    /// Whether what is kept of the input is the beginning of a head or a content whose rest has not come.
    var needsMore = false

    // Edges are latched here: what was reported and not yet used up.
    var mayHaveInput = false
    var mayWrite = true
    /// The peer's end was reported. A short read does not mean "no more" then: the end itself is still to be read.
    var peerFinished = false

    private(set) var wait = Wait.nothing
    private(set) var waitBegan = MonotonicInstant.distantFuture
    private(set) var readDeadline = MonotonicInstant.distantFuture
    private(set) var writeDeadline = MonotonicInstant.distantFuture
    /// When the client was found not to read what `writeDeadline` is for.
    private(set) var stallBegan = MonotonicInstant.distantFuture
    /// How many of the unsent bytes must leave before `writeDeadline`.
    private var writeMark = 0

    private var owned: OwnedDescriptor?
    /// `FieldSection.position` of the last head's fields: the next head's are looked for there first.
    var section: Int?
    private var partialHead: PartialHead?
    private var partialBody: PartialBody?
    /// The head whose content waits to be admitted.
    private var headBeforeContent: ReceivedHead?
    /// What was admitted, until its content has arrived.
    private var admitted: (request: Request, number: RequestNumber)?
    private var input: [UInt8] = []
    private var inputStart = 0
    /// Answers on their way out, from `outputStart` on.
    private(set) var output: [UInt8] = []
    private(set) var outputStart = 0
    private(set) var unsentBytes = 0
    private(set) var unreadBytes = 0

    init(
        id: ConnectionID, descriptor: consuming OwnedDescriptor, peer: NetworkAddress, source: NetworkSource?,
        isRefused: Bool
    ) {
        self.id = id
        self.peer = peer
        self.source = source
        self.descriptor = descriptor.rawValue
        self.isRefused = isRefused
        owned = consume descriptor
    }

    /// What has come of a content whose end has not.
    var unfinishedContentBytes: Int { partialBody?.bytes.count ?? 0 }
    /// Whether the content that is arriving comes from no known caller.
    var hasOpenContent: Bool { partialBody?.isOpen ?? false }
    /// What the worker's sum has of it.
    var accountedContentBytes = 0
    /// Whether there is anything to do about a content.
    var hasContent: Bool { partialBody != nil || owesContinue || accountedContentBytes > 0 }
    /// When the content began that is arriving.
    private(set) var contentBegan = MonotonicInstant.distantFuture

    /// What the worker's sum has of the bytes that the client has not read.
    var accountedAnswerBytes = 0

    /// No part of a request has come and nothing is owed.
    var isIdle: Bool {
        phase == .receiving && !isInsideRequest && unsentBytes == 0
    }

    /// Whether a request was begun and not completed.
    var isInsideRequest: Bool { partialHead != nil || partialBody != nil || unreadBytes > 0 }

    /// Whether the connection may be closed to make room for another one: no known caller is owed anything on it. It is
    /// idle, its head or its content comes from a client that is not known yet, its last answer is out, or its client does
    /// not read what it has asked for.
    var givesWay: Bool {
        if isStalled { return true }
        switch phase {
        case .receiving:
            if unsentBytes > 0 || isQueued { return false }
            if let partialBody { return partialBody.isOpen }
            return partialHead != nil || unreadBytes == 0
        case .lingering: return true
        case .admitting, .answering, .streaming, .closing, .closed: return false
        }
    }

    /// Whether a whole answer waits for a client that does not read: the kernel's buffers are full of answers.
    var isStalled: Bool {
        (phase == .receiving || phase == .closing) && unsentBytes > 0 && !mayWrite && !isQueued
    }

    /// Since when the connection waits for its client, where it gives way.
    var waitsSince: MonotonicInstant { isStalled ? stallBegan : waitBegan }

    /// What the connection waits for now; its deadline is to be set when this changes.
    var currentWait: Wait {
        switch phase {
        case .receiving:
            if unsentBytes > 0, !mayWrite {
                // What has come of further requests is not looked at meanwhile; there is a deadline for the sending.
                .nothing
            } else if partialBody != nil {
                .body
            } else if isInsideRequest {
                .head
            } else {
                wait == .firstRequest ? .firstRequest : .nextRequest
            }
        case .lingering: .linger
        case .admitting, .answering, .streaming, .closing, .closed: .nothing
        }
    }

    /// - Parameter timeout: in nanoseconds.
    func beginWait(_ wait: Wait, at now: MonotonicInstant, for timeout: Int64) {
        self.wait = wait
        waitBegan = now
        readDeadline = now.advanced(byNanoseconds: timeout)
    }

    func endWait() {
        wait = .nothing
        readDeadline = .distantFuture
    }

    /// Queues what `write` appends.
    func queue(_ write: (inout [UInt8]) -> Void) {
        write(&output)
        unsentBytes = output.count - outputStart
    }

    /// So many of the unsent bytes have left.
    func sent(_ count: Int) {
        outputStart += count
        unsentBytes -= count
        writeMark -= count
        if outputStart == output.count {
            output = []
            outputStart = 0
            writeMark = 0
            writeDeadline = .distantFuture
        } else if outputStart >= 65_536 {
            // A connection whose output never quite empties must not keep all that it ever sent.
            output.removeFirst(outputStart)
            outputStart = 0
        }
    }

    /// Bytes are left that the peer does not take. What is unsent now has to leave within the time-out, whatever joins
    /// it meanwhile: taking an octet now and then does not keep a connection for ever.
    func stalled(_ timeout: Duration) {
        guard writeMark <= 0 else { return }
        writeMark = unsentBytes
        stallBegan = .now
        writeDeadline = stallBegan.advanced(by: timeout)
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

    /// What was received and not read yet. It begins where a request or the rest of its content begins.
    var keptInput: (bytes: [UInt8], start: Int) { (input, inputStart) }

    /// Takes note of how far the kept input has been read.
    func readKeptInput(to end: Int) {
        inputStart = end
        unreadBytes = input.count - end
        guard unreadBytes == 0 else { return }
        input = []
        inputStart = 0
    }

    /// Makes room for input that is appended to what is kept.
    private func compactInput() {
        if inputStart == 0 { return }
        input.removeSubrange(..<inputStart)
        inputStart = 0
    }

    /// Keeps bytes behind those that are kept already.
    func keep(_ bytes: Span<UInt8>) {
        compactInput()
        input.append(copying: bytes)
        unreadBytes = input.count
    }

    func dropInput() {
        input = []
        (inputStart, unreadBytes) = (0, 0)
        partialHead = nil
        partialBody = nil
        headBeforeContent = nil
        admitted = nil
    }

    /// Whether a content is being read.
    var isInsideContent: Bool { partialBody != nil }

    /// Reads a head.
    /// - Parameters:
    ///   - bytes: what has arrived from its first byte on, with all of one that has arrived in part before.
    ///   - parser: one that can be used again.
    /// - Returns: nil where it has not all arrived.
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

    /// A head has been read that content follows.
    /// - Returns: nil where that is read, and dropped, before anything else.
    func headReceived(_ head: ReceivedHead, _ limits: RequestLimits, hasMore: Bool) throws(RequestFault) -> Event? {
        // What a GET or a HEAD has of content means nothing (RFC 9110 §9.3.1). It is read and not kept.
        guard head.method == .get || head.method == .head else {
            headBeforeContent = head
            return .content(head)
        }
        _ = try makePartialBody(head, limit: limits.bodyBytes, limits, isDropped: true, isOpen: true)
        if !hasMore { askForContent(head) }
        return nil
    }

    /// Reads from `start` on in the content.
    /// - Returns: the request, nil where its content has not all arrived, and where reading stopped.
    func readContent(_ bytes: Span<UInt8>, from start: Int) throws(RequestFault) -> (Event?, end: Int) {
        guard let partialBody else { return (nil, start) }
        return try advance(partialBody, bytes, start..<bytes.count)
    }

    /// Lets the content be read of the request whose head came last.
    /// - Parameters:
    ///   - request: what the content is to complete.
    ///   - limit: of the content, in bytes.
    ///   - isOpen: whether no known caller sends it.
    func beginContent(
        of request: Request, _ number: RequestNumber, limit: Int, isOpen: Bool, _ limits: RequestLimits
    ) throws(RequestFault) {
        guard let head = headBeforeContent else { return }
        headBeforeContent = nil
        _ = try makePartialBody(head, limit: limit, limits, isDropped: false, isOpen: isOpen)
        admitted = (request, number)
        if unreadBytes == 0 { askForContent(head) }
    }

    /// The request that was admitted before its content arrived; nil for one without content.
    func takeAdmitted() -> (request: Request, number: RequestNumber)? {
        defer { admitted = nil }
        return admitted
    }

    private func makePartialBody(
        _ head: ReceivedHead, limit: Int, _ limits: RequestLimits, isDropped: Bool, isOpen: Bool
    ) throws(RequestFault) -> PartialBody {
        var (length, decoder) = (0, ChunkedDecoder?.none)
        switch head.framing {
        case .none: break
        case .length(let declared):
            guard declared <= limit else { throw .contentTooLarge }
            length = declared
        case .chunked: decoder = ChunkedDecoder(bodyLimit: limit, overheadLimit: limits.chunkOverheadBytes)
        }
        let partial = PartialBody(head, remaining: length, decoder: decoder, isDropped: isDropped, isOpen: isOpen)
        partialBody = partial
        contentBegan = .now
        return partial
    }

    /// RFC 9110 §10.1.1: a client that waits is asked for its content; one that has begun to send it need not be.
    private func askForContent(_ head: ReceivedHead) {
        if head.expectsContinue { owesContinue = true }
    }

    private func advance(
        _ partial: PartialBody, _ bytes: Span<UInt8>, _ range: Range<Int>
    ) throws(RequestFault) -> (Event?, Int) {
        var index = range.lowerBound
        if partial.decoder == nil {
            let end = index + min(partial.remaining, range.upperBound - index)
            if !partial.isDropped { partial.bytes.append(copying: bytes.extracting(index..<end)) }
            partial.remaining -= end - index
            return partial.remaining == 0 ? bodyReceived(partial, end) : (nil, end)
        }
        let available = bytes.extracting(0..<range.upperBound)
        while let step = try Self.nextChunkStep(partial, available, from: index) {
            switch step {
            case .data(let data):
                if !partial.isDropped { partial.bytes.append(copying: bytes.extracting(data)) }
                index = data.upperBound
            case .complete(let end):
                return bodyReceived(partial, end)
            case .needsMore:
                return (nil, range.upperBound)
            }
        }
        return (nil, range.upperBound)
    }

    private func bodyReceived(_ partial: PartialBody, _ end: Int) -> (Event?, Int) {
        partialBody = nil
        return (.request(partial.head, body: partial.bytes), end)
    }

    private static func nextChunkStep(
        _ partial: PartialBody, _ bytes: Span<UInt8>, from index: Int
    ) throws(RequestFault) -> ChunkedDecoder.Step? {
        do throws(ChunkedDecoder.Fault) {
            return try partial.decoder?.next(bytes, from: index)
        } catch {
            switch error {
            case .malformed: throw .chunk
            case .overheadTooLarge: throw .chunkOverheadTooLarge
            case .bodyTooLarge: throw .contentTooLarge
            }
        }
    }
}
