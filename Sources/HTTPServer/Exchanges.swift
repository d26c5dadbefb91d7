internal import HTTPCodec
internal import Reactor
internal import Synchronization

/// The requests that take more than one turn of the loop: has their contents admitted and kept within bounds, has the
/// handler answer them in tasks of the worker's, and takes the answers. On the loop's thread only.
final class Exchanges {
    private unowned let server: ConnectionServer
    private let configuration: ServerConfiguration
    private let handler: any RequestHandler
    private let counters: WorkerCounters
    private let refusals: RefusalReports
    private let sender: AnswerSender
    /// Runs the handler's tasks.
    weak var worker: Worker?

    /// Unfinished contents, and the finished ones whose handlers run.
    private var heldContents = HeldBytes()
    private(set) var runningHandlers = 0

    init(_ server: ConnectionServer) {
        self.server = server
        configuration = server.configuration
        handler = server.handler
        counters = server.counters
        refusals = server.refusals
        sender = server.sender
    }

    // MARK: Contents

    /// Asks the handler whether the content that follows this head is to be read.
    func admit(_ head: ReceivedHead, _ connection: Connection) {
        if server.isRefusing, !handler.isEssential(head.path) {
            counters.requests.add(1, ordering: .relaxed)
            refusals.note(.overload)
            return server.end(connection, with: refusals.answer(to: .overload))
        }
        let request = beginExchange(head, connection)
        connection.phase = .admitting
        runningHandlers += 1
        let id = connection.id
        let task = worker?.assumeIsolated { $0.admit(request, on: id) }
        switch connection.phase {
        case .admitting: connection.task = task
        case .closed: task?.cancel()
        case .receiving, .answering, .streaming, .closing, .lingering: break
        }
    }

    /// Begins to read the content, or answers and ends the connection.
    func decided(_ id: ConnectionID, _ request: Request, _ admission: Admission) {
        guard let connection = server.connections[id], connection.phase == .admitting,
            let exchange = connection.exchange
        else { return }
        connection.exchange = nil
        connection.task = nil
        switch admission {
        case .refused(let response):
            counters.requests.add(1, ordering: .relaxed)
            if response.abortsConnection { return server.close(connection) }
            _ = sender.write(response, to: connection, exchange, persistence: .close)
            finish(exchange, on: connection, closes: true, mustLinger: true)
        case .admitted(let contentBytes, let isOpen, let found):
            var request = request
            request.admission = found
            connection.phase = .receiving
            connection.needsMore = false
            do throws(RequestFault) {
                try connection.beginContent(
                    of: request, exchange.number, limit: contentBytes ?? configuration.limits.bodyBytes, isOpen: isOpen,
                    configuration.limits)
            } catch {
                server.fail(connection, error.status, error.detail)
            }
            askForContent(connection)
            server.serve(connection)
        }
    }

    /// Asks a client for its content that waits to be.
    private func askForContent(_ connection: Connection) {
        guard connection.owesContinue else { return }
        connection.owesContinue = false
        connection.queue { $0.append(contentsOf: "HTTP/1.1 100 Continue\r\n\r\n".utf8) }
    }

    /// A part of a content has come, or its client waits to be asked for it.
    func contentCame(on connection: Connection) {
        askForContent(connection)
        account(connection)
        guard connection.unfinishedContentBytes > 0, connection.phase == .receiving,
            !makeRoom(forContentBytes: 0, of: connection)
        else { return }
        refuseContent(connection)
    }

    /// Refuses the oldest contents that are sent without a known caller until so many bytes more can be held. False where
    /// that is not enough, or the connection's own content is the oldest.
    func makeRoom(forContentBytes count: Int, of connection: Connection) -> Bool {
        // How many contents are given up for one that needs their room.
        var left = 64
        while heldContents.sum + count > configuration.contentBytes {
            let oldest = heldContents.oldest(in: server.connections) { connection in
                let isHeld = connection.hasOpenContent && connection.unfinishedContentBytes > 0
                return isHeld ? connection.contentBegan : nil
            }
            guard left > 0, let oldest, oldest !== connection else { return false }
            left -= 1
            refuseContent(oldest)
            server.serve(oldest)
        }
        return true
    }

    func refuseContent(_ connection: Connection) {
        refusals.note(.contents)
        server.end(connection, with: refusals.answer(to: .contents))
    }

    /// Keeps the sum of the unfinished contents that this loop's connections hold.
    func account(_ connection: Connection) {
        let bytes = connection.unfinishedContentBytes
        if bytes == 0, connection.accountedContentBytes == 0 { return }
        heldContents.change(by: bytes - connection.accountedContentBytes)
        connection.accountedContentBytes = bytes
        if connection.hasOpenContent, bytes > 0 {
            heldContents.list(connection.id.slot, since: connection.contentBegan)
        }
    }

    // MARK: Requests

    func start(_ head: ReceivedHead, _ body: [UInt8], _ connection: Connection) {
        counters.requests.add(1, ordering: .relaxed)
        let admitted = connection.takeAdmitted()
        if server.isRefusing, !handler.isEssential(head.path) { return shed(head, connection) }
        var request = admitted?.request ?? beginExchange(head, connection)
        if let admitted { connection.exchange = Connection.Exchange(head, number: admitted.number) }
        request.body = body
        connection.isQuick = false
        connection.endWait()
        // The phase changes first: when the handler does not suspend, the answer is there before the next line.
        connection.phase = .answering
        runningHandlers += 1
        heldContents.change(by: body.count)
        let id = connection.id
        let task = worker?.assumeIsolated { [request] in $0.respond(to: request, on: id) }
        switch connection.phase {
        case .answering, .streaming: connection.task = task
        // The connection broke under a stream's first writes, when there was no task yet to cancel.
        case .closed: task?.cancel()
        case .receiving, .admitting, .closing, .lingering: break
        }
    }

    private func beginExchange(_ head: ReceivedHead, _ connection: Connection) -> Request {
        let client =
            connection.source == nil
            ? configuration.trustedProxies.client(head.fields, peer: connection.peer) : connection.peer
        let number = sender.encoder.nextNumber()
        let request = Request(
            method: head.method, path: head.path, query: head.query, fields: head.fields, id: number.text,
            source: connection.source ?? NetworkSource(client), client: client)
        connection.exchange = Connection.Exchange(head, number: number)
        connection.isQuick = false
        connection.endWait()
        return request
    }

    /// Refuses one request; its connection stays.
    private func shed(_ head: ReceivedHead, _ connection: Connection) {
        refusals.note(.overload)
        let exchange = Connection.Exchange(head, number: sender.encoder.nextNumber())
        connection.endWait()
        let closes = !head.keepsAlive || server.isDraining
        let isWritten = sender.write(
            refusals.answer(to: .overload), to: connection, exchange,
            persistence: server.persistence(isHTTP10: head.isHTTP10, closes: closes))
        finish(exchange, on: connection, closes: closes || !isWritten, mustLinger: !isWritten)
    }

    /// Queues the answer. Returns the serial number of the stream that is to make its content, if one is.
    func answered(_ id: ConnectionID, _ response: Response) -> UInt64? {
        guard let connection = server.connections[id], connection.phase == .answering,
            let exchange = connection.exchange
        else { return nil }
        connection.exchange = nil
        if response.abortsConnection {
            connection.task = nil
            server.close(connection)
            return nil
        }
        var framing = ResponseEncoder.Framing.length(response.body.count)
        var isStreamed = false
        if response.stream != nil, !response.status.forbidsContent {
            framing = exchange.isHTTP10 ? .close : .chunked
            // Without content to come there is no end of it to tell, so HEAD leaves the connection as it is.
            isStreamed = !exchange.isHead
        }
        let closes =
            !exchange.keepsAlive || response.closesConnection || server.isDraining || isStreamed && framing == .close
        let isWritten = sender.write(
            response, framing, to: connection, exchange,
            persistence: server.persistence(isHTTP10: exchange.isHTTP10, closes: closes))
        if isStreamed, isWritten {
            let serial = server.connections.nextSerial()
            connection.stream = Connection.Stream(
                serial: serial, framing: framing, closes: closes, exchange: exchange)
            connection.phase = .streaming
            server.serve(connection)
            return serial
        }
        connection.task = nil
        finish(exchange, on: connection, closes: closes || !isWritten, mustLinger: !isWritten)
        return nil
    }

    /// The handler of a request has returned, and its stream has ended.
    func exchangeEnded(contentBytes: Int) {
        heldContents.change(by: -contentBytes)
        handlerEnded()
    }

    /// A handler has returned.
    func handlerEnded() {
        runningHandlers -= 1
        server.endIfQuiet()
    }

    /// Goes on with the connection, or ends it, behind an answer that is queued in full.
    func finish(_ exchange: Connection.Exchange, on connection: Connection, closes: Bool, mustLinger: Bool) {
        if closes {
            // A client that asked for the close sends nothing more; any other may have the next request on its way.
            server.endBehindAnswer(connection, mustLinger: mustLinger || exchange.keepsAlive)
        } else {
            connection.phase = .receiving
            connection.needsMore = false
        }
        server.serve(connection)
    }
}
