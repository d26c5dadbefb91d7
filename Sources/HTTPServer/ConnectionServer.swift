import HTTPCodec
import Reactor
import Synchronization
import TLS

/// Serves a worker's connections: reads requests, has them answered, sends the answers, and closes.
///
/// It never suspends. A request that the handler answers at once is read, answered and counted within one turn of the
/// loop. Any other request goes to `Exchanges`, and the worker runs the handler in a task. On the loop's thread only.
final class ConnectionServer {
    let loop: EventLoop
    let configuration: ServerConfiguration
    let handler: any RequestHandler
    let counters: WorkerCounters
    let refusals: RefusalReports
    let turns: TurnQueue
    let sender: AnswerSender
    /// Serves the requests that are not answered at once.
    private(set) lazy var exchanges = Exchanges(self)
    private let connectionCount: ConnectionCount
    /// Is told when the last connection is closed.
    weak var worker: Worker?

    var connections: ConnectionTable {
        get { table.value }
        _modify { yield &table.value }
    }
    private let table = LoopState(ConnectionTable())
    /// The connections whose TLS handshakes are not complete.
    var handshakes = HandshakeQueue()

    /// The buffer for reads in a connection's turn. A connection copies only what cannot be used at once.
    let input = InputBuffer(capacity: 16_384)
    private let ahead: ReadAhead
    private let output: OutputBuffer
    private let answer: NowAnswer
    /// What `take` has stopped at.
    private var foundEvent: Connection.Event?
    private let sections = FieldSections()
    private let parser: LoopState<RequestParser>

    /// Whether the requests of the connection that is being served are refused.
    private(set) var isRefusing = false
    private(set) var isDraining = false
    private var isInTurn = false

    private let quickAnswers: QuickAnswers

    /// In nanoseconds.
    let timeouts: Timeouts
    private let unsentLimit: Int
    private let limits: RequestLimits

    /// The clock is read once for this many requests that are answered at once.
    private static let answersPerClockReading = 16

    init(
        loop: EventLoop, configuration: ServerConfiguration, handler: any RequestHandler, counters: WorkerCounters,
        connectionCount: ConnectionCount
    ) {
        self.loop = loop
        self.configuration = configuration
        self.handler = handler
        self.counters = counters
        self.connectionCount = connectionCount
        timeouts = Timeouts(configuration)
        unsentLimit = configuration.unsentBytes
        limits = configuration.limits
        refusals = RefusalReports(
            loop: loop, handler: handler, counters: counters, retryAfterSeconds: configuration.retryAfterSeconds)
        quickAnswers = QuickAnswers(loop, handler, counters)
        turns = TurnQueue(loop: loop, configuration: configuration)
        sender = AnswerSender(loop, configuration, counters, refusals)
        output = sender.output
        answer = NowAnswer(sender.encoder, sender.output)
        ahead = ReadAhead(most: input.capacity)
        // How long a content may be is known once the handler has admitted it: one that is read while it comes may have any length.
        var headLimits = configuration.limits
        headLimits.bodyBytes = .max
        parser = LoopState(RequestParser(limits: headLimits, sections: sections))
        turns.server = self
        sender.server = self
    }

    // MARK: Turns

    func turnBegan() {
        isInTurn = true
        sender.mayHold = !isDraining
        answer.note = nil
        sender.encoder.update(second: WallClock.milliseconds / 1000)
    }

    func turnEnded() {
        sender.mayHold = false
        settleHeld()
        isInTurn = false
        quickAnswers.report()
    }

    /// Reads a connection ahead of its turn, which must come before `endReadAhead`.
    func readAhead(_ slot: Int) {
        if let connection = connections[slot] { ahead.read(connection) }
    }

    /// The connections that were read ahead have had their turns.
    func endReadAhead() { ahead.removeAll() }

    /// It is the connection's turn.
    /// - Parameters:
    ///   - since: when the connection became ready.
    ///   - isRefused: its requests are refused, because it has waited for too long on an overloaded loop.
    func becameReady(_ slot: Int, _ readiness: Readiness, since: MonotonicInstant, isRefused: Bool) {
        guard let connection = connections[slot] else { return }
        // Reset, or closed on both sides: no answer can reach the client.
        if readiness.rawValue & Readiness.hangup.rawValue != 0 { return close(connection) }
        if readiness.rawValue & Readiness.readable.rawValue != 0 { connection.mayHaveInput = true }
        if readiness.rawValue & Readiness.peerFinished.rawValue != 0 {
            connection.peerFinished = true
            connection.mayHaveInput = true
        }
        if readiness.rawValue & Readiness.writable.rawValue != 0 { connection.mayWrite = true }
        connection.isQueued = false
        let answered = quickAnswers.count
        isRefusing = isRefused
        serve(connection)
        isRefusing = false
        assert(!connection.isReadAhead)
        if quickAnswers.count != answered { quickAnswers.becameReady(at: since) }
        if sender.isFull { settleHeld() }
    }

    /// Sends the answers of the held connections, and goes on with these connections.
    func settleHeld() {
        sender.settleHeld { connection, isBroken in
            connection.isBeingServed = false
            if isBroken {
                close(connection)
            } else if connection.mayHaveMore {
                serve(connection)
            } else {
                if connection.unsentBytes > 0 { sender.flush(connection) }
                pause(connection)
            }
        }
    }

    private func serveLater(_ connection: Connection) {
        connection.isQueued = true
        turns.wait(connection.id.slot)
    }

    // MARK: Connections

    /// How many connections beyond the limit are open.
    private(set) var refusedConnections = 0

    /// - Parameters:
    ///   - isFromTrustedProxy: the connection counts for no source.
    ///   - isRefused: the connection is beyond the limit.
    func begin(
        _ descriptor: consuming OwnedDescriptor, peer: NetworkAddress, isFromTrustedProxy: Bool, isRefused: Bool
    ) -> Connection {
        let id = connections.nextID()
        let connection = Connection(
            id: id, descriptor: descriptor, tls: configuration.tls?.makeChannel().map(SecureTransport.init), peer: peer,
            isFromTrustedProxy: isFromTrustedProxy, isRefused: isRefused)
        connection.begin(at: loop.turnTime)
        connections.insert(connection, at: loop.turnTime)
        if connection.tls != nil { beginHandshake(connection) }
        turns.begin(id.slot)
        if isRefused { refusedConnections += 1 }
        return connection
    }

    // MARK: Serving

    /// Serves a connection as far as possible without waiting. It is a loop and not a recursion, so that pipelined
    /// requests do not deepen the stack, and their answers are sent together.
    func serve(_ connection: Connection) {
        if connection.isBeingServed || connection.phase == .closed { return }
        connection.isBeingServed = true
        var slice = TimeSlice()
        serving: while true {
            switch connection.phase {
            case .receiving:
                guard read(connection, &slice) else { break serving }
            case .closing:
                if let tls = connection.tls { connection.queueRecords { tls.finish(into: &$0) } }
                sender.flush(connection)
                if connection.phase == .closed || connection.unsentBytes > 0 { break serving }
                guard connection.mustLinger else {
                    close(connection)
                    break serving
                }
                Socket.finishSending(connection.descriptor)
                connection.phase = .lingering
            case .lingering:
                linger(connection)
                break serving
            case .answering, .streaming:
                if connection.mayHaveMore { connection.upload?.wake() }
                break serving
            case .admitting, .closed:
                break serving
            }
        }
        if connection.isHeld { return }
        connection.isBeingServed = false
        if connection.phase == .closed { return }
        if connection.tls?.hasLostOutput == true { return close(connection) }
        // A connection that has used up its time slice is served again soon, and sends all its answers then.
        if connection.unsentBytes > 0, connection.mayWrite, !connection.isQueued { sender.flush(connection) }
        pause(connection)
    }

    /// Notes what the connection waits for, when nothing more can be done for it.
    private func pause(_ connection: Connection) {
        if connection.phase == .closed { return }
        let isIdle = connection.isIdle && !connection.isQueued
        // Its last answer did not announce the end, because the drain began after that.
        if isDraining, isIdle { return close(connection) }
        updateWait(connection)
        turns.update(
            connection.id.slot,
            isIdle: isIdle && !connection.mayHaveInput && connection.mayWrite && !connection.peerFinished,
            isQuick: connection.isQuick)
    }

    /// Reads, and answers what was read. False when the connection has to wait for its client or for its turn.
    private func read(_ connection: Connection, _ slice: inout TimeSlice) -> Bool {
        let hasKept = connection.unreadBytes > 0 && !connection.needsMore
        guard hasKept || connection.isReadAhead || connection.mayHaveMore else { return false }
        if slice.isSpent(on: loop) {
            serveLater(connection)
            return false
        }
        // No request is read while too much is unsent: a peer that does not read its answers gets no more of them.
        if connection.unsentBytes >= unsentLimit { sender.flush(connection) }
        // When the connection was closed, its descriptor's number may belong to another connection by now.
        if connection.phase == .closed || connection.unsentBytes > 0 && !connection.mayWrite { return false }
        if hasKept {
            takeKept(connection, &slice)
            return true
        }
        slice.reads += 1
        var found = Found.needsMore
        if let range = connection.takeReadAhead() {
            connection.needsMore = false
            noteReceived(range.count, from: connection)
            ahead.withBytes(range) { found = takeReceived($0, connection, &slice) }
            heed(found, connection, &slice)
            return true
        }
        switch receive(connection) {
        case .bytes(let count):
            connection.needsMore = false
            if connection.unreadBytes > 0 {
                input.withBytes(0..<count) { connection.keep($0) }
                takeKept(connection, &slice)
            } else {
                input.withBytes(0..<count) { found = takeReceived($0, connection, &slice) }
                heed(found, connection, &slice)
            }
            return true
        case .wouldBlock:
            connection.mayHaveInput = false
            return false
        case .finished:
            connection.mayHaveInput = false
            endOfInput(connection)
            return true
        case .failed:
            guard connection.tls?.hasFailed == true else {
                close(connection)
                return false
            }
            endBehindAlert(connection)
            return true
        }
    }

    /// The common case: requests are read from the kernel's bytes, and nothing is copied.
    private func takeReceived(_ bytes: Span<UInt8>, _ connection: Connection, _ slice: inout TimeSlice) -> Found {
        let (found, end) = take(bytes, connection, &slice)
        if end < bytes.count { connection.keep(bytes.extracting(end...)) }
        return found
    }

    private func takeKept(_ connection: Connection, _ slice: inout TimeSlice) {
        let (bytes, start) = connection.keptInput
        let (found, end) = take(bytes.span.extracting(start...), connection, &slice)
        connection.readKeptInput(to: start + end)
        heed(found, connection, &slice)
    }

    /// Why `take` stopped.
    private enum Found {
        /// All bytes are read; the next request has not arrived, or only in part.
        case needsMore
        /// The time slice or the output buffer is used up, and there is more to read.
        case paused
        /// The last request that was answered ends the connection.
        case ended(keepsAlive: Bool)
        /// `foundEvent` has to be handled before reading continues.
        case event
    }

    /// Reads requests and has the handler answer them, until it does not answer one at once. Returns why and where it
    /// stopped.
    private func take(
        _ bytes: Span<UInt8>, _ connection: Connection, _ slice: inout TimeSlice
    ) -> (Found, end: Int) {
        var (index, answers, headStart) = (0, 0, 0)
        do throws(RequestFault) {
            while true {
                if connection.isInsideContent {
                    let (event, end) = try connection.readContent(bytes, from: index)
                    foundEvent = event
                    return (event == nil ? .needsMore : .event, end)
                }
                if index == bytes.count { return (.needsMore, index) }
                headStart = index
                let rest = bytes.extracting(index..<bytes.count)
                guard let head = try connection.readHead(rest, &parser.value) else { return (.needsMore, index) }
                connection.section = head.section.position
                let end = index + head.length
                if head.hasContent {
                    let copy = head.copied(from: rest)
                    index = end
                    guard copy.method == .get || copy.method == .head else {
                        foundEvent = .content(copy)
                        return (.event, end)
                    }
                    // What a GET or a HEAD has of content means nothing (RFC 9110 §9.3.1). It is read and not kept.
                    let content = try PartialContent(
                        of: copy, admitted: nil, limit: limits.bodyBytes, overheadLimit: limits.chunkOverheadBytes,
                        isOpen: true, at: loop.now)
                    connection.begin(content, hasMore: end < bytes.count)
                    continue
                }
                guard answerNow(head, rest, connection) else {
                    foundEvent = .head(head.copied(from: rest))
                    return (.event, end)
                }
                index = end
                if !head.keepsAlive || isDraining { return (.ended(keepsAlive: head.keepsAlive), end) }
                if end == bytes.count { return (.needsMore, end) }
                answers += 1
                slice.requests += 1
                if output.count >= unsentLimit
                    || answers.isMultiple(of: Self.answersPerClockReading) && slice.isSpent(on: loop)
                {
                    return (.paused, end)
                }
            }
        } catch {
            let path =
                connection.isInsideContent
                ? connection.pathInProgress : RequestHead.path(beginning: bytes.extracting(headStart...))
            foundEvent = .fault(error, path: path)
            return (.event, bytes.count)
        }
    }

    private func answerNow(_ head: borrowing RequestHead, _ bytes: Span<UInt8>, _ connection: Connection) -> Bool {
        if isRefusing { return false }
        let before = output.count
        if !isInTurn { answer.note = nil }
        answer.connection = persistence(isHTTP10: head.isHTTP10, closes: !head.keepsAlive || isDraining)
        guard let kind = handler.answerNow(head, bytes, from: connection.tls?.peer, into: answer) else {
            output.removeLast(output.count - before)
            return false
        }
        // Answers are reported at the end of a turn, and this call may be outside of a turn.
        if quickAnswers.count == 0, !isInTurn { loop.requestTurn() }
        quickAnswers.add(kind, at: loop.turnTime)
        connection.isQuick = true
        connection.endWait()
        return true
    }

    func persistence(isHTTP10: Bool, closes: Bool) -> ResponseEncoder.Connection {
        closes ? .close : isHTTP10 ? .keepAlive : .unstated
    }

    /// Sends or queues the answers of `take`, and continues with what it found.
    private func heed(_ found: Found, _ connection: Connection, _ slice: inout TimeSlice) {
        switch found {
        case .needsMore:
            connection.needsMore = true
            if sender.hasOutput {
                if sender.hold(connection) { return }
                sender.send(to: connection)
            }
            if connection.phase == .closed { return }
            if connection.hasContent { exchanges.contentCame(on: connection) }
        case .paused:
            sender.send(to: connection)
        case .ended(let keepsAlive):
            sender.send(to: connection)
            if connection.phase == .closed { return }
            endBehindAnswer(connection, mustLinger: keepsAlive)
        case .event:
            sender.queue(to: connection)
            if connection.hasContent { exchanges.account(connection) }
            let event = foundEvent
            foundEvent = nil
            if let event { heed(event, connection, &slice) }
        }
    }

    private func heed(_ event: Connection.Event, _ connection: Connection, _ slice: inout TimeSlice) {
        switch event {
        case .head(let head):
            slice.requests += 1
            exchanges.start(head, [], nil, connection)
        case .request(let head, let body, let admitted):
            slice.requests += 1
            if !body.isEmpty, !exchanges.makeRoom(forContentBytes: body.count, of: connection) {
                exchanges.refuseContent(connection, path: head.path)
            } else {
                exchanges.start(head, body, admitted, connection)
            }
        case .content(let head): exchanges.admit(head, connection)
        case .fault(let fault, let path): fail(connection, fault.status, fault.detail, path: path)
        }
    }

    // MARK: Ending

    /// Closes the connection at once. Cancels its handler if that is running, and drops the answer.
    func close(_ connection: Connection) {
        if connection.phase == .closed { return }
        turns.update(connection.id.slot, isIdle: false, isQuick: false)
        if let registration = connection.registration { loop.deregisterBeforeClose(registration) }
        connection.registration = nil
        connection.dropInput()
        exchanges.account(connection)
        if connection.tls != nil { sendCloseNotify(connection) }
        if connection.isShakingHands { handshakes.end() }
        connection.closeDescriptor()
        sender.forget(connection)
        connection.stream?.wakeWriters()
        connection.stream = nil
        _ = connection.endUpload()
        connections.remove(connection)
        if connection.isRefused { refusedConnections -= 1 } else { connectionCount.remove(connection.source) }
        let task = connection.task
        connection.task = nil
        task?.cancel()
        endIfQuiet()
    }

    /// Makes every connection end with its next answer.
    func beginDraining() {
        isDraining = true
    }

    /// Aborts every connection and cancels every handler.
    func beginClosing() {
        isDraining = true
        abortAll()
        // The scheduled report may come after the end of the loop.
        refusals.report()
        wipeBuffers()
    }

    /// Whether no connection is open and no handler runs.
    var isQuiet: Bool { connections.count == 0 && exchanges.runningHandlers == 0 }

    func endIfQuiet() {
        guard isDraining, isQuiet else { return }
        worker?.assumeIsolated { $0.becomeQuiet() }
    }

    /// Overwrites the buffers of requests and answers, which contain API keys and tokens. Called between turns.
    func wipeBuffers() {
        input.wipe()
        ahead.wipe()
        output.wipe()
        sections.wipe()
    }

    // MARK: Deadlines

    /// Sets the deadline when the connection has begun to wait for something else.
    func updateWait(_ connection: Connection) {
        let wait = connection.currentWait
        guard wait != connection.wait else { return }
        let timeout: Int64
        switch wait {
        case .nothing: return connection.endWait()
        case .firstRequest, .head: timeout = timeouts.head
        case .nextRequest: timeout = timeouts.idle
        case .body: timeout = timeouts.body
        case .linger: timeout = timeouts.linger
        }
        connection.beginWait(wait, at: loop.turnTime, for: timeout)
    }
}
