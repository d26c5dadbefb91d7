import HTTPCodec
import Reactor

/// The content of a request whose handler reads it while it comes. On the loop's thread only.
final class Upload {
    /// Tells it from earlier and later ones of the same connection.
    let serial: UInt64
    private let content: PartialContent
    private(set) var isComplete = false
    private var fault: ContentFault?
    /// Whether nothing has come for too long.
    private var isLate = false
    /// The task that waits for the next piece. Not a `WaitList`: only the loop's thread touches it, and one task reads.
    private var reader: CheckedContinuation<Void, Never>?
    private var reads = 0

    /// After so many pieces, other connections have their turns.
    private static let readsPerTurn = 16

    init(serial: UInt64, _ content: PartialContent) {
        self.serial = serial
        self.content = content
    }

    var isWaiting: Bool { reader != nil }

    func wait(_ continuation: CheckedContinuation<Void, Never>) { reader = continuation }

    /// Has the reader look again.
    func wake() {
        let woken = reader
        reader = nil
        woken?.resume()
    }

    /// Nothing has come for too long. What is there is read; then the content has ended.
    func expire() {
        isLate = true
        wake()
    }

    /// What reading has found.
    enum Piece {
        case bytes([UInt8])
        case complete
        case nothingYet
    }

    /// The next piece of what has arrived.
    func next(_ connection: Connection, _ server: ConnectionServer) throws(ContentFault) -> Piece {
        while true {
            if let fault { throw fault }
            if isComplete { return .complete }
            guard try arrived(connection, server) else {
                if isLate { try fail(.tooSlow) }
                return .nothingYet
            }
            let bytes = content.take()
            if !bytes.isEmpty { return .bytes(bytes) }
        }
    }

    /// Whether other connections are to have their turns before the next piece.
    func isTurnOver() -> Bool {
        reads += 1
        return reads.isMultiple(of: Self.readsPerTurn)
    }

    /// Reads once. False where nothing has arrived.
    private func arrived(_ connection: Connection, _ server: ConnectionServer) throws(ContentFault) -> Bool {
        if connection.unreadBytes > 0 {
            let (bytes, start) = connection.keptInput
            connection.readKeptInput(to: start + read(bytes.span.extracting(start...)))
            return true
        }
        guard connection.mayHaveMore else { return false }
        switch server.receive(connection) {
        case .bytes(let count):
            server.input.withBytes(0..<count) { bytes in
                let end = self.read(bytes)
                if end < count { connection.keep(bytes.extracting(end...)) }
            }
            return true
        case .wouldBlock:
            connection.mayHaveInput = false
            return false
        case .finished, .failed:
            connection.mayHaveInput = false
            try fail(.cutShort)
        }
    }

    /// Where reading has stopped. What has come before wrong framing is there to be taken.
    private func read(_ bytes: Span<UInt8>) -> Int {
        guard let (isComplete, end) = try? content.read(bytes, from: 0) else {
            fault = .malformed
            return bytes.count
        }
        self.isComplete = isComplete
        return end
    }

    private func fail(_ fault: ContentFault) throws(ContentFault) -> Never {
        self.fault = fault
        throw fault
    }
}

extension Worker {
    /// The content of an admitted request, for its handler.
    nonisolated func content(of id: ConnectionID, upload serial: UInt64) -> RequestContent {
        RequestContent { () throws(ContentFault) in try await self.nextPiece(of: id, serial) }
    }

    private func nextPiece(of id: ConnectionID, _ serial: UInt64) async throws(ContentFault) -> [UInt8]? {
        while true {
            guard !Task.isCancelled, let (connection, upload) = upload(id, serial) else { throw .ended }
            switch try upload.next(connection, server) {
            case .bytes(let bytes):
                // A client that sends is there, although it may not read its answer yet.
                connection.toleratesStall(server.configuration.writeTimeout, at: loop.now)
                if upload.isTurnOver() { await Task.yield() }
                return bytes
            case .complete: return nil
            case .nothingYet:
                await withTaskCancellationHandler {
                    await self.suspendReader(of: upload, connection)
                } onCancel: {
                    loop.execute { self.assumeIsolated { $0.upload(id, serial)?.1.wake() } }
                }
                if let (connection, _) = self.upload(id, serial) { connection.endWait() }
            }
        }
    }

    private func suspendReader(of upload: Upload, _ connection: Connection) async {
        await withCheckedContinuation { continuation in
            // An earlier cancellation has found no reader to resume.
            if Task.isCancelled { return continuation.resume() }
            upload.wait(continuation)
            server.updateWait(connection)
        }
    }

    /// The upload; nil when its connection is closed or answered.
    private func upload(_ id: ConnectionID, _ serial: UInt64) -> (Connection, Upload)? {
        guard let connection = server.connections[id], let upload = connection.upload, upload.serial == serial else {
            return nil
        }
        return (connection, upload)
    }
}
