import HTTPCodec
import Reactor
import Synchronization

/// One listener with its connections, on one loop's thread.
///
/// The worker is an actor whose executor is its loop. `ConnectionServer` and `Acceptor` belong to one worker and do all
/// that needs no suspension, in ordinary calls from the loop. The worker runs what may suspend: handlers, streams and
/// draining. A handler continues after a suspension as a job of the same loop.
actor Worker {
    nonisolated let loop: EventLoop
    nonisolated let counters = WorkerCounters()
    nonisolated var unownedExecutor: UnownedSerialExecutor { unsafe loop.asUnownedSerialExecutor() }

    private let handler: any RequestHandler
    let server: ConnectionServer
    private let acceptor: Acceptor
    private let unsentBytes: Int
    /// Not a `WaitList`: only the loop's thread touches it, and a wait cannot be cancelled.
    private var waitingForQuiet: [CheckedContinuation<Void, Never>] = []

    private static let streamWritesPerTurn = 64

    init(
        loop: EventLoop, listener: consuming OwnedDescriptor, configuration: ServerConfiguration,
        handler: any RequestHandler, connectionCount: ConnectionCount
    ) {
        self.loop = loop
        self.handler = handler
        unsentBytes = configuration.unsentBytes
        server = ConnectionServer(
            loop: loop, configuration: configuration, handler: handler, counters: counters,
            connectionCount: connectionCount)
        acceptor = Acceptor(server, listener, connectionCount)
    }

    /// Starts to accept connections.
    func listen() {
        server.worker = self
        server.exchanges.worker = self
        loop.observe(server.turns)
        acceptor.listen()
    }

    // MARK: Handlers

    /// Runs the handler's decision whether to read the content of a request.
    func admit(_ request: Request, behind head: ReceivedHead, on id: ConnectionID) -> Task<Void, Never> {
        Task.immediate {
            self.server.exchanges.decided(id, request, behind: head, await self.handler.admit(request))
            self.server.exchanges.handlerEnded()
        }
    }

    /// Runs the handler for a request.
    func respond(to request: Request, on id: ConnectionID) -> Task<Void, Never> {
        Task.immediate { await self.answer(request, on: id) }
    }

    private func answer(_ request: Request, on id: ConnectionID) async {
        let response = await handler.respond(to: request)
        if let serial = server.exchanges.answered(id, response), let makeContent = response.stream {
            await stream(makeContent, serial, on: id)
        }
        server.exchanges.exchangeEnded(contentBytes: request.body.count)
    }

    // MARK: Streams

    /// Not inlined, so that the async frame of an exchange without a stream does not contain this function's variables.
    @inline(never)
    private func stream(
        _ makeContent: @Sendable (ResponseStream) async -> Void, _ serial: UInt64, on id: ConnectionID
    ) async {
        let handle = ResponseStream(
            { bytes throws(StreamEnded) in
                try await self.write(bytes, to: id, stream: serial)
            }, reset: { await self.abortStream(serial, of: id) })
        await makeContent(handle)
        endStream(serial, of: id)
    }

    /// Queues a piece of a stream's content. While too much is unsent, waits before and after that.
    private func write(_ bytes: [UInt8], to id: ConnectionID, stream serial: UInt64) async throws(StreamEnded) {
        // Of several writers that waited, one continues only when there is room: a connection holds no more than the limit
        // and one piece.
        let (connection, stream) =
            if let found = streamWithRoom(id, serial) { found } else { try await roomToWrite(id, serial) }
        switch stream.framing {
        case .chunked: connection.queue { ResponseEncoder.appendChunk(bytes, to: &$0) }
        case .close, .length: connection.queue { $0.append(contentsOf: bytes) }
        }
        // `serve` flushes when it ends, so that the head and a stream's first pieces are sent together.
        if !connection.isBeingServed { server.sender.flush(connection) }
        stream.writes += 1
        if streamWithRoom(id, serial) == nil { _ = try await roomToWrite(id, serial) }
        // A stream whose client reads everything at once would never suspend.
        if stream.writes.isMultiple(of: Self.streamWritesPerTurn) { await Task.yield() }
    }

    /// The stream; nil when it has ended or the calling task is cancelled.
    private func stream(_ id: ConnectionID, _ serial: UInt64) -> (Connection, Connection.Stream)? {
        guard !Task.isCancelled, let connection = server.connections[id], let stream = connection.stream,
            stream.serial == serial
        else { return nil }
        return (connection, stream)
    }

    /// From how many unsent bytes on a stream's writer waits.
    private func unsentLimit(_ connection: Connection) -> Int {
        guard let upload = connection.upload, !upload.isComplete else { return unsentBytes }
        return max(unsentBytes, server.configuration.unreadAnswerBytes)
    }

    /// The stream, if fewer bytes than the limit are unsent. Most writes find it so and do not suspend.
    private func streamWithRoom(_ id: ConnectionID, _ serial: UInt64) -> (Connection, Connection.Stream)? {
        guard let found = stream(id, serial), found.0.unsentBytes < unsentLimit(found.0) else { return nil }
        return found
    }

    /// The stream, once fewer bytes than the limit are unsent.
    private func roomToWrite(
        _ id: ConnectionID, _ serial: UInt64
    ) async throws(StreamEnded) -> (Connection, Connection.Stream) {
        while true {
            guard let (connection, stream) = stream(id, serial) else { throw StreamEnded() }
            if connection.unsentBytes < unsentLimit(connection) { return (connection, stream) }
            server.sender.flush(connection)
            if connection.stream == nil || connection.unsentBytes < unsentLimit(connection) { continue }
            await withTaskCancellationHandler {
                // The closure captures this actor so that it runs on the loop's thread, and nothing happens between the
                // check above and the wait.
                await self.suspendWriter(of: stream)
            } onCancel: {
                loop.execute { self.assumeIsolated { $0.wakeWriters(of: id, serial) } }
            }
        }
    }

    private func suspendWriter(of stream: Connection.Stream) async {
        await withCheckedContinuation { continuation in
            // An earlier cancellation has found no writer to resume.
            if Task.isCancelled { continuation.resume() } else { stream.wait(continuation) }
        }
    }

    private func wakeWriters(of id: ConnectionID, _ serial: UInt64) {
        guard let stream = server.connections[id]?.stream, stream.serial == serial else { return }
        stream.wakeWriters()
    }

    private func abortStream(_ serial: UInt64, of id: ConnectionID) {
        if let connection = server.connections[id], connection.stream?.serial == serial { server.abort(connection) }
    }

    private func endStream(_ serial: UInt64, of id: ConnectionID) {
        guard let connection = server.connections[id], let stream = connection.stream, stream.serial == serial else {
            return
        }
        connection.task = nil
        connection.stream = nil
        stream.wakeWriters()
        if stream.framing == .chunked { connection.queue { ResponseEncoder.appendLastChunk(to: &$0) } }
        // A drain that began during the stream ends the connection here, unless another request has arrived.
        let closes = stream.closes || server.isDraining && connection.unreadBytes == 0
        // Nothing was read during the stream, and epoll may not have reported all input yet.
        server.exchanges.finish(stream.exchange, on: connection, closes: closes, mustLinger: true)
    }

    // MARK: Ending

    /// Stops accepting, lets exchanges that are under way end until `deadline`, then aborts the rest. Returns when no
    /// connection is left.
    func drain(until deadline: MonotonicInstant) async {
        if !server.isDraining {
            server.beginDraining()
            acceptor.drain(until: deadline)
            server.closeIdle()
        }
        if server.isQuiet { return }
        let expiry = loop.schedule(at: deadline) {
            self.assumeIsolated { worker in
                worker.server.abortAll()
                // A handler that ignores its cancellation does not delay the end.
                worker.becomeQuiet()
            }
        }
        await quiet()
        loop.cancel(expiry)
    }

    /// Aborts every connection and cancels every handler; waits until the handlers have returned, or until `deadline`.
    func close(until deadline: MonotonicInstant) async {
        acceptor.close()
        server.beginClosing()
        if server.isQuiet { return }
        let expiry = loop.schedule(at: deadline) { self.assumeIsolated { $0.becomeQuiet() } }
        await quiet()
        loop.cancel(expiry)
    }

    private func quiet() async {
        await withCheckedContinuation { waitingForQuiet.append($0) }
    }

    /// Ends the waits of `drain` and `close`.
    func becomeQuiet() {
        let waiting = waitingForQuiet
        waitingForQuiet = []
        for continuation in waiting { continuation.resume() }
    }
}
