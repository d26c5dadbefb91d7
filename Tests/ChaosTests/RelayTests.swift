import Glibc
import Reactor
import Testing

/// The relay between replicas and what they call.
@Suite(.timeLimit(.minutes(1))) struct `A relay` {
    /// As of a replica that is stopped while a long answer is on its way.
    @Test func `passes requests on after an answer that its client did not take for a while`() async throws {
        let loop = try EventLoop(name: "relay-test")
        let listener = try Socket.listen(on: SocketAddress(ip: .v4([127, 0, 0, 1]), port: 0))
        let relay = try ChaosRelay(to: try Socket.localAddress(of: listener.rawValue).port, on: loop)
        await relay.start()
        let client = try Self.connect(to: relay.port)
        let server = try await Self.accepted(listener.rawValue)
        var size = 0
        let piece = [UInt8](repeating: 0x61, count: 65_536)
        // Until neither the sockets nor the relay take more for a moment: the relay waits for its client.
        while await Self.becomes(server.rawValue, POLLOUT, within: 500) {
            let count = unsafe send(
                server.rawValue, piece, piece.count, CInt(MSG_NOSIGNAL) | CInt(MSG_DONTWAIT))
            try #require(count > 0)
            size += count
        }
        var bytes = piece
        while size > 0 {
            try #require(await Self.becomes(client.rawValue, POLLIN, within: 30_000))
            let count = unsafe read(client.rawValue, &bytes, bytes.count)
            try #require(count > 0)
            size -= count
        }
        #expect(unsafe send(client.rawValue, [0x62], 1, CInt(MSG_NOSIGNAL)) == 1)
        #expect(await Self.becomes(server.rawValue, POLLIN, within: 30_000))
        #expect(unsafe read(server.rawValue, &bytes, bytes.count) == 1 && bytes[0] == 0x62)
        await relay.close()
    }

    private static func connect(to port: UInt16) throws -> OwnedDescriptor {
        let client = OwnedDescriptor(adopting: socket(AF_INET, CInt(SOCK_STREAM.rawValue), 0))
        var address = sockaddr_in()
        address.sin_family = sa_family_t(AF_INET)
        address.sin_port = port.bigEndian
        address.sin_addr.s_addr = UInt32(0x7f00_0001).bigEndian
        let outcome = unsafe withUnsafeBytes(of: &address) { buffer in
            unsafe Glibc.connect(
                client.rawValue, buffer.assumingMemoryBound(to: sockaddr.self).baseAddress, socklen_t(buffer.count))
        }
        try #require(outcome == 0)
        return client
    }

    private static func accepted(_ listener: CInt) async throws -> OwnedDescriptor {
        try #require(await becomes(listener, POLLIN, within: 30_000))
        let number = accept(listener, nil, nil)
        try #require(number >= 0)
        return OwnedDescriptor(adopting: number)
    }

    /// Whether the descriptor becomes ready within so many milliseconds. Waits on a thread of its own.
    private static func becomes(_ descriptor: CInt, _ event: CInt, within milliseconds: CInt) async -> Bool {
        await withCheckedContinuation { continuation in
            let thread = try? Thread.start(name: "poll") {
                var watched = pollfd(fd: descriptor, events: Int16(event), revents: 0)
                continuation.resume(returning: unsafe poll(&watched, 1, milliseconds) == 1)
            }
            guard let thread else { return continuation.resume(returning: false) }
            thread.detach()
        }
    }
}
