import HTTPCodec
package import Reactor
import Synchronization

/// An HTTP/1.1 server: one or more event loops, each with a thread, connections, and a listener on the same address.
///
/// It serves from its creation until `close`. Any thread may use it.
package final class Server: Sendable {
    /// The address that the server listens on, with the port that the kernel chose if the configuration has port 0.
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
    /// - Parameter clock: what all times are measured by, but for the `Date` of answers; nil for the machine's clock.
    package init(
        configuration: ServerConfiguration, handler: any RequestHandler, clock: (any LoopClock)? = nil
    ) throws(SystemError) {
        let loopCount = configuration.loopCount ?? Kernel.processorCount
        precondition(loopCount >= 1, "a server needs a loop")
        // The kernel lets any process of this user listen on a shared port. Another server on the port must be an error,
        // so the port is first bound without sharing.
        if configuration.address.port != 0 { try Socket.probe(configuration.address) }
        let first = try Socket.listen(on: configuration.address, sharesPort: true)
        let address = try Socket.localAddress(of: first.rawValue)
        let count = ConnectionCount(share: configuration.sourceShare)
        var loops: [EventLoop] = []
        var workers: [Worker] = []
        do throws(SystemError) {
            loops.append(try EventLoop(name: "http-0", clock: clock))
            workers.append(
                Worker(
                    loop: loops[0], listener: first, configuration: configuration, handler: handler,
                    connectionCount: count))
            for index in 1..<loopCount {
                let listener = try Socket.listen(on: address, sharesPort: true)
                let loop = try EventLoop(name: "http-\(index)", clock: clock)
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
        // Nothing can fail from here on, so no connection is accepted and then lost.
        for worker in workers {
            worker.loop.execute { worker.assumeIsolated { $0.listen() } }
        }
    }

    /// The counts since the start. They are read one after the other, while the server goes on.
    package var statistics: ServerStatistics {
        var sum = ServerStatistics()
        for worker in workers { sum.add(worker.counters.snapshot) }
        sum.connectionsOpen = connectionCount.value
        return sum
    }

    /// Ends gracefully: closes the listeners and idle connections at once, answers requests that are under way with
    /// `Connection: close`, and resets the connections that are left after `grace`. Returns when no connection is left.
    /// Call `close` afterwards.
    package func drain(within grace: Duration) async {
        if isClosed.load(ordering: .acquiring) { return }
        let deadline = loops[0].now.advanced(by: grace)
        await withTaskGroup { group in
            for worker in workers { group.addTask { await worker.drain(until: deadline) } }
        }
    }

    /// Ends at once: resets all connections, cancels the handlers, waits for up to a second until they have returned, and
    /// ends the loops' threads. A `drain` that is under way returns. A second call does nothing.
    package func close() async {
        if isClosed.exchange(true, ordering: .acquiringAndReleasing) { return }
        let deadline = loops[0].now.advanced(by: .seconds(1))
        await withTaskGroup { group in
            for worker in workers { group.addTask { await worker.close(until: deadline) } }
        }
        for loop in loops { loop.shutDown() }
    }
}
