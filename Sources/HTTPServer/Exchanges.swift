import HTTPCodec
import Reactor
import Synchronization

/// Serves the requests that are not answered at once: asks the handler whether to read their content, limits how much
/// content is held, has the worker run the handler in a task, and queues the answer. On the loop's thread only.
final class Exchanges {
    private unowned let server: ConnectionServer
    private let configuration: ServerConfiguration
    private let handler: any RequestHandler
    private let counters: WorkerCounters
    private let refusals: RefusalReports
    private let sender: AnswerSender
    /// Runs the handler's tasks.
    weak var worker: Worker?

    /// The content that has arrived in part, and the content of the requests whose handlers run.
    private var contentUse = MemoryUse()
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

    /// Asks the handler whether to read the content that follows this head.
    func admit(_ head: ReceivedHead, _ connection: Connection) {
        if server.isRefusing, !handler.isEssential(head.path) {
            counters.requests.add(1, ordering: .relaxed)
            refusals.note(.overload)
            return server.end(connection, with: refusals.answer(to: .overload, path: head.path))
        }
        let request = beginExchange(head, connection)
        connection.phase = .admitting
        runningHandlers += 1
        let id = connection.id
        let task = worker?.assumeIsolated { $0.admit(request, behind: head, on: id) }
        switch connection.phase {
        case .admitting: connection.task = task
        case .closed: task?.cancel()
        case .receiving, .answering, .streaming, .closing, .lingering: break
        }
    }

    /// The handler has decided. Begins to read the content, or answers and ends the connection.
    func decided(_ id: ConnectionID, _ request: Request, behind head: ReceivedHead, _ admission: Admission) {
        guard let connection = server.connections[id], connection.phase == .admitting,
            let exchange = connection.exchange
        else { return }
        connection.exchange = nil
        connection.task = nil
        switch admission {
        case .refused(let response):
            counters.requests.add(1, ordering: .relaxed)
            if response.abortsConnection { return server.close(connection) }
            _ = sender.enqueue(response, to: connection, exchange, persistence: .close)
            finish(exchange, on: connection, closes: true, mustLinger: true)
        case .admitted(let contentBytes, let isStreamed, let isOpen, let found):
            var request = request
            request.admission = found
            let admitted = AdmittedRequest(request: request, number: exchange.number)
            connection.phase = .receiving
            connection.needsMore = false
            do throws(RequestFault) {
                let content = try PartialContent(
                    of: head, admitted: admitted,
                    limit: isStreamed ? .max : contentBytes ?? configuration.limits.bodyBytes,
                    overheadLimit: configuration.limits.chunkOverheadBytes, isOpen: isOpen, at: server.loop.now)
                if isStreamed {
                    begin(content, admitted, connection)
                    return server.serve(connection)
                }
                connection.begin(content, hasMore: connection.unreadBytes > 0)
            } catch {
                server.fail(connection, error.status, error.detail, path: head.path)
            }
            askForContent(connection)
            server.serve(connection)
        }
    }

    /// Starts a request whose handler reads its content while it comes.
    private func begin(_ content: PartialContent, _ admitted: AdmittedRequest, _ connection: Connection) {
        connection.upload = Upload(serial: server.connections.nextSerial(), content)
        if content.head.expectsContinue, connection.unreadBytes == 0 { connection.owesContinue = true }
        askForContent(connection)
        start(content.head, [], admitted, connection)
    }

    /// Asks a client for its content, if the client waits for that (`Expect: 100-continue`).
    private func askForContent(_ connection: Connection) {
        guard connection.owesContinue else { return }
        connection.owesContinue = false
        connection.queue { $0.append(contentsOf: "HTTP/1.1 100 Continue\r\n\r\n".utf8) }
    }

    /// A part of a content has arrived, or its client waits to be asked for it.
    func contentCame(on connection: Connection) {
        askForContent(connection)
        account(connection)
        guard connection.unfinishedContentBytes > 0, connection.phase == .receiving,
            !makeRoom(forContentBytes: 0, of: connection)
        else { return }
        refuseContent(connection)
    }

    /// Makes room for `count` more bytes of content: refuses the requests whose content comes without a known caller, the
    /// oldest first. False when there are not enough of them, or `connection` has the oldest.
    func makeRoom(forContentBytes count: Int, of connection: Connection) -> Bool {
        // The most requests that are refused for one that needs room.
        var left = 64
        while contentUse.sum + count > configuration.contentBytes {
            let oldest = contentUse.oldest(in: server.connections) { connection in
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

    /// - Parameter path: of the request; nil for the one whose content is arriving.
    func refuseContent(_ connection: Connection, path: String? = nil) {
        refusals.note(.contents)
        server.end(connection, with: refusals.answer(to: .contents, path: path ?? connection.pathInProgress))
    }

    /// Updates the sum of the content that this loop's connections hold.
    func account(_ connection: Connection) {
        let bytes = connection.unfinishedContentBytes
        if bytes == 0, connection.accountedContentBytes == 0 { return }
        contentUse.change(by: bytes - connection.accountedContentBytes)
        connection.accountedContentBytes = bytes
        if connection.hasOpenContent, bytes > 0, let began = connection.contentBegan {
            contentUse.list(connection.id.slot, since: began)
        }
    }

    // MARK: Requests

    func start(_ head: ReceivedHead, _ body: [UInt8], _ admitted: AdmittedRequest?, _ connection: Connection) {
        counters.requests.add(1, ordering: .relaxed)
        if server.isRefusing, !handler.isEssential(head.path) { return shed(head, connection) }
        // Such a request may have waited here while its client went on elsewhere. A client that has only finished sending looks
        // the same, and is told.
        if handler.mayChange(head.method, head.path), hasLeft(connection) {
            return server.fail(
                connection, .badRequest,
                "The connection was closed before the request was begun, so nothing was done. Keep the connection open until "
                    + "the answer has come.", path: head.path)
        }
        var request = admitted?.request ?? beginExchange(head, connection)
        if let admitted { connection.exchange = Connection.Exchange(head, number: admitted.number) }
        request.body = body
        if let upload = connection.upload {
            request.content = worker?.content(of: connection.id, upload: upload.serial)
        }
        request.arrival = server.loop.arrivalBeforeStandstill(quietSince: connection.quietSince) ?? server.loop.now
        connection.isQuick = false
        connection.endWait()
        // The phase changes first: when the handler does not suspend, it has answered before `respond` returns.
        connection.phase = .answering
        runningHandlers += 1
        contentUse.change(by: body.count)
        let id = connection.id
        let task = worker?.assumeIsolated { [request] in $0.respond(to: request, on: id) }
        switch connection.phase {
        case .answering, .streaming: connection.task = task
        // The connection broke during a stream's first writes, before `respond` returned the task.
        case .closed: task?.cancel()
        case .receiving, .admitting, .closing, .lingering: break
        }
    }

    /// Whether the client has closed the connection, or has finished sending.
    private func hasLeft(_ connection: Connection) -> Bool {
        connection.peerFinished || Kernel.hasPeerFinished(connection.descriptor)
    }

    private func beginExchange(_ head: ReceivedHead, _ connection: Connection) -> Request {
        let client =
            connection.source == nil
            ? configuration.trustedProxies.client(head.fields, peer: connection.peer) : connection.peer
        let number = sender.encoder.nextNumber()
        var request = Request(
            method: head.method, path: head.path, query: head.query, fields: head.fields, id: number.text,
            source: connection.source ?? NetworkSource(client), client: client)
        request.peer = connection.tls?.peer
        connection.exchange = Connection.Exchange(head, number: number)
        connection.isQuick = false
        connection.endWait()
        return request
    }

    /// Refuses one request, and keeps its connection.
    private func shed(_ head: ReceivedHead, _ connection: Connection) {
        refusals.note(.overload)
        let exchange = Connection.Exchange(head, number: sender.encoder.nextNumber())
        connection.endWait()
        let closes = !head.keepsAlive || server.isDraining
        let isWritten = sender.enqueue(
            refusals.answer(to: .overload, path: head.path), to: connection, exchange,
            persistence: server.persistence(isHTTP10: head.isHTTP10, closes: closes))
        finish(exchange, on: connection, closes: closes || !isWritten, mustLinger: !isWritten)
    }

    /// Queues the answer. Returns the serial number of the stream that makes its content; nil when no stream does.
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
            // The answer to HEAD has no content, so closing the connection is not needed to mark the content's end.
            isStreamed = !exchange.isHead
        }
        let closes =
            !exchange.keepsAlive || response.closesConnection || server.isDraining || isStreamed && framing == .close
            || !isStreamed && connection.endUpload()
        let isWritten = sender.enqueue(
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
        contentUse.change(by: -contentBytes)
        handlerEnded()
    }

    /// A handler has returned.
    func handlerEnded() {
        runningHandlers -= 1
        server.endIfQuiet()
    }

    /// The answer is queued in full: continues with the connection, or ends it behind the answer.
    func finish(_ exchange: Connection.Exchange, on connection: Connection, closes: Bool, mustLinger: Bool) {
        // What is left of a content that was not read is no request.
        if connection.endUpload() || closes {
            // A client that asked for the close sends nothing more. Another client may have sent its next request.
            server.endBehindAnswer(connection, mustLinger: mustLinger || exchange.keepsAlive)
        } else {
            connection.phase = .receiving
            connection.needsMore = false
        }
        server.serve(connection)
    }
}
