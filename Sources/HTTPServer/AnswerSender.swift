internal import HTTPCodec
internal import Reactor

/// Encodes answers, sends them, and keeps what clients do not read within bounds. On the loop's thread only.
final class AnswerSender {
    let encoder = ResponseEncoder(second: WallClock.milliseconds / 1000)
    /// Answers that have not been sent or queued yet. Empty but while one connection's requests are answered.
    let output = OutputBuffer(capacity: 16_384)
    /// Answers that clients do not read.
    private var heldAnswers = HeldBytes()
    private let configuration: ServerConfiguration
    private let counters: WorkerCounters
    private let refusals: RefusalReports
    /// Closes connections that break.
    weak var server: ConnectionServer?

    init(_ configuration: ServerConfiguration, _ counters: WorkerCounters, _ refusals: RefusalReports) {
        self.configuration = configuration
        self.counters = counters
        self.refusals = refusals
    }

    /// Queues an answer. False when the response could not be encoded and a bare 500 took its place: the connection is
    /// to be closed then.
    /// - Parameter framing: nil for the length of the response's content.
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
            server?.close(connection)
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
                server?.close(connection)
                return
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
                in: server?.connections ?? ConnectionTable(),
                since: { connection in
                    connection.accountedAnswerBytes > 0 ? connection.stallBegan : nil
                })
        {
            refusals.note(.answers)
            server?.abort(unread)
        }
    }

    /// The connection is closed, and its answers are dropped.
    func forget(_ connection: Connection) {
        heldAnswers.change(by: -connection.accountedAnswerBytes)
        connection.accountedAnswerBytes = 0
    }
}
