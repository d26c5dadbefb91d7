import HTTPCodec
import Reactor

extension ConnectionServer {
    /// Closes the connection with a reset, so that the kernel drops what the peer does not read.
    func abort(_ connection: Connection) {
        Socket.abortOnClose(connection.descriptor)
        close(connection)
    }

    func abortAll() {
        for slot in 0..<connections.slotCount { if let connection = connections[slot] { abort(connection) } }
    }

    /// Closes the connections that are idle.
    func closeIdle() {
        for slot in 0..<connections.slotCount {
            guard let connection = connections[slot], connection.isIdle, !connection.isBeingServed else { continue }
            // A request may have arrived that epoll has not reported yet.
            serveUnreportedInput(connection)
            if connection.isIdle { close(connection) }
        }
    }

    /// Serves a connection whose input may have arrived without a report from epoll.
    func serveUnreportedInput(_ connection: Connection) {
        connection.mayHaveInput = true
        serve(connection)
    }

    func endBehindAnswer(_ connection: Connection, mustLinger: Bool) {
        connection.phase = .closing
        connection.mustLinger = mustLinger || connection.unreadBytes > 0
        connection.dropInput()
    }

    /// Answers a malformed, too large or too slow request, and ends the connection behind the answer.
    /// - Parameter path: of the request; nil for the one that is arriving.
    func fail(_ connection: Connection, _ status: Status, _ detail: String, path: String? = nil) {
        counters.countFault(status)
        let response =
            if let path = path ?? connection.pathInProgress {
                handler.response(toFault: status, detail: detail, path: path)
            } else {
                handler.response(toFault: status, detail: detail)
            }
        end(connection, with: response)
    }

    /// Queues this answer, and ends the connection behind it.
    func end(_ connection: Connection, with response: Response) {
        connection.dropInput()
        exchanges.account(connection)
        connection.exchange = nil
        _ = connection.endUpload()
        connection.phase = .closing
        connection.mustLinger = true
        connection.endWait()
        let exchange = Connection.Exchange(
            number: sender.encoder.nextNumber(), isHead: false, isHTTP10: false, keepsAlive: false)
        _ = sender.enqueue(response, to: connection, exchange, persistence: .close)
    }
}
