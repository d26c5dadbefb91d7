import HTTPCodec
import Reactor

/// Encodes answers, sends them, and limits how much is kept for clients that do not read. On the loop's thread only.
final class AnswerSender {
    let encoder = ResponseEncoder(second: WallClock.milliseconds / 1000)
    /// Answers that are neither sent nor queued yet: those of the held connections, and behind them those of the connection
    /// that is being served. Empty between turns.
    let output = OutputBuffer(capacity: 65_536)
    /// Connections whose requests are all answered, and whose answers stand in `output`.
    ///
    /// Sending runs so much code of the kernel that the processor's cache loses the code that reads and answers requests.
    /// So the answers of up to `mostHeld` connections are sent one after another, which saves a twentieth of a request.
    private let held = LoopState<[Held]>([])
    /// The connections that `settleHeld` goes through. Kept for its memory.
    private let settled = LoopState<[Held]>([])
    /// The number of held connections, from the first, whose answers were sent or queued.
    private var sentCount = 0
    /// Whether connections may be held. Each turn ends with `settleHeld`.
    var mayHold = false
    /// The answers that clients do not read.
    private var answerUse = MemoryUse()
    private let loop: EventLoop
    private let configuration: ServerConfiguration
    private let counters: WorkerCounters
    private let refusals: RefusalReports
    /// Closes broken connections.
    weak var server: ConnectionServer?

    private struct Held {
        let connection: Connection
        /// Where its answers end in `output`. They begin where those of the connection before it end.
        let end: Int
        /// Whether sending has failed.
        var isBroken = false
    }

    /// So many connections are held at most.
    private static let mostHeld = 32
    /// No more connections are held when `output` has so many bytes.
    private static let mostHeldBytes = 49_152

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
    func enqueue(
        _ response: Response, _ framing: ResponseEncoder.Framing? = nil, to connection: Connection,
        _ exchange: Connection.Exchange, persistence: ResponseEncoder.Connection
    ) -> Bool {
        sendHeld()
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

    /// Whether the connection that is being served has answers in the buffer.
    var hasOutput: Bool { output.count > heldBytes }

    private var heldBytes: Int { sentCount < held.value.count ? held.value.last?.end ?? 0 : 0 }

    /// Moves the buffer's bytes behind what the connection has not sent yet.
    func queue(to connection: Connection) {
        sendHeld()
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
        sendHeld()
        let end = output.count
        let isSent = noteSent(Kernel.send(connection.descriptor, output, from: 0, to: end), of: 0..<end, to: connection)
        output.removeAll()
        guard isSent else {
            server?.close(connection)
            return
        }
        if connection.unsentBytes > 0 { flush(connection) }
    }

    /// Queues what the socket has not taken of a part of the buffer. False when the connection is broken.
    private func noteSent(_ sent: Kernel.Sent, of range: Range<Int>, to connection: Connection) -> Bool {
        let count: Int
        switch sent {
        case .bytes(range.count): return true
        case .bytes(let some): count = some
        case .wouldBlock: count = 0
        case .failed: return false
        }
        // A short write has filled the socket. epoll reports when there is room again.
        output.withBytes(from: range.lowerBound + count, to: range.upperBound) { connection.queue($0) }
        connection.mayWrite = false
        return true
    }

    // MARK: Held connections

    /// Holds the connection, whose answers are in the buffer.
    /// - Returns: false where it must not be held, or is not done: it has more to read, content to receive, or answers that it
    ///   has not sent.
    func hold(_ connection: Connection) -> Bool {
        guard mayHold, connection.tls == nil, !connection.mayHaveInput, !connection.hasContent,
            connection.unsentBytes == 0, connection.mayWrite
        else { return false }
        connection.isHeld = true
        held.value.append(Held(connection: connection, end: output.count))
        return true
    }

    /// Whether the held connections are to be settled before another one is held.
    var isFull: Bool { held.value.count >= Self.mostHeld || output.count >= Self.mostHeldBytes }

    /// Sends the answers of the held connections, and keeps the bytes behind them. It closes no connection, so that it may be
    /// called while one is being served.
    private func sendHeld() {
        if sentCount == held.value.count { return }
        var start = 0
        while sentCount < held.value.count {
            // To copy the connection would count a reference.
            let end = held.value[sentCount].end
            if held.value[sentCount].connection.phase != .closed {
                let sent = Kernel.send(held.value[sentCount].connection.descriptor, output, from: start, to: end)
                if sent != .bytes(end - start), !noteSent(sent, of: start..<end, to: held.value[sentCount].connection) {
                    held.value[sentCount].isBroken = true
                }
            }
            start = end
            sentCount += 1
        }
        output.removeFirst(start)
    }

    /// Sends the answers of the held connections, and calls `settle` for each of these, which is held no longer.
    func settleHeld(_ settle: (Connection, _ isBroken: Bool) -> Void) {
        if held.value.isEmpty { return }
        sendHeld()
        sentCount = 0
        swap(&held.value, &settled.value)
        for index in settled.value.indices {
            let one = settled.value[index]
            one.connection.isHeld = false
            settle(one.connection, one.isBroken)
        }
        settled.value.removeAll(keepingCapacity: true)
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
