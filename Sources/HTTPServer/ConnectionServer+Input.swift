import HTTPCodec
import Reactor
import Synchronization

extension ConnectionServer {
    /// Reads into `input`.
    func receive(_ connection: Connection) -> Kernel.Received {
        if let tls = connection.tls { return receive(connection, through: tls) }
        let received = Kernel.receive(connection.descriptor, into: input)
        if case .bytes(let count) = received { noteReceived(count, from: connection) }
        return received
    }

    /// So many bytes were received at once. A short read has emptied the socket, and epoll reports the next byte.
    func noteReceived(_ count: Int, from connection: Connection) {
        if count < input.capacity, !connection.peerFinished { connection.mayHaveInput = false }
    }

    /// Reads the next plaintext into `input`, continuing the handshake before it is complete. What the protocol sends
    /// in reply is queued, and `serve` flushes it.
    func receive(_ connection: Connection, through tls: SecureTransport) -> Kernel.Received {
        while true {
            if tls.hasInput {
                let wasEstablished = tls.isEstablished
                let read = tls.read(into: input)
                connection.queueRecords { tls.takeOutput(into: &$0) }
                if tls.isEstablished, !wasEstablished {
                    handshakes.end()
                    tls.identifyPeer(by: handler)
                }
                switch read {
                case .bytes(let count): return .bytes(count)
                case .finished: return .finished
                case .failed: return .failed
                case .needsInput: break
                }
            }
            guard connection.mayHaveInput else { return .wouldBlock }
            switch Kernel.receive(connection.descriptor, into: input) {
            case .bytes(let count):
                noteReceived(count, from: connection)
                guard input.withBytes(0..<count, { tls.receive($0) }) else { return .failed }
            case .wouldBlock: return .wouldBlock
            case .finished: return .finished
            case .failed: return .failed
            }
        }
    }

    func endOfInput(_ connection: Connection) {
        if connection.isInsideRequest {
            // RFC 9112 §8: the request stays incomplete. The client may still read the answer.
            fail(connection, .badRequest, "The connection ended inside the request.")
        } else {
            connection.phase = .closing
        }
        // Nothing more can arrive, so nothing has to be read and dropped.
        connection.mustLinger = false
    }

    /// Reads and drops input until the peer closes. Closing with unread input would reset the connection, and the reset
    /// could destroy the last answer.
    func linger(_ connection: Connection) {
        while connection.mayHaveInput {
            switch Kernel.receive(connection.descriptor, into: input) {
            case .bytes(let count):
                connection.lingeringBytes += count
                if connection.lingeringBytes > configuration.lingerBytes { return close(connection) }
                noteReceived(count, from: connection)
            case .wouldBlock:
                connection.mayHaveInput = false
            case .finished, .failed:
                return close(connection)
            }
        }
    }

    // MARK: TLS

    /// Limits how many connections are in their handshakes: closes the oldest of them for one more.
    func beginHandshake(_ connection: Connection) {
        handshakes.append(connection.id)
        handshakes.compact(in: connections)
        while handshakes.count > configuration.maximumHandshakes, let oldest = handshakes.oldest(in: connections) {
            counters.evicted.add(1, ordering: .relaxed)
            close(oldest)
        }
    }

    /// Ends the connection of a peer that has violated the protocol of TLS, behind the alert that says so.
    func endBehindAlert(_ connection: Connection) {
        connection.dropInput()
        exchanges.account(connection)
        connection.endWait()
        connection.phase = .closing
        connection.mustLinger = true
        // What it goes on sending is read and dropped.
        connection.mayHaveInput = true
    }

    /// Tells a TLS peer, if it reads, that nothing is cut off.
    func sendCloseNotify(_ connection: Connection) {
        guard let tls = connection.tls, connection.unsentBytes == 0, connection.mayWrite else { return }
        var records: [UInt8] = []
        tls.finish(into: &records)
        // One attempt: a peer whose receive window is full must not delay the close.
        if !records.isEmpty { _ = Kernel.send(connection.descriptor, records, from: 0) }
    }
}
