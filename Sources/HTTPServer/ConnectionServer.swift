internal import HTTPCodec
internal import Reactor
internal import Synchronization

/// Serves a worker's connections: reads requests, has them answered, sends the answers, and closes.
///
/// It does no waiting. A request that the handler answers at once is read, answered and counted within one turn of the
/// loop; any other is handed to the worker, which runs the handler in a task and comes back with the answer. On the loop's
/// thread only.
final class ConnectionServer {
    let loop: EventLoop
    let configuration: ServerConfiguration
    let handler: any RequestHandler
    let counters: WorkerCounters
    let refusals: RefusalReports
    let turns: TurnQueue
    let sender: AnswerSender
    /// Takes over the requests that are not answered at once.
    private(set) lazy var exchanges = Exchanges(self)
    private let connectionCount: ConnectionCount
    /// Hears that the last connection is closed.
    weak var worker: Worker?

    var connections = ConnectionTable()

    /// Where every read lands first. A connection keeps only what it cannot use at once.
    private let input = InputBuffer(capacity: 16_384)
    private let output: OutputBuffer
    private let answer: NowAnswer
    /// What `take` has stopped at.
    private var foundEvent: Connection.Event?
    private let sections = FieldSections()
    private var parser: RequestParser

    /// Whether the requests of the connection that is being served are refused.
    private(set) var isRefusing = false
    private(set) var isDraining = false
    private var isInTurn = false

    private let quickAnswers: QuickAnswers

    /// In nanoseconds.
    let timeouts: Timeouts
    private let unsentLimit: Int
    private let limits: RequestLimits

    /// After how many requests that are answered at once the clock is looked at.
    private static let answersPerLook = 16

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
        quickAnswers = QuickAnswers(handler, counters)
        turns = TurnQueue(loop: loop, configuration: configuration)
        sender = AnswerSender(configuration, counters, refusals)
        output = sender.output
        answer = NowAnswer(sender.encoder, sender.output)
        parser = RequestParser(limits: configuration.limits, sections: sections)
        turns.server = self
        sender.server = self
    }

    // MARK: Turns

    func turnBegan() {
        isInTurn = true
        answer.note = nil
        sender.encoder.update(second: WallClock.milliseconds / 1000)
    }

    func turnEnded() {
        isInTurn = false
        quickAnswers.report()
    }

    /// A connection's turn has come.
    /// - Parameters:
    ///   - since: when it began to wait for its turn.
    ///   - isRefused: it has waited for too long, on a loop with more to do than can be done.
    func becameReady(_ slot: Int, _ readiness: Readiness, since: MonotonicInstant, isRefused: Bool) {
        guard let connection = connections[slot] else { return }
        isRefusing = isRefused
        defer { isRefusing = false }
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
        serve(connection)
        if quickAnswers.count != answered { quickAnswers.found(since) }
    }

    private func serveLater(_ connection: Connection) {
        connection.isQueued = true
        turns.wait(connection.id.slot)
    }

    // MARK: Connections

    /// How many connections are open that are beyond the limit.
    private(set) var refusedConnections = 0

    /// - Parameters:
    ///   - source: what the connection counts for; nil for none.
    ///   - isRefused: it is beyond the limit.
    func begin(
        _ descriptor: consuming OwnedDescriptor, peer: NetworkAddress, source: NetworkSource?, isRefused: Bool
    ) -> Connection {
        let id = connections.nextID()
        let connection = Connection(
            id: id, descriptor: descriptor, peer: peer, source: source, isRefused: isRefused)
        connections.insert(connection, at: loop.turnTime)
        turns.begin(id.slot)
        if isRefused { refusedConnections += 1 }
        return connection
    }

    // MARK: Serving

    /// Takes a connection as far as it goes without waiting. A loop and not a recursion: however many requests are
    /// pipelined, the stack does not grow, and their answers leave together.
    func serve(_ connection: Connection) {
        if connection.isBeingServed || connection.phase == .closed { return }
        connection.isBeingServed = true
        var budget = TurnBudget()
        serving: while true {
            switch connection.phase {
            case .receiving:
                guard read(connection, &budget) else { break serving }
            case .closing:
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
            case .admitting, .answering, .streaming, .closed:
                break serving
            }
        }
        connection.isBeingServed = false
        if connection.phase == .closed { return }
        // One that gives way for a moment goes on soon, and then what it is owed leaves together.
        if connection.unsentBytes > 0, connection.mayWrite, !connection.isQueued { sender.flush(connection) }
        if connection.phase == .closed { return }
        let isIdle = connection.isIdle && !connection.isQueued
        // Its last answer did not say so, since the drain began while that was on its way.
        if isDraining, isIdle { return close(connection) }
        updateWait(connection)
        turns.update(
            connection.id.slot,
            isIdle: isIdle && !connection.mayHaveInput && connection.mayWrite && !connection.peerFinished,
            isQuick: connection.isQuick)
    }

    /// Reads, and answers what was read. False where the connection has to wait, for its client or for its turn.
    private func read(_ connection: Connection, _ budget: inout TurnBudget) -> Bool {
        let hasKept = connection.unreadBytes > 0 && !connection.needsMore
        guard hasKept || connection.mayHaveInput else { return false }
        if budget.isSpent() {
            serveLater(connection)
            return false
        }
        // What is unsent bounds what is read: a peer that does not take its answers gets no more of them.
        if connection.unsentBytes >= unsentLimit { sender.flush(connection) }
        // Where the peer is gone its descriptor may be another connection's by now.
        if connection.phase == .closed || connection.unsentBytes > 0 && !connection.mayWrite { return false }
        if hasKept {
            takeKept(connection, &budget)
            return true
        }
        budget.reads += 1
        switch Kernel.receive(connection.descriptor, into: input) {
        case .bytes(let count):
            // A short read has emptied the socket, and the next byte makes a new edge.
            if count < input.capacity, !connection.peerFinished { connection.mayHaveInput = false }
            connection.needsMore = false
            if connection.unreadBytes > 0 {
                input.withBytes(0..<count) { connection.keep($0) }
                takeKept(connection, &budget)
            } else {
                // The common case: requests are read where the kernel put them, and nothing is copied.
                var found = Found.needsMore
                input.withBytes(0..<count) { bytes in
                    let end: Int
                    (found, end) = take(bytes, connection, &budget)
                    if end < count { connection.keep(bytes.extracting(end..<count)) }
                }
                heed(found, connection, &budget)
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
            close(connection)
            return false
        }
    }

    private func takeKept(_ connection: Connection, _ budget: inout TurnBudget) {
        let (bytes, start) = connection.keptInput
        let (found, end) = take(bytes.span.extracting(start...), connection, &budget)
        connection.readKeptInput(to: start + end)
        heed(found, connection, &budget)
    }

    /// What came of the bytes at hand.
    private enum Found {
        /// A request has not all arrived, or the bytes are read to their end.
        case needsMore
        /// There is more to read, when the connection may go on.
        case paused
        /// The last request that was answered ends the connection.
        case ended(keepsAlive: Bool)
        /// `foundEvent` takes more than reading on.
        case event
    }

    /// Reads requests and answers those that are answered at once. Returns where it stopped.
    private func take(
        _ bytes: Span<UInt8>, _ connection: Connection, _ budget: inout TurnBudget
    ) -> (Found, end: Int) {
        var (index, answers) = (0, 0)
        do throws(RequestFault) {
            while true {
                if connection.isInsideContent {
                    let (event, end) = try connection.readContent(bytes, from: index)
                    foundEvent = event
                    return (event == nil ? .needsMore : .event, end)
                }
                if index == bytes.count { return (.needsMore, index) }
                let rest = bytes.extracting(index..<bytes.count)
                guard let head = try connection.readHead(rest, &parser) else { return (.needsMore, index) }
                connection.section = head.section.position
                let end = index + head.length
                if head.hasContent {
                    foundEvent = try connection.headReceived(
                        head.copied(from: rest), limits, hasMore: end < bytes.count)
                    index = end
                    if foundEvent != nil { return (.event, end) }
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
                budget.requests += 1
                if output.count >= unsentLimit
                    || answers.isMultiple(of: Self.answersPerLook) && budget.isSpent()
                {
                    return (.paused, end)
                }
            }
        } catch {
            foundEvent = .fault(error)
            return (.event, bytes.count)
        }
    }

    private func answerNow(_ head: RequestHead, _ bytes: Span<UInt8>, _ connection: Connection) -> Bool {
        if isRefusing { return false }
        let before = output.count
        if !isInTurn { answer.note = nil }
        answer.connection = persistence(isHTTP10: head.isHTTP10, closes: !head.keepsAlive || isDraining)
        guard let kind = handler.answerNow(head, bytes, into: answer) else {
            output.removeLast(output.count - before)
            return false
        }
        // It is reported at the end of a turn, and this may be none.
        if quickAnswers.count == 0, !isInTurn { loop.requestTurn() }
        quickAnswers.add(kind, at: loop.turnTime)
        connection.isQuick = true
        connection.endWait()
        return true
    }

    func persistence(isHTTP10: Bool, closes: Bool) -> ResponseEncoder.Connection {
        closes ? .close : isHTTP10 ? .keepAlive : .unstated
    }

    /// Sends or queues the answers of `take`, and goes on with what it found.
    private func heed(_ found: Found, _ connection: Connection, _ budget: inout TurnBudget) {
        switch found {
        case .needsMore:
            connection.needsMore = true
            if output.count > 0 { sender.send(to: connection) }
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
            if let event { heed(event, connection, &budget) }
        }
    }

    private func heed(_ event: Connection.Event, _ connection: Connection, _ budget: inout TurnBudget) {
        switch event {
        case .head(let head):
            budget.requests += 1
            exchanges.start(head, [], connection)
        case .request(let head, let body):
            budget.requests += 1
            if !body.isEmpty, !exchanges.makeRoom(forContentBytes: body.count, of: connection) {
                exchanges.refuseContent(connection)
            } else {
                exchanges.start(head, body, connection)
            }
        case .content(let head): exchanges.admit(head, connection)
        case .fault(let fault): fail(connection, fault.status, fault.detail)
        }
    }

    private func endOfInput(_ connection: Connection) {
        if connection.isInsideRequest {
            // RFC 9112 §8: incomplete, and it will stay so. The client may still read why.
            fail(connection, .badRequest, "The connection ended inside the request.")
        } else {
            connection.phase = .closing
        }
        // Nothing more can arrive, so there is nothing to wait for.
        connection.mustLinger = false
    }

    /// Drops input until the peer closes, so that what it has sent does not turn our close into a reset that would take
    /// the last answer with it.
    private func linger(_ connection: Connection) {
        while connection.mayHaveInput {
            switch Kernel.receive(connection.descriptor, into: input) {
            case .bytes(let count):
                connection.lingeringBytes += count
                if connection.lingeringBytes > configuration.lingerBytes { return close(connection) }
                if count < input.capacity, !connection.peerFinished { connection.mayHaveInput = false }
            case .wouldBlock:
                connection.mayHaveInput = false
            case .finished, .failed:
                return close(connection)
            }
        }
    }

    // MARK: Ending

    /// Closes at once. A handler that is still running is cancelled and its answer dropped.
    func close(_ connection: Connection) {
        if connection.phase == .closed { return }
        turns.update(connection.id.slot, isIdle: false, isQuick: false)
        if let registration = connection.registration { loop.deregisterBeforeClose(registration) }
        connection.registration = nil
        connection.dropInput()
        exchanges.account(connection)
        connection.closeDescriptor()
        sender.forget(connection)
        connection.stream?.wakeWriters()
        connection.stream = nil
        connections.remove(connection)
        if connection.isRefused { refusedConnections -= 1 } else { connectionCount.remove(connection.source) }
        let task = connection.task
        connection.task = nil
        task?.cancel()
        endIfQuiet()
    }

    /// Closes with a reset: a plain close would leave what the peer does not read with the kernel.
    func abort(_ connection: Connection) {
        Socket.abortOnClose(connection.descriptor)
        close(connection)
    }

    func abortAll() {
        for slot in 0..<connections.slotCount { if let connection = connections[slot] { abort(connection) } }
    }

    /// Has every connection end with its next answer.
    func beginDraining() {
        isDraining = true
    }

    /// Closes the connections that are idle.
    func closeIdle() {
        for slot in 0..<connections.slotCount {
            guard let connection = connections[slot], connection.isIdle else { continue }
            // A request may have arrived on it that no event has told of yet.
            serveWhatCame(connection)
            if connection.isIdle { close(connection) }
        }
    }

    /// Aborts every connection and cancels every handler.
    func beginClosing() {
        isDraining = true
        abortAll()
        // There is no later occasion.
        refusals.tell()
        wipeBuffers()
    }

    /// What a connection waits for may have come without the loop's having got to it.
    func serveWhatCame(_ connection: Connection) {
        connection.mayHaveInput = true
        serve(connection)
    }

    /// Whether no connection is left and no handler runs.
    var isQuiet: Bool { connections.count == 0 && exchanges.runningHandlers == 0 }

    func endIfQuiet() {
        guard isDraining, isQuiet else { return }
        worker?.assumeIsolated { $0.becomeQuiet() }
    }

    /// Overwrites what requests and answers have left in memory: API keys and tokens are in it. Called between turns.
    func wipeBuffers() {
        input.wipe()
        output.wipe()
        sections.wipe()
    }

    func endBehindAnswer(_ connection: Connection, mustLinger: Bool) {
        connection.phase = .closing
        connection.mustLinger = mustLinger || connection.unreadBytes > 0
        connection.dropInput()
    }

    /// Answers what is not a request, and lets the connection end. Nothing that follows on it is looked at.
    func fail(_ connection: Connection, _ status: Status, _ detail: String) {
        counters.countFault(status)
        end(connection, with: handler.response(toFault: status, detail: detail))
    }

    /// Has the connection end behind this answer.
    func end(_ connection: Connection, with response: Response) {
        connection.dropInput()
        exchanges.account(connection)
        connection.exchange = nil
        connection.phase = .closing
        connection.mustLinger = true
        connection.endWait()
        let exchange = Connection.Exchange(
            number: sender.encoder.nextNumber(), isHead: false, isHTTP10: false, keepsAlive: false)
        _ = sender.write(response, to: connection, exchange, persistence: .close)
    }

    // MARK: Deadlines

    /// Sets the deadline of what the connection waits for, when that has changed.
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
