import HTTPCodec
import Reactor
import Synchronization

/// Checks the deadlines of all of a worker's connections, once in each `ServerConfiguration.sweepInterval`. On the loop's
/// thread only.
final class DeadlineSweep {
    private let server: ConnectionServer
    private let loop: EventLoop
    private let interval: Duration
    private var isUnderWay = false
    /// The slot at which the sweep continues.
    private var nextSlot = 0

    /// For how long the sweep checks connections in one turn, in nanoseconds.
    private static let timePerTurn: Int64 = 25_000

    init(_ server: ConnectionServer) {
        self.server = server
        loop = server.loop
        interval = server.configuration.sweepInterval
    }

    /// Starts the sweep, unless it is under way. It ends when no connection is left.
    func begin() {
        if isUnderWay { return }
        isUnderWay = true
        loop.schedule(after: interval) { self.check() }
    }

    private func check() {
        let now = loop.now
        let end = now.advanced(byNanoseconds: Self.timePerTurn)
        while nextSlot < server.connections.slotCount {
            let slot = nextSlot
            nextSlot += 1
            var hasPassed = false
            if let connection = server.connections[slot] {
                if connection.writeDeadline <= now {
                    hasPassed = true
                    server.counters.stalled.add(1, ordering: .relaxed)
                    server.abort(connection)
                } else if connection.readDeadline <= now {
                    hasPassed = true
                    readDeadlinePassed(connection, now)
                }
            }
            // Comparing a deadline that has not passed costs less than reading the clock.
            if hasPassed || slot.isMultiple(of: 16), nextSlot < server.connections.slotCount,
                loop.now >= end
            {
                loop.schedule(after: .zero) { self.check() }
                return
            }
        }
        nextSlot = 0
        isUnderWay = false
        server.wipeBuffers()
        if server.connections.count > 0 { begin() }
    }

    private func readDeadlinePassed(_ connection: Connection, _ now: MonotonicInstant) {
        let wait = connection.wait
        if wait == .linger || wait == .nothing { return server.close(connection) }
        if let upload = connection.upload {
            // What has arrived without a report from epoll is read first.
            connection.mayHaveInput = true
            return upload.expire()
        }
        server.serveUnreportedInput(connection)
        guard connection.phase == .receiving, connection.wait == wait, connection.readDeadline <= now,
            !connection.isQueued
        else { return }
        switch wait {
        case .firstRequest, .nextRequest, .linger, .nothing:
            server.close(connection)
        case .head:
            server.fail(connection, .requestTimeout, "The head of the request took too long.")
            server.serve(connection)
        case .body:
            server.fail(connection, .requestTimeout, "The content of the request took too long.")
            server.serve(connection)
        }
    }
}
