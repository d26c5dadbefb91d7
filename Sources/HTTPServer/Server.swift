internal import HTTPCodec
package import Reactor
internal import Synchronization

/// An HTTP/1.1 server: some event loops, each with its own listener on the same address, thread and connections.
///
/// It serves from its creation until `close`. May be used from any thread.
package final class Server: Sendable {
    /// What the server listens on, with the port that the kernel chose if it was left to it.
    package let address: SocketAddress
    /// The loops that requests are served on.
    package let loops: [EventLoop]
    private let workers: [Worker]
    private let connectionCount: ConnectionCount
    private let isClosed = Atomic<Bool>(false)

    /// Binds, listens and starts to serve.
    ///
    /// Throws what a system call reported: the address is in use or not ours (another address helps), or descriptors,
    /// threads or memory have run out (a later try may help).
    package init(configuration: ServerConfiguration, handler: any RequestHandler) throws(SystemError) {
        let loopCount = configuration.loopCount ?? Kernel.processorCount
        precondition(loopCount >= 1, "a server needs a loop")
        // The kernel lets any process of this user join in a shared port. Another server on it must be an error, so
        // the port is taken for oneself first.
        if configuration.address.port != 0 { try Socket.probe(configuration.address) }
        let first = try Socket.listen(on: configuration.address, sharesPort: true)
        let address = try Socket.localAddress(of: first.rawValue)
        let count = ConnectionCount(share: configuration.sourceShare)
        var loops: [EventLoop] = []
        var workers: [Worker] = []
        do throws(SystemError) {
            loops.append(try EventLoop(name: "http-0"))
            workers.append(
                Worker(
                    loop: loops[0], listener: first, configuration: configuration, handler: handler,
                    connectionCount: count))
            for index in 1..<loopCount {
                let listener = try Socket.listen(on: address, sharesPort: true)
                let loop = try EventLoop(name: "http-\(index)")
                loops.append(loop)
                workers.append(
                    Worker(
                        loop: loop, listener: listener, configuration: configuration, handler: handler,
                        connectionCount: count))
            }
        } catch {
            for loop in loops { loop.shutDown() }
            throw error
        }
        self.address = address
        self.loops = loops
        self.workers = workers
        connectionCount = count
        // Only now that nothing can fail any more: no connection is accepted by a server that does not come to be.
        for worker in workers {
            worker.loop.execute { worker.assumeIsolated { $0.listen() } }
        }
    }

    /// What has been done so far. The counts are taken one after the other, without stopping the server.
    package var statistics: ServerStatistics {
        var sum = ServerStatistics()
        for worker in workers { sum.add(worker.counters.snapshot) }
        sum.connectionsOpen = connectionCount.value
        return sum
    }

    /// Ends politely: closes the listeners and idle connections at once, lets begun requests be answered with
    /// `Connection: close`, and resets whatever is left after `grace`. Returns when no connection is left. To be followed
    /// by `close`.
    package func drain(within grace: Duration) async {
        if isClosed.load(ordering: .acquiring) { return }
        let deadline = MonotonicInstant.after(grace)
        await withTaskGroup { group in
            for worker in workers { group.addTask { await worker.drain(until: deadline) } }
        }
    }

    /// Ends at once: resets all connections, cancels the handlers, waits up to a second for them to return and ends the
    /// loops' threads. A `drain` that is under way returns. A second call does nothing.
    package func close() async {
        if isClosed.exchange(true, ordering: .acquiringAndReleasing) { return }
        let deadline = MonotonicInstant.after(.seconds(1))
        await withTaskGroup { group in
            for worker in workers { group.addTask { await worker.close(until: deadline) } }
        }
        for loop in loops { loop.shutDown() }
    }
}
