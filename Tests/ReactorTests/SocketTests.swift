import Glibc
import Reactor
import Testing

@Suite struct `Stream sockets` {
    private static let loopback = SocketAddress(ip: .v4([127, 0, 0, 1]), port: 0)

    @Test func `connects to a listener, and both sides know each other's address`() async throws {
        let listener = try Socket.listen(on: Self.loopback)
        let address = try Socket.localAddress(of: listener.rawValue)
        #expect(address.port != 0)
        try await withLoop { actor in
            let near = try await actor.run { loop in
                try await Holder(Socket.connect(to: address, on: loop, until: .after(.seconds(20))))
            }
            let accepted = try Socket.accept(listener.rawValue)
            #expect(accepted.peer == (try Socket.localAddress(of: near.descriptor.rawValue)))
            #expect(fcntl(near.descriptor.rawValue, F_GETFL) & O_NONBLOCK != 0)
            #expect(fcntl(near.descriptor.rawValue, F_GETFD) & FD_CLOEXEC != 0)
            #expect(fcntl(accepted.descriptor.rawValue, F_GETFL) & O_NONBLOCK != 0)
            #expect(fcntl(accepted.descriptor.rawValue, F_GETFD) & FD_CLOEXEC != 0)
            Socket.finishSending(near.descriptor.rawValue)
            let far = Holder(accepted.takeDescriptor())
            let readiness = try await actor.run { loop in
                try await loop.ready(far.descriptor.rawValue, for: .readable, until: .after(.seconds(20)))
            }
            #expect(readiness.contains(.peerFinished))
        }
    }

    @Test func `accept throws EAGAIN when no client connects`() throws {
        let listener = try Socket.listen(on: Self.loopback)
        let number = listener.rawValue
        #expect(throws: SystemError("accept4", number: EAGAIN)) { _ = try Socket.accept(number).peer }
    }

    @Test func `a refused connection is an error`() async throws {
        // This socket is bound and does not listen, so no other process gets the port meanwhile.
        let bound = try Socket.listen(on: Self.loopback)
        let address = try Socket.localAddress(of: bound.rawValue)
        _ = consume bound
        try await withLoop { actor in
            let failure = await actor.failure { loop in
                _ = try await Socket.connect(to: address, on: loop, until: .after(.seconds(20))).rawValue
            }
            #expect(failure as? SystemError == SystemError("connect", number: ECONNREFUSED))
        }
    }

    @Test func `gives up connecting at the deadline and when its task is cancelled`() async throws {
        // The queue of this listener is full, so the kernel drops further connections.
        let listener = try Socket.listen(on: Self.loopback, backlog: 0)
        let address = try Socket.localAddress(of: listener.rawValue)
        try await withLoop { actor in
            var held: [Holder] = []
            var last: (any Error)?
            while last == nil {
                do {
                    held.append(
                        try await actor.run { loop in
                            try await Holder(Socket.connect(to: address, on: loop, until: .after(.milliseconds(200))))
                        })
                } catch {
                    last = error
                }
            }
            #expect(last as? WaitInterrupted == .deadlineExceeded)
            let task = Task {
                try await actor.run { loop in
                    try await Holder(Socket.connect(to: address, on: loop, until: .distantFuture))
                }
            }
            task.cancel()
            await #expect(throws: WaitInterrupted.cancelled) { _ = try await task.value }
        }
        withExtendedLifetime(listener.rawValue) {}
    }

    @Test func `aborts with a reset`() async throws {
        let listener = try Socket.listen(on: Self.loopback)
        let address = try Socket.localAddress(of: listener.rawValue)
        try await withLoop { actor in
            let near = try await actor.run { loop in
                try await Holder(Socket.connect(to: address, on: loop, until: .after(.seconds(20))))
            }
            let accepted = try Socket.accept(listener.rawValue)
            Socket.abortOnClose(accepted.descriptor.rawValue)
            _ = consume accepted
            let readiness = try await actor.run { loop in
                try await loop.ready(near.descriptor.rawValue, for: .readable, until: .after(.seconds(20)))
            }
            #expect(readiness.contains(.hangup))
            var byte: UInt8 = 0
            let result = unsafe recv(near.descriptor.rawValue, &byte, 1, 0)
            let number = errno
            #expect(result == -1)
            #expect(number == ECONNRESET)
        }
    }

    @Test func `shares a port only when sharesPort is set`() throws {
        let first = try Socket.listen(on: Self.loopback, sharesPort: true)
        let address = try Socket.localAddress(of: first.rawValue)
        #expect(throws: Never.self) { _ = try Socket.listen(on: address, sharesPort: true).rawValue }
        #expect(throws: SystemError("bind \(address)", number: EADDRINUSE)) {
            _ = try Socket.listen(on: address).rawValue
        }
        withExtendedLifetime(first.rawValue) {}
    }
}
