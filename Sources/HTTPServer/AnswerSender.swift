internal import HTTPCodec
internal import Reactor

/// Encodes answers, sends them, and limits how much is kept for clients that do not read. On the loop's thread only.
final class AnswerSender {
    let encoder = ResponseEncoder(second: WallClock.milliseconds / 1000)
    /// Answers that are neither sent nor queued yet. Empty except while one connection's requests are answered.
    let output = OutputBuffer(capacity: 16_384)
    /// The answers that clients do not read.
    private var answerUse = MemoryUse()
    private let loop: EventLoop
    private let configuration: ServerConfiguration
    private let counters: WorkerCounters
    private let refusals: RefusalReports
    /// Closes broken connections.
    weak var server: ConnectionServer?

    init(
        _ loop: EventLoop, _ configuration: ServerConfiguration, _ counters: WorkerCounters, _ refusals: RefusalReports
    ) {
        self.loop = loop
        self.configuration = configuration
        self.counters = counters
        self.refusals = refusals
    }

    /// Queues an answer.
    /// - Parameter framing: nil for the length of the response's content.
    /// - Returns: false when the response could not be encoded and a 500 without content took its place. The caller closes
    ///   the connection then.
    func write(
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
            output.withBytes { queue.append(copying: $0) }
            ResponseEncoder.appendContent(content, framing, to: &queue)
        }
        output.removeAll()
        return isWritten
    }

    /// Moves the buffer's bytes behind what the connection has not sent yet.
    func queue(to connection: Connection) {
        if output.count == 0 { return }
        output.withBytes { connection.queue($0) }
        output.removeAll()
    }

    /// Sends the buffer's bytes, and queues what the socket does not take.
    func send(to connection: Connection) {
        guard connection.unsentBytes == 0, connection.mayWrite, connection.tls == nil else {
            queue(to: connection)
            return flush(connection)
        }
        switch Kernel.send(connection.descriptor, output) {
        case .bytes(let count) where count == output.count: output.removeAll()
        case .bytes(let count): queueRest(of: connection, from: count)
        case .wouldBlock: queueRest(of: connection, from: 0)
        case .failed:
            output.removeAll()
            server?.close(connection)
        }
    }

    private func queueRest(of connection: Connection, from start: Int) {
        // A short write has filled the socket. epoll reports when there is room again.
        output.withBytes(from: start) { connection.queue($0) }
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
                // A short write has filled the socket. epoll reports when there is room again.
                if count < unsent { connection.mayWrite = false }
            case .wouldBlock:
                connection.mayWrite = false
            case .failed:
                server?.close(connection)
                return
            }
        }
        if connection.unsentBytes > 0 { connection.stalled(configuration.writeTimeout, at: loop.now) }
        if connection.unsentBytes > 0 || connection.accountedAnswerBytes > 0 { accountAnswers(of: connection) }
        if let stream = connection.stream, connection.unsentBytes < configuration.unsentBytes { stream.wakeWriters() }
    }

    /// Updates the sum of what this loop's connections have not sent because their clients do not read. While that is
    /// more than the limit, resets the connection whose client has not read for longest.
    private func accountAnswers(of connection: Connection) {
        answerUse.change(by: connection.unsentBytes - connection.accountedAnswerBytes)
        connection.accountedAnswerBytes = connection.unsentBytes
        if connection.unsentBytes > 0 { answerUse.list(connection.id.slot, since: connection.stallBegan) }
        while answerUse.sum > configuration.answerBytes,
            let unread = answerUse.oldest(
                in: server?.connections ?? ConnectionTable(),
                since: { connection in
                    connection.accountedAnswerBytes > 0 ? connection.stallBegan : nil
                })
        {
            refusals.note(.answers)
            server?.abort(unread)
        }
    }

    /// Takes a closed connection out of the sum.
    func forget(_ connection: Connection) {
        answerUse.change(by: -connection.accountedAnswerBytes)
        connection.accountedAnswerBytes = 0
    }
}
