import Glibc
package import Reactor

/// The two sockets of a connection that goes through a relay, with what the relay's two directions do to them.
package final class RelayedSockets: Sendable {
    private let client: OwnedDescriptor
    private let server: OwnedDescriptor
    /// Other numbers of the same sockets, to write to: a loop waits for one thing at a time on each number, and one direction
    /// waits to read from the socket that the other one waits to write to.
    private let toClient: OwnedDescriptor
    private let toServer: OwnedDescriptor

    package init(client: consuming OwnedDescriptor, server: consuming OwnedDescriptor) throws {
        toClient = try Self.duplicate(client.rawValue)
        toServer = try Self.duplicate(server.rawValue)
        self.client = client
        self.server = server
    }

    private static func duplicate(_ descriptor: CInt) throws -> OwnedDescriptor {
        let number = fcntl(descriptor, F_DUPFD_CLOEXEC, 0)
        if number < 0 { throw SystemError("fcntl", number: errno) }
        return OwnedDescriptor(adopting: number)
    }

    /// Ends the connection on both sides.
    package func cut() {
        _ = shutdown(client.rawValue, CInt(SHUT_RDWR))
        _ = shutdown(server.rawValue, CInt(SHUT_RDWR))
    }

    /// Waits for the next bytes of a side.
    /// - Returns: nil at the end.
    package func receive(
        fromClient: Bool, on loop: EventLoop, isolation: isolated (any Actor)? = #isolation
    ) async throws -> [UInt8]? {
        let descriptor = fromClient ? client.rawValue : server.rawValue
        var buffer = [UInt8](repeating: 0, count: 65_536)
        while true {
            let count = unsafe read(descriptor, &buffer, buffer.count)
            let number = errno
            if count > 0 { return Array(buffer[..<count]) }
            if count == 0 { return nil }
            if number == EAGAIN {
                _ = try await loop.ready(descriptor, for: .readable, until: .distantFuture)
            } else if number != EINTR {
                throw SystemError("read", number: number)
            }
        }
    }

    /// Passes the bytes of one side on to the other one.
    package func send(
        _ bytes: [UInt8], fromClient: Bool, on loop: EventLoop, isolation: isolated (any Actor)? = #isolation
    ) async throws {
        let descriptor = fromClient ? toServer.rawValue : toClient.rawValue
        var sent = 0
        while sent < bytes.count {
            let count = unsafe bytes.withUnsafeBytes { buffer in
                unsafe Glibc.send(descriptor, buffer.baseAddress! + sent, bytes.count - sent, CInt(MSG_NOSIGNAL))
            }
            let number = errno
            if count > 0 {
                sent += count
            } else if number == EAGAIN {
                _ = try await loop.ready(descriptor, for: .writable, until: .distantFuture)
            } else if number != EINTR {
                throw SystemError("send", number: number)
            }
        }
    }
}
