internal import HTTPCodec
internal import Reactor
internal import Synchronization

// Requests that take more than one turn, and how answers leave.
extension ConnectionServer {
    // MARK: Contents

    /// Asks the handler whether the content that follows this head is to be read.
    func admit(_ head: ReceivedHead, _ connection: Connection) {
        if isRefusing, !handler.isEssential(head.path) {
            counters.requests.add(1, ordering: .relaxed)
            refusals.note(.overload)
            return end(connection, with: refusals.answer(to: .overload))
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
        guard let connection = connections[id], connection.phase == .admitting, let exchange = connection.exchange
        else { return }
        connection.exchange = nil
        connection.task = nil
        switch admission {
        case .refused(let response):
            counters.requests.add(1, ordering: .relaxed)
            if response.abortsConnection { return close(connection) }
            _ = write(response, to: connection, exchange, persistence: .close)
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
                fail(connection, error.status, error.detail)
            }
            askForContent(connection)
            serve(connection)
        }
    }

    /// Asks a client for its content that waits to be.
    func askForContent(_ connection: Connection) {
        guard connection.owesContinue else { return }
        connection.owesContinue = false
        connection.queue { $0.append(contentsOf: "HTTP/1.1 100 Continue\r\n\r\n".utf8) }
    }

    func refuseIfTooMuchIsHeld(_ connection: Connection) {
        guard connection.phase == .receiving, !makeRoom(forContentBytes: 0, of: connection) else { return }
        refuseContent(connection)
    }

    /// Refuses the oldest contents that are sent without a known caller until so many bytes more can be held. False where
    /// that is not enough, or the connection's own content is the oldest.
    func makeRoom(forContentBytes count: Int, of connection: Connection) -> Bool {
        // How many contents are given up for one that needs their room.
        var left = 64
        while heldContents.sum + count > configuration.contentBytes {
            let oldest = heldContents.oldest(in: connections) { connection in
                let isHeld = connection.hasOpenContent && connection.unfinishedContentBytes > 0
                return isHeld ? connection.contentBegan : nil
            }
            guard left > 0, let oldest, oldest !== connection else { return false }
            left -= 1
            refuseContent(oldest)
            serve(oldest)
        }
        return true
    }

    func refuseContent(_ connection: Connection) {
        refusals.note(.contents)
        end(connection, with: refusals.answer(to: .contents))
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
        if isRefusing, !handler.isEssential(head.path) { return shed(head, connection) }
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
        let number = encoder.nextNumber()
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
        let exchange = Connection.Exchange(head, number: encoder.nextNumber())
        connection.endWait()
        let closes = !head.keepsAlive || isDraining
        let isWritten = write(
            refusals.answer(to: .overload), to: connection, exchange,
            persistence: persistence(isHTTP10: head.isHTTP10, closes: closes))
        finish(exchange, on: connection, closes: closes || !isWritten, mustLinger: !isWritten)
    }

    /// Queues the answer. Returns the serial number of the stream that is to make its content, if one is.
    func answered(_ id: ConnectionID, _ response: Response) -> UInt64? {
        guard let connection = connections[id], connection.phase == .answering, let exchange = connection.exchange
        else { return nil }
        connection.exchange = nil
        if response.abortsConnection {
            connection.task = nil
            close(connection)
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
            !exchange.keepsAlive || response.closesConnection || isDraining || isStreamed && framing == .close
        let isWritten = write(
            response, framing, to: connection, exchange,
            persistence: persistence(isHTTP10: exchange.isHTTP10, closes: closes))
        if isStreamed, isWritten {
            let serial = connections.nextSerial()
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

    /// The handler of a request has returned, and its stream has ended.
    func exchangeEnded(contentBytes: Int) {
        heldContents.change(by: -contentBytes)
        handlerEnded()
    }

    /// Goes on with the connection, or ends it, behind an answer that is queued in full.
    func finish(_ exchange: Connection.Exchange, on connection: Connection, closes: Bool, mustLinger: Bool) {
        if closes {
            // A client that asked for the close sends nothing more; any other may have the next request on its way.
            endBehindAnswer(connection, mustLinger: mustLinger || exchange.keepsAlive)
        } else {
            connection.phase = .receiving
            connection.needsMore = false
        }
        serve(connection)
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
        account(connection)
        connection.exchange = nil
        connection.phase = .closing
        connection.mustLinger = true
        connection.endWait()
        let exchange = Connection.Exchange(
            number: encoder.nextNumber(), isHead: false, isHTTP10: false, keepsAlive: false)
        _ = write(response, to: connection, exchange, persistence: .close)
    }

    // MARK: Answers

    /// Queues an answer. False when the response could not be encoded and a bare 500 took its place: the connection is
    /// to be closed then.
    /// - Parameter framing: nil for the length of the response's content.
    private func write(
        _ response: Response, _ framing: ResponseEncoder.Framing? = nil, to connection: Connection,
        _ exchange: Connection.Exchange, persistence: ResponseEncoder.Connection
    ) -> Bool {
        let framing = framing ?? .length(response.body.count)
        encoder.update(second: WallClock.milliseconds / 1000)
        var isWritten = true
        do throws(EncodingFault) {
            try encoder.appendHead(
                response.status, response.fields, framing, number: exchange.number, connection: persistence, to: output)
        } catch {
            counters.countFault(.internalServerError)
            isWritten = false
            encoder.begin(
                .internalServerError, .length(0), number: exchange.number, connection: .close, to: output)
            output.append("\r\n")
        }
        let content = isWritten && !exchange.isHead && !response.status.forbidsContent ? response.body : []
        connection.queue { queue in
            if queue.isEmpty { queue.reserveCapacity(output.count + content.count) }
            queue.append(copying: output)
            ResponseEncoder.appendContent(content, framing, to: &queue)
        }
        output.removeAll()
        return isWritten
    }

    /// Moves what is in the buffer behind what the connection has not sent yet.
    func queue(to connection: Connection) {
        if output.count == 0 { return }
        connection.queue { $0.append(copying: output) }
        output.removeAll()
    }

    /// Sends what is in the buffer, and queues the rest.
    func send(to connection: Connection) {
        guard connection.unsentBytes == 0, connection.mayWrite else {
            queue(to: connection)
            return flush(connection)
        }
        switch Kernel.send(connection.descriptor, output) {
        case .bytes(let count) where count == output.count: output.removeAll()
        case .bytes(let count): queueRest(of: connection, from: count)
        case .wouldBlock: queueRest(of: connection, from: 0)
        case .failed:
            output.removeAll()
            close(connection)
        }
    }

    private func queueRest(of connection: Connection, from start: Int) {
        // A short write has filled the socket, and its next room makes a new edge.
        connection.queue { $0.append(copying: output, from: start) }
        output.removeAll()
        connection.mayWrite = false
        flush(connection)
    }

    func flush(_ connection: Connection) {
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

    /// Keeps the sum of what this loop's connections have not sent because their clients do not read. Where that is too
    /// much, resets the connection whose client has not read for longest, then the next one.
    private func accountAnswers(of connection: Connection) {
        heldAnswers.change(by: connection.unsentBytes - connection.accountedAnswerBytes)
        connection.accountedAnswerBytes = connection.unsentBytes
        if connection.unsentBytes > 0 { heldAnswers.list(connection.id.slot, since: connection.stallBegan) }
        while heldAnswers.sum > configuration.answerBytes,
            let unread = heldAnswers.oldest(
                in: connections,
                since: { connection in
                    connection.accountedAnswerBytes > 0 ? connection.stallBegan : nil
                })
        {
            refusals.note(.answers)
            abort(unread)
        }
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
