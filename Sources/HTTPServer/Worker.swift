internal import HTTPCodec
internal import Reactor
internal import Synchronization

/// Serves the connections of one listener, on one loop's thread.
///
/// The worker is an actor whose executor is its loop. Readiness arrives by calls from the loop, so serving a request
/// that needs no waiting is one chain of ordinary calls: read, parse, handler, write. What the handler does after a
/// suspension comes back as a job of the same loop.
actor Worker {
    nonisolated let loop: EventLoop
    nonisolated let counters = WorkerCounters()
    nonisolated var unownedExecutor: UnownedSerialExecutor { unsafe loop.asUnownedSerialExecutor() }

    private let configuration: ServerConfiguration
    private let handler: any RequestHandler
    private let connectionCount: ConnectionCount

    private var listener: OwnedDescriptor?
    private var listenerRegistration: Registration?

    private var connections: [Connection?] = []
    private var freeSlots: [Int] = []
    private var lastSerial: UInt64 = 0
    private var heldContentBytes = 0
    private var liveConnections = 0
    private var heldAnswerBytes = 0
    /// The slots that have had a connection, by a time before which theirs was not idle: it is looked at when that is the
    /// earliest.
    private var idleSince = TimeHeap()
    private var isListed: [Bool] = []
    /// The slots that have had content without a known caller, by a time before which that of theirs had not begun.
    private var openContents = SlotQueue()
    /// The slots that have had answers which their clients did not read, by a time before which that had not begun.
    private var unreadAnswers = SlotQueue()
    /// The slot at which the next search among the connections of some sources goes on.
    private var nextSearched = 0
    private var refusedConnections = 0
    private var isSweeping = false
    /// The slot at which the sweep goes on.
    private var nextSwept = 0
    /// What each kind of refusal is answered with, once there was one.
    private var refusalAnswers = [Response?](repeating: nil, count: Refusal.allCases.count)
    /// Refusals that the handler has not been told of, and whether it is going to be.
    private var untoldRefusals = [Int](repeating: 0, count: Refusal.allCases.count)
    private var willTellOfRefusals = false

    private let stamp: ResponseStamp
    /// Where every read lands first. A connection keeps only what it cannot use at once.
    private let scratch: InputBuffer
    private let lane: FastLane

    /// Whether the requests of the connection that is being served are refused.
    private var isRefusing = false
    private var isDraining = false
    private var runningHandlers = 0
    private var waitingForQuiet: [CheckedContinuation<Void, Never>] = []

    // How much one connection or listener may do before others have their turn.
    private static let readsPerTurn = 4
    /// In nanoseconds; one request at least is served.
    private static let timePerTurn: Int64 = 25_000
    /// In nanoseconds. The listener reports again what is left.
    private static let acceptTime: Int64 = 25_000
    /// For how long connections are taken from the kernel's queue before the listener closes.
    private static let lastAccepts = Duration.milliseconds(100)
    private static let streamWritesPerTurn = 64
    private static let looksPerAttempt = 512
    /// How many contents without a known caller are given up for one that needs their room.
    private static let contentsPerAttempt = 64
    /// Refused connections that are answered at once; more are dropped without an answer.
    /// At most an eighth of the limit: they take descriptors, too.
    private var maximumRefusals: Int { min(64, max(1, configuration.maximumConnections / 8)) }
    private static let acceptPause = Duration.milliseconds(100)
    /// How often the handler is told of refusals.
    private static let refusalInterval = Duration.seconds(1)

    init(
        loop: EventLoop, listener: consuming OwnedDescriptor, configuration: ServerConfiguration,
        handler: any RequestHandler, connectionCount: ConnectionCount
    ) {
        self.loop = loop
        self.configuration = configuration
        self.handler = handler
        self.connectionCount = connectionCount
        self.listener = consume listener
        stamp = ResponseStamp(second: WallClock.milliseconds / 1000)
        scratch = InputBuffer(capacity: 16_384)
        lane = FastLane(
            loop: loop, input: scratch, stamp: stamp, shortcut: handler.makeShortcut(), counters: counters,
            configuration: configuration)
    }

    // MARK: Accepting

    /// Starts or resumes accepting.
    func listen() {
        lane.worker = self
        loop.observe(lane)
        guard let number = listener?.rawValue, listenerRegistration == nil else { return }
        do throws(SystemError) {
            listenerRegistration = try loop.registerListener(number, ListenerReadiness(worker: self))
        } catch {
            // The kernel has no memory for the registration: the same remedy as for a lack of descriptors.
            pauseAccepting()
        }
    }

    /// Returns whether there may be more of them.
    func acceptConnections() -> Bool {
        guard let number = listener?.rawValue else { return false }
        let end = MonotonicInstant.now.advanced(byNanoseconds: Self.acceptTime)
        repeat {
            do throws(SystemError) {
                admit(try Socket.accept(number))
            } catch {
                switch Kernel.acceptFailure(error.number) {
                case .none: return false
                case .skip: continue
                case .pause:
                    pauseAccepting()
                    return false
                }
            }
        } while MonotonicInstant.now < end
        return true
    }

    /// Stops listening for a moment. New connections wait in the kernel's queue; one that waits is given up, since what has
    /// run out are most likely descriptors.
    private func pauseAccepting() {
        stopAccepting()
        if let waiting = search(grace: configuration.idleGrace).waiting { evict(waiting) }
        loop.schedule(at: .after(Self.acceptPause)) { self.assumeIsolated { $0.listen() } }
    }

    private func stopAccepting() {
        if let listenerRegistration { loop.deregister(listenerRegistration) }
        listenerRegistration = nil
    }

    private func admit(_ accepted: consuming Socket.Accepted) {
        counters.accepted.add(1, ordering: .relaxed)
        let peer = accepted.peerAddress
        let source = configuration.trustedProxies.contains(peer) ? nil : NetworkSource(peer)
        let refusal = refusal(ofConnectionFrom: source)
        if refusal != nil, refusedConnections >= maximumRefusals { return }
        let connection = insert(accepted.takeDescriptor(), peer: peer, source: source, isRefused: refusal != nil)
        connection.beginWait(.firstRequest, at: loop.turnTime, for: configuration.headTimeout)
        scheduleSweep()
        if let refusal {
            end(connection, with: answer(to: refusal))
            serve(connection)
        } else {
            // Most often the first request has come by now. One that closes its connection is answered without the kernel
            // ever having been asked to watch it.
            lane.open(connection.id)
            lane.accepted(connection.id)
        }
        if connection.phase == .closed { return }
        do throws(SystemError) {
            connection.registration = try loop.register(connection.descriptor, handler: lane, tag: connection.id.slot)
        } catch {
            close(connection)
        }
    }

    private func insert(
        _ descriptor: consuming OwnedDescriptor, peer: NetworkAddress, source: NetworkSource?, isRefused: Bool
    ) -> Connection {
        lastSerial += 1
        let slot = freeSlots.popLast() ?? connections.count
        let id = ConnectionID(slot: slot, serial: lastSerial)
        let connection = Connection(
            id: id, descriptor: descriptor, peer: peer, source: source, isRefused: isRefused)
        if slot == connections.count {
            connections.append(connection)
            isListed.append(false)
        } else {
            connections[slot] = connection
        }
        if !isListed[slot] {
            isListed[slot] = true
            idleSince.insert(loop.turnTime, UInt64(slot))
        }
        lane.begin(id, connection.descriptor)
        liveConnections += 1
        if isRefused { refusedConnections += 1 }
        return connection
    }

    /// Counts a new connection, and makes room for it where that is needed. Returns why it is refused; nil where it is not.
    private func refusal(ofConnectionFrom source: NetworkSource?) -> Refusal? {
        let (total, ofSource) = connectionCount.add(source)
        let isOverLimit = configuration.maximumConnectionsPerSource.map { ofSource > $0 } ?? false
        if !isOverLimit, total <= configuration.maximumConnections { return nil }
        let isOverShare = isOverLimit || ofSource > connectionCount.share
        if isOverShare ? makeRoomAmongThose(of: source) : makeRoom() { return nil }
        connectionCount.remove(source)
        let refusal: Refusal = isOverShare ? .source : .connections
        note(refusal)
        return refusal
    }

    /// Closes the source's connection that has waited for longest. False where none has for the time of grace.
    private func makeRoomAmongThose(of source: NetworkSource?) -> Bool {
        guard let waiting = search(grace: configuration.idleGrace, among: { $0 == source }).waiting else {
            return false
        }
        evict(waiting)
        return true
    }

    /// Closes a connection: of a source with more than its share the one that has waited for longest, else of all the one
    /// that has for longest, else one of such a source that is in use. False where there is none.
    private func makeRoom() -> Bool {
        let sources = connectionCount.sourcesOverShare
        var inUse: Connection?
        if !sources.isEmpty {
            let found = search(grace: .zero) { sources.contains($0) }
            if let waiting = found.waiting {
                evict(waiting)
                return true
            }
            inUse = found.inUse
        }
        if let waiting = search(grace: configuration.idleGrace).waiting {
            evict(waiting)
            return true
        }
        guard let inUse else { return false }
        note(.displacement)
        close(inUse)
        return true
    }

    private func evict(_ connection: Connection) {
        counters.evicted.add(1, ordering: .relaxed)
        close(connection)
    }

    /// Looks for a connection that gives way to a new one: the one that has waited for longest, if it has for `grace`. Where
    /// none is found, also for one that is in use.
    ///
    /// No call looks at more than a few: a client that makes connections without end would otherwise have each attempt
    /// looked at as many times as there are connections. Behind more than that which are in use, a waiting one is found
    /// some attempts later.
    private func search(grace: Duration) -> (waiting: Connection?, inUse: Connection?) {
        let now = MonotonicInstant.now
        var inUse: Connection?
        for _ in 0..<Self.looksPerAttempt {
            guard let first = idleSince.first, first.time < now, first.time.advanced(by: grace) <= now else { break }
            idleSince.removeFirst()
            let slot = Int(first.number)
            guard let connection = connections[slot] else {
                isListed[slot] = false
                continue
            }
            var since = now
            if !connection.isRefused, let begin = beginOfWait(connection) {
                since = begin
                if since == first.time, mayGo(connection) {
                    idleSince.insert(since, first.number)
                    return (connection, nil)
                }
            }
            if inUse == nil, !connection.isRefused { inUse = connection }
            // Not before it was: a client that waits for its turn is not looked at again for the time of grace.
            idleSince.insert(since == first.time ? now : since, first.number)
        }
        return (nil, inUse)
    }

    /// The same among the connections of some sources. Looks at as many slots as `search(grace:)` does, and the next call
    /// at those behind them, so that each connection is reached however many others there are.
    private func search(
        grace: Duration, among isEligible: (NetworkSource) -> Bool
    ) -> (waiting: Connection?, inUse: Connection?) {
        let now = MonotonicInstant.now
        var (waiting, inUse) = (Connection?.none, Connection?.none)
        var earliest = now
        for _ in 0..<min(Self.looksPerAttempt, connections.count) {
            let slot = nextSearched < connections.count ? nextSearched : 0
            nextSearched = slot + 1
            guard let connection = connections[slot], !connection.isRefused,
                let source = connection.source, isEligible(source)
            else { continue }
            if let since = beginOfWait(connection), since.advanced(by: grace) <= now {
                if since < earliest, mayGo(connection) { (waiting, earliest) = (connection, since) }
            } else if inUse == nil {
                inUse = connection
            }
        }
        return (waiting, inUse)
    }

    /// Since when the connection has waited for its client; nil where it does not give way.
    private func beginOfWait(_ connection: Connection) -> MonotonicInstant? {
        guard connection.givesWay else { return nil }
        noteAnswers(of: connection)
        return connection.waitsSince
    }

    /// Whether nothing has come that its client waits to have answered: that would be with the kernel yet.
    private func mayGo(_ connection: Connection) -> Bool {
        connection.isStalled || !Kernel.hasInput(connection.descriptor)
    }

    // MARK: Serving

    /// A descriptor became ready, and the fast lane has left something to do; or it is the connection's turn again.
    /// - Parameter isRefused: it has waited for too long, on a loop with more to do than can be done.
    func becameReady(_ slot: Int, _ readiness: Readiness, isRefused: Bool) {
        isRefusing = isRefused
        defer { isRefusing = false }
        guard slot < connections.count, let connection = connections[slot], takeOver(connection, readiness) else {
            return
        }
        // Reset, or closed on both sides: nobody is left to answer.
        if readiness.contains(.hangup) { return close(connection) }
        if readiness.contains(.peerFinished) {
            connection.peerFinished = true
            connection.mayHaveInput = true
        }
        if readiness.contains(.writable) { connection.mayWrite = true }
        connection.isQueued = false
        serve(connection)
    }

    /// Takes over what the fast lane has read, answered and not sent. False where the connection has come to its end.
    private func takeOver(_ connection: Connection, _ readiness: Readiness) -> Bool {
        let rest = lane.remainder
        defer { lane.clearRemainder() }
        lane.close(connection.id)
        noteAnswers(of: connection)
        if rest.hasFailed {
            close(connection)
            return false
        }
        if !rest.input.isEmpty { scratch.withBytes(rest.input) { connection.keep($0) } }
        if rest.mayHaveInput, readiness.contains(.readable) { connection.mayHaveInput = true }
        if lane.output.count > 0 {
            connection.output.append(copying: lane.output, from: rest.sent)
            connection.mayWrite = false
            connection.stalled(configuration.writeTimeout)
            accountAnswers(of: connection)
        }
        if connection.phase == .closed { return false }
        if rest.closes {
            // Its client asked for the close, so only what it has sent already could be lost to a reset.
            connection.phase = .closing
            connection.mustLinger = connection.unreadBytes > 0
            connection.dropInput()
        }
        return true
    }

    /// What the fast lane has answered counts for the connection's time-outs like every other request.
    private func noteAnswers(of connection: Connection) {
        guard let last = lane.lastAnswer(connection.id), last >= connection.waitBegan,
            connection.wait == .firstRequest || connection.wait == .nextRequest
        else { return }
        connection.beginWait(.nextRequest, at: last, for: configuration.idleTimeout)
    }

    /// Takes a connection as far as it goes without waiting. A loop and not a recursion: however many requests are
    /// pipelined, the stack does not grow, and their answers leave together.
    private func serve(_ connection: Connection) {
        if connection.isBeingServed || connection.phase == .closed { return }
        connection.isBeingServed = true
        var (reads, requests) = (0, 0)
        let end = MonotonicInstant.now.advanced(byNanoseconds: Self.timePerTurn)
        serving: while true {
            switch connection.phase {
            case .receiving:
                let hasMore = connection.unreadBytes > 0 || connection.mayHaveInput
                if hasMore, reads >= Self.readsPerTurn || requests > 0 && MonotonicInstant.now >= end {
                    serveLater(connection)
                    break serving
                }
                // What is unsent bounds what is read: a peer that does not take its answers gets no more of them.
                if connection.unsentBytes >= configuration.unsentBytes { flush(connection) }
                // Where the peer is gone its descriptor may be another connection's by now.
                if connection.phase == .closed || connection.unsentBytes > 0 && !connection.mayWrite { break serving }
                guard let event = nextEvent(connection, &reads) else {
                    // What the fast lane has read, and nothing behind it.
                    account(connection)
                    if connection.unfinishedContentBytes > 0, refuseIfTooMuchIsHeld(connection) { continue }
                    break serving
                }
                account(connection)
                switch event {
                case .needsMore:
                    _ = refuseIfTooMuchIsHeld(connection)
                case .content(let head):
                    admit(head, connection)
                case .request(let head, let body):
                    requests += 1
                    if !body.isEmpty, !makeRoom(forContentBytes: body.count, of: connection) {
                        refuseContent(connection)
                    } else {
                        start(head, body, connection)
                    }
                case .fault(let fault):
                    fail(connection, fault.status, fault.detail)
                }
            case .closing:
                flush(connection)
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
        // One that gives way for a moment goes on soon, and then what it is owed leaves together.
        if connection.phase != .closed, connection.unsentBytes > 0, connection.mayWrite, !connection.isQueued {
            flush(connection)
        }
        connection.isBeingServed = false
        // Its last answer did not say so, since the drain began while that was on its way.
        if isDraining, connection.isIdle, !connection.isQueued { return close(connection) }
        updateDeadline(connection)
        if connection.isIdle, !connection.mayHaveInput, connection.mayWrite, !connection.isQueued,
            !connection.peerFinished, !connection.isRefused
        {
            lane.open(connection.id)
        } else {
            lane.close(connection.id)
        }
    }

    private func refuseIfTooMuchIsHeld(_ connection: Connection) -> Bool {
        guard connection.phase == .receiving, !makeRoom(forContentBytes: 0, of: connection) else { return false }
        refuseContent(connection)
        return true
    }

    /// Refuses the oldest contents that are sent without a known caller until so many bytes more can be held. False where
    /// that is not enough, or the connection's own content is the oldest.
    private func makeRoom(forContentBytes count: Int, of connection: Connection) -> Bool {
        var left = Self.contentsPerAttempt
        while heldContentBytes + count > configuration.contentBytes {
            guard left > 0, let oldest = oldestOpenContent(), oldest !== connection else { return false }
            left -= 1
            refuseContent(oldest)
            serve(oldest)
        }
        return true
    }

    /// The connection whose content began first of those that are sent without a known caller.
    private func oldestOpenContent() -> Connection? {
        openContents.first { slot in
            guard let connection = connections[slot], connection.hasOpenContent, connection.unfinishedContentBytes > 0
            else { return nil }
            return connection.contentBegan
        }.flatMap { connections[$0] }
    }

    private func refuseContent(_ connection: Connection) {
        note(.contents)
        end(connection, with: answer(to: .contents))
    }

    /// Keeps the sum of the unfinished contents that this loop's connections hold. Finished ones are in it for as long as
    /// their handlers run.
    private func account(_ connection: Connection) {
        heldContentBytes += connection.unfinishedContentBytes - connection.accountedContentBytes
        connection.accountedContentBytes = connection.unfinishedContentBytes
        if connection.hasOpenContent, connection.unfinishedContentBytes > 0 {
            openContents.insert(connection.contentBegan, connection.id.slot)
        }
    }

    /// Keeps the sum of what this loop's connections have not sent because their clients do not read. Where that is too
    /// much, resets the connection whose client has not read for longest, then the next one.
    private func accountAnswers(of connection: Connection) {
        heldAnswerBytes += connection.unsentBytes - connection.accountedAnswerBytes
        connection.accountedAnswerBytes = connection.unsentBytes
        if connection.unsentBytes > 0 { unreadAnswers.insert(connection.stallBegan, connection.id.slot) }
        while heldAnswerBytes > configuration.answerBytes, let unread = longestUnread() {
            note(.answers)
            abort(unread)
        }
    }

    /// The connection whose client has not read for longest what it has asked for.
    private func longestUnread() -> Connection? {
        unreadAnswers.first { slot in
            guard let connection = connections[slot], connection.accountedAnswerBytes > 0 else { return nil }
            return connection.stallBegan
        }.flatMap { connections[$0] }
    }

    private func serveLater(_ connection: Connection) {
        connection.isQueued = true
        lane.wait(connection.id)
    }

    /// What comes of the input at hand, or of the next read. Nil when nothing more can be done now.
    private func nextEvent(_ connection: Connection, _ reads: inout Int) -> Connection.Event? {
        if connection.unreadBytes > 0 {
            let event = connection.readOn(configuration.limits)
            if case .needsMore = event {} else { return event }
        }
        guard connection.mayHaveInput else { return nil }
        reads += 1
        switch Kernel.receive(connection.descriptor, into: scratch) {
        case .bytes(let count):
            // A short read has emptied the socket, and the next byte makes a new edge.
            if count < scratch.capacity, !connection.peerFinished { connection.mayHaveInput = false }
            return scratch.withBytes(0..<count) { connection.received($0, configuration.limits) }
        case .wouldBlock:
            connection.mayHaveInput = false
            return nil
        case .finished:
            connection.mayHaveInput = false
            endOfInput(connection)
            return .needsMore
        case .failed:
            close(connection)
            return nil
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
            switch Kernel.receive(connection.descriptor, into: scratch) {
            case .bytes(let count):
                connection.lingeringBytes += count
                if connection.lingeringBytes > configuration.lingerBytes { return close(connection) }
                if count < scratch.capacity, !connection.peerFinished { connection.mayHaveInput = false }
            case .wouldBlock:
                connection.mayHaveInput = false
            case .finished, .failed:
                return close(connection)
            }
        }
    }

    // MARK: Exchanges

    /// Asks the handler whether the content that follows this head is to be read.
    private func admit(_ head: RequestHead, _ connection: Connection) {
        if isRefusing, !handler.isEssential(head.path) {
            counters.requests.add(1, ordering: .relaxed)
            note(.overload)
            return end(connection, with: answer(to: .overload))
        }
        lane.forgetAnswers(connection.id)
        let request = beginExchange(head, connection)
        connection.phase = .admitting
        runningHandlers += 1
        let id = connection.id
        let task = Task.immediate { await self.admit(request, on: id) }
        switch connection.phase {
        case .admitting: connection.task = task
        case .closed: task.cancel()
        case .receiving, .answering, .streaming, .closing, .lingering: break
        }
    }

    private func admit(_ request: Request, on id: ConnectionID) async {
        decided(id, request, await handler.admit(request))
        runningHandlers -= 1
        if runningHandlers == 0 { becomeQuietIfDone() }
    }

    /// Begins to read the content, or answers and ends the connection.
    private func decided(_ id: ConnectionID, _ request: Request, _ admission: Admission) {
        guard let connection = connection(id), connection.phase == .admitting, let exchange = connection.exchange
        else { return }
        connection.exchange = nil
        connection.task = nil
        switch admission {
        case .refused(let response):
            counters.requests.add(1, ordering: .relaxed)
            if response.abortsConnection { return close(connection) }
            _ = write(
                response, to: connection, requestID: exchange.requestID, isHead: exchange.isHead, persistence: .close)
            finish(exchange, on: connection, closes: true, mustLinger: true)
        case .admitted(let contentBytes, let isOpen, let found):
            var request = request
            request.admission = found
            connection.phase = .receiving
            do throws(RequestFault) {
                try connection.beginContent(
                    of: request, limit: contentBytes ?? configuration.limits.bodyBytes, isOpen: isOpen,
                    configuration.limits)
            } catch {
                fail(connection, error.status, error.detail)
            }
            serve(connection)
        }
    }

    private func beginExchange(_ head: RequestHead, _ connection: Connection) -> Request {
        let client = client(of: head, on: connection)
        let request = Request(
            method: head.method, path: head.path, query: head.query, fields: head.fields,
            id: stamp.nextRequestID(), source: connection.source ?? NetworkSource(client), client: client)
        connection.exchange = Connection.Exchange(
            requestID: request.id, isHead: head.method == .head, isHTTP10: head.isHTTP10,
            keepsAlive: head.keepsAlive)
        connection.endWait()
        return request
    }

    private func start(_ head: RequestHead, _ body: [UInt8], _ connection: Connection) {
        counters.requests.add(1, ordering: .relaxed)
        let admitted = connection.takeAdmitted()
        if isRefusing, !handler.isEssential(head.path) { return shed(head, connection) }
        lane.forgetAnswers(connection.id)
        var request: Request
        if let admitted {
            request = admitted
            connection.exchange = Connection.Exchange(
                requestID: request.id, isHead: head.method == .head, isHTTP10: head.isHTTP10,
                keepsAlive: head.keepsAlive)
            connection.endWait()
        } else {
            request = beginExchange(head, connection)
        }
        request.body = body
        // The phase changes first: when the handler does not suspend, the answer is there before the next line.
        connection.phase = .answering
        runningHandlers += 1
        heldContentBytes += body.count
        let id = connection.id
        let task = Task.immediate { [request] in await self.respond(to: request, on: id) }
        switch connection.phase {
        case .answering, .streaming: connection.task = task
        // The connection broke under a stream's first writes, when there was no task yet to cancel.
        case .closed: task.cancel()
        case .receiving, .admitting, .closing, .lingering: break
        }
    }

    private func client(of head: RequestHead, on connection: Connection) -> NetworkAddress {
        connection.source == nil
            ? configuration.trustedProxies.client(head.fields, peer: connection.peer) : connection.peer
    }

    /// Refuses one request; its connection stays.
    private func shed(_ head: RequestHead, _ connection: Connection) {
        note(.overload)
        let exchange = Connection.Exchange(
            requestID: stamp.nextRequestID(), isHead: head.method == .head, isHTTP10: head.isHTTP10,
            keepsAlive: head.keepsAlive)
        connection.endWait()
        let closes = !head.keepsAlive || isDraining
        let isWritten = write(
            answer(to: .overload), to: connection, requestID: exchange.requestID, isHead: exchange.isHead,
            persistence: closes ? .close : head.isHTTP10 ? .keepAlive : .unstated)
        finish(exchange, on: connection, closes: closes || !isWritten, mustLinger: !isWritten)
    }

    /// Counts a refusal. Whoever has more to do than can be done cannot tell of each.
    private func note(_ refusal: Refusal) {
        counters.countRefusal(refusal)
        untoldRefusals[refusal.rawValue] += 1
        if willTellOfRefusals { return }
        willTellOfRefusals = true
        loop.schedule(at: .after(Self.refusalInterval)) { self.assumeIsolated { $0.tellOfRefusals() } }
    }

    private func tellOfRefusals() {
        willTellOfRefusals = false
        for refusal in Refusal.allCases where untoldRefusals[refusal.rawValue] > 0 {
            handler.refused(refusal, count: untoldRefusals[refusal.rawValue])
            untoldRefusals[refusal.rawValue] = 0
        }
    }

    private func answer(to refusal: Refusal) -> Response {
        if let answer = refusalAnswers[refusal.rawValue] { return answer }
        let answer = withRetryAfter(handler.response(to: refusal))
        refusalAnswers[refusal.rawValue] = answer
        return answer
    }

    private func respond(to request: Request, on id: ConnectionID) async {
        let response = await handler.respond(to: request)
        if let serial = answered(id, response), let makeContent = response.stream {
            await stream(makeContent, serial, on: id)
        }
        heldContentBytes -= request.body.count
        runningHandlers -= 1
        if runningHandlers == 0 { becomeQuietIfDone() }
    }

    /// Queues the answer. Returns the serial number of the stream that is to make its content, if one is.
    private func answered(_ id: ConnectionID, _ response: Response) -> UInt64? {
        guard let connection = connection(id), connection.phase == .answering, let exchange = connection.exchange
        else { return nil }
        connection.exchange = nil
        if response.abortsConnection {
            connection.task = nil
            close(connection)
            return nil
        }
        var framing = ResponseEncoder.Framing.length
        if response.stream != nil, !response.status.forbidsContent { framing = exchange.isHTTP10 ? .close : .chunked }
        // Without content to come there is no end of it to tell, so HEAD leaves the connection as it is.
        let isStreamed = framing != .length && !exchange.isHead
        let closes =
            !exchange.keepsAlive || response.closesConnection || isDraining || isStreamed && framing == .close
        let isWritten = write(
            response, framing: framing, to: connection, requestID: exchange.requestID, isHead: exchange.isHead,
            persistence: closes ? .close : exchange.isHTTP10 ? .keepAlive : .unstated)
        if isStreamed, isWritten {
            lastSerial += 1
            let serial = lastSerial
            connection.stream = Connection.Stream(
                serial: serial, framing: framing, closes: closes, exchange: exchange)
            connection.phase = .streaming
            serve(connection)
            return serial
        }
        connection.task = nil
        finish(exchange, on: connection, closes: closes || !isWritten, mustLinger: !isWritten)
        return nil
    }

    /// Goes on with the connection, or ends it, behind an answer that is queued in full.
    private func finish(
        _ exchange: Connection.Exchange, on connection: Connection, closes: Bool, mustLinger: Bool
    ) {
        if closes {
            connection.phase = .closing
            // A client that asked for the close sends nothing more; any other may have the next request on its way.
            connection.mustLinger = mustLinger || exchange.keepsAlive || connection.unreadBytes > 0
            connection.dropInput()
        } else {
            connection.phase = .receiving
        }
        serve(connection)
    }

    // MARK: Streams

    /// Not inlined, so that the frame of an exchange that streams nothing has no room for this.
    @inline(never)
    private func stream(
        _ makeContent: @Sendable (ResponseStream) async -> Void, _ serial: UInt64, on id: ConnectionID
    ) async {
        let handle = ResponseStream { bytes throws(StreamEnded) in
            try await self.write(bytes, to: id, stream: serial)
        }
        await makeContent(handle)
        endStream(serial, of: id)
    }

    /// Queues a piece of a stream's content and, when too much is unsent, waits until the peer has taken enough of it.
    private func write(_ bytes: [UInt8], to id: ConnectionID, stream serial: UInt64) async throws(StreamEnded) {
        // Of several writers that waited, only those may go on for which there is room again: what one connection holds
        // stays below the limit and one piece.
        let (connection, stream) =
            if let place = placeWithRoom(id, serial) { place } else { try await roomToWrite(id, serial) }
        switch stream.framing {
        case .chunked: ResponseEncoder.appendChunk(bytes, to: &connection.output)
        case .close, .length: connection.output.append(contentsOf: bytes)
        }
        // In the middle of serving, whoever serves flushes: the head and what a stream begins with leave together.
        if !connection.isBeingServed { flush(connection) }
        stream.writes += 1
        if placeWithRoom(id, serial) == nil { _ = try await roomToWrite(id, serial) }
        // A stream whose client takes everything at once would never give way.
        if stream.writes.isMultiple(of: Self.streamWritesPerTurn) { await Task.yield() }
    }

    /// The stream, unless it or its writer is at its end.
    private func place(_ id: ConnectionID, _ serial: UInt64) -> (Connection, Connection.Stream)? {
        guard !Task.isCancelled, let connection = connection(id), let stream = connection.stream,
            stream.serial == serial
        else { return nil }
        return (connection, stream)
    }

    /// The stream, where fewer bytes than the limit are unsent: mostly there is nothing to wait for.
    private func placeWithRoom(_ id: ConnectionID, _ serial: UInt64) -> (Connection, Connection.Stream)? {
        guard let place = place(id, serial), place.0.unsentBytes < configuration.unsentBytes else { return nil }
        return place
    }

    /// The stream, once fewer bytes than the limit are unsent.
    private func roomToWrite(
        _ id: ConnectionID, _ serial: UInt64
    ) async throws(StreamEnded) -> (Connection, Connection.Stream) {
        while true {
            guard let (connection, stream) = place(id, serial) else { throw StreamEnded() }
            if connection.unsentBytes < configuration.unsentBytes { return (connection, stream) }
            flush(connection)
            if connection.stream == nil || connection.unsentBytes < configuration.unsentBytes { continue }
            await withTaskCancellationHandler {
                // Captures this actor: a closure that did not would run elsewhere, and by the time it had come back, what
                // it is to wait for could have happened.
                await self.suspendWriter(of: stream)
            } onCancel: {
                loop.execute { self.assumeIsolated { $0.wakeWriters(of: id, serial) } }
            }
        }
    }

    private func suspendWriter(of stream: Connection.Stream) async {
        await withCheckedContinuation { continuation in
            // A cancellation that came earlier has found nobody to wake.
            if Task.isCancelled { continuation.resume() } else { stream.wait(continuation) }
        }
    }

    private func wakeWriters(of id: ConnectionID, _ serial: UInt64) {
        guard let stream = connection(id)?.stream, stream.serial == serial else { return }
        stream.wakeWriters()
    }

    private func endStream(_ serial: UInt64, of id: ConnectionID) {
        guard let connection = connection(id), let stream = connection.stream, stream.serial == serial else { return }
        connection.task = nil
        connection.stream = nil
        stream.wakeWriters()
        if stream.framing == .chunked { ResponseEncoder.appendLastChunk(to: &connection.output) }
        // A drain that began meanwhile ends the connection here, unless there is a request to be answered.
        let closes = stream.closes || isDraining && connection.unreadBytes == 0
        // What the client sent during the stream has not been read, and some of it may have come without the loop's being
        // told yet.
        finish(stream.exchange, on: connection, closes: closes, mustLinger: true)
    }

    /// Answers what is not a request, and lets the connection end. Nothing that follows on it is looked at.
    private func fail(_ connection: Connection, _ status: Status, _ detail: String) {
        counters.countFault(status)
        end(connection, with: handler.response(toFault: status, detail: detail))
    }

    /// Has the connection end behind this answer.
    private func end(_ connection: Connection, with response: Response) {
        connection.dropInput()
        account(connection)
        connection.exchange = nil
        connection.phase = .closing
        connection.mustLinger = true
        connection.endWait()
        _ = write(response, to: connection, requestID: stamp.nextRequestID(), isHead: false, persistence: .close)
    }

    private func withRetryAfter(_ response: Response) -> Response {
        var response = response
        if response.fields["Retry-After"] == nil {
            response.fields.append("Retry-After", String(configuration.retryAfterSeconds))
        }
        return response
    }

    /// Queues an answer. False when the response could not be encoded and a bare 500 took its place: the connection is
    /// to be closed then.
    private func write(
        _ response: Response, framing: ResponseEncoder.Framing = .length, to connection: Connection, requestID: String,
        isHead: Bool, persistence: ResponseEncoder.Connection
    ) -> Bool {
        do throws(EncodingFault) {
            try ResponseEncoder.append(
                status: response.status, fields: response.fields, body: response.body, framing: framing,
                date: currentDate, requestID: requestID, connection: persistence, omitsBody: isHead,
                to: &connection.output)
            return true
        } catch {
            counters.countFault(.internalServerError)
            let text =
                "HTTP/1.1 500 Internal Server Error\r\n\(ResponseEncoder.contentTypeOptions)"
                + "Content-Length: 0\r\nConnection: close\r\n\r\n"
            connection.output.append(contentsOf: text.utf8)
            return false
        }
    }

    private var currentDate: [UInt8] {
        stamp.update(WallClock.milliseconds / 1000)
        return stamp.date
    }

    private func flush(_ connection: Connection) {
        while connection.mayWrite, connection.unsentBytes > 0 {
            let unsent = connection.unsentBytes
            switch Kernel.send(connection.descriptor, connection.output, from: connection.outputStart) {
            case .bytes(let count):
                connection.sent(count)
                // A short write has filled the socket, and its next room makes a new edge.
                if count < unsent { connection.mayWrite = false }
            case .wouldBlock:
                connection.mayWrite = false
            case .failed:
                return close(connection)
            }
        }
        if connection.unsentBytes > 0 { connection.stalled(configuration.writeTimeout) }
        if connection.unsentBytes > 0 || connection.accountedAnswerBytes > 0 { accountAnswers(of: connection) }
        if let stream = connection.stream, connection.unsentBytes < configuration.unsentBytes { stream.wakeWriters() }
    }

    // MARK: Deadlines

    private func updateDeadline(_ connection: Connection) {
        let wait = connection.currentWait
        guard wait != connection.wait else { return }
        let timeout: Duration
        switch wait {
        case .nothing: return connection.endWait()
        case .firstRequest, .head: timeout = configuration.headTimeout
        case .nextRequest: timeout = configuration.idleTimeout
        case .body: timeout = configuration.bodyTimeout
        case .linger: timeout = configuration.lingerTimeout
        }
        connection.beginWait(wait, at: loop.turnTime, for: timeout)
    }

    private func scheduleSweep() {
        if isSweeping { return }
        isSweeping = true
        loop.schedule(at: .after(configuration.sweepInterval)) { self.assumeIsolated { $0.sweep() } }
    }

    /// Looks at the deadlines of all connections, as many in a turn as its time is enough for.
    private func sweep() {
        let now = MonotonicInstant.now
        let end = now.advanced(byNanoseconds: Self.timePerTurn)
        while nextSwept < connections.count {
            let slot = nextSwept
            nextSwept += 1
            var hasPassed = false
            if let connection = connections[slot] {
                if connection.readDeadline <= now { noteAnswers(of: connection) }
                if connection.writeDeadline <= now {
                    hasPassed = true
                    counters.stalled.add(1, ordering: .relaxed)
                    abort(connection)
                } else if connection.readDeadline <= now {
                    hasPassed = true
                    deadlinePassed(connection, now)
                }
            }
            // A look at a deadline that has not passed takes less than one at the clock.
            if hasPassed || slot.isMultiple(of: 16), nextSwept < connections.count, MonotonicInstant.now >= end {
                loop.schedule(at: .now) { self.assumeIsolated { $0.sweep() } }
                return
            }
        }
        nextSwept = 0
        isSweeping = false
        let isKeeping = lane.tidy()
        if liveConnections > 0 || isKeeping { scheduleSweep() }
    }

    private func deadlinePassed(_ connection: Connection, _ now: MonotonicInstant) {
        let wait = connection.wait
        if wait == .linger || wait == .nothing { return close(connection) }
        serveWhatCame(connection)
        guard connection.phase == .receiving, connection.wait == wait, connection.readDeadline <= now,
            !connection.isQueued
        else { return }
        switch wait {
        case .firstRequest, .nextRequest, .linger, .nothing:
            close(connection)
        case .head:
            fail(connection, .requestTimeout, "The head of the request took too long.")
            serve(connection)
        case .body:
            fail(connection, .requestTimeout, "The content of the request took too long.")
            serve(connection)
        }
    }

    // MARK: Ending

    private func connection(_ id: ConnectionID) -> Connection? {
        guard id.slot < connections.count, let connection = connections[id.slot], connection.id.serial == id.serial
        else { return nil }
        return connection
    }

    /// Closes at once. A handler that is still running is cancelled and its answer dropped.
    private func close(_ connection: Connection) {
        if connection.phase == .closed { return }
        lane.close(connection.id)
        if let registration = connection.registration { loop.deregisterBeforeClose(registration) }
        connection.registration = nil
        connection.dropInput()
        account(connection)
        connection.closeDescriptor()
        heldAnswerBytes -= connection.accountedAnswerBytes
        connection.accountedAnswerBytes = 0
        connection.stream?.wakeWriters()
        connection.stream = nil
        connections[connection.id.slot] = nil
        freeSlots.append(connection.id.slot)
        liveConnections -= 1
        if connection.isRefused { refusedConnections -= 1 } else { connectionCount.remove(connection.source) }
        let task = connection.task
        connection.task = nil
        task?.cancel()
        becomeQuietIfDone()
    }

    /// Closes an idle connection in a drain, unless a request has arrived on it that no event has told of yet.
    private func closeIfStillIdle(_ connection: Connection) {
        serveWhatCame(connection)
        if connection.isIdle { close(connection) }
    }

    /// What a connection waits for may have come without the loop's having got to it.
    private func serveWhatCame(_ connection: Connection) {
        lane.close(connection.id)
        connection.mayHaveInput = true
        serve(connection)
    }

    /// Closes with a reset: a plain close would leave what the peer does not read with the kernel.
    private func abort(_ connection: Connection) {
        Socket.abortOnClose(connection.descriptor)
        close(connection)
    }

    /// Stops accepting, lets begun exchanges end until `deadline`, then aborts the rest. Returns when no connection is
    /// left.
    func drain(until deadline: MonotonicInstant) async {
        if !isDraining {
            isDraining = true
            lane.closeForGood()
            // What the kernel has accepted already would be reset with the listener.
            let end = min(deadline, .after(Self.lastAccepts))
            while acceptConnections(), MonotonicInstant.now < end {}
            stopAccepting()
            listener = nil
            for case let connection? in connections where connection.isIdle { closeIfStillIdle(connection) }
        }
        if liveConnections == 0, runningHandlers == 0 { return }
        let expiry = loop.schedule(at: deadline) {
            self.assumeIsolated { worker in
                worker.abortAll()
                // A handler that does not heed its cancellation does not hold up the end either.
                worker.becomeQuiet()
            }
        }
        await quiet()
        loop.cancel(expiry)
    }

    /// Aborts every connection and cancels every handler; waits until the handlers have returned, or until `deadline`.
    func close(until deadline: MonotonicInstant) async {
        isDraining = true
        lane.closeForGood()
        stopAccepting()
        listener = nil
        abortAll()
        // The last one that there is an occasion for.
        tellOfRefusals()
        if runningHandlers == 0 { return }
        let expiry = loop.schedule(at: deadline) { self.assumeIsolated { $0.becomeQuiet() } }
        await quiet()
        loop.cancel(expiry)
    }

    private func abortAll() {
        for case let connection? in connections { abort(connection) }
    }

    private func quiet() async {
        await withCheckedContinuation { waitingForQuiet.append($0) }
    }

    private func becomeQuietIfDone() {
        if isDraining, liveConnections == 0, runningHandlers == 0 { becomeQuiet() }
    }

    private func becomeQuiet() {
        let waiting = waitingForQuiet
        waitingForQuiet = []
        for continuation in waiting { continuation.resume() }
    }
}
