import CLinux
import Glibc

/// Stream sockets: listening, accepting, connecting. All sockets are created non-blocking and close-on-exec.
package enum Socket {
    // Glibc imports these with other types than the calls take.
    private static let stream = CInt(SOCK_STREAM.rawValue)
    private static let nonBlocking = CInt(SOCK_NONBLOCK.rawValue)
    private static let closeOnExec = CInt(SOCK_CLOEXEC.rawValue)
    private static let tcp = CInt(IPPROTO_TCP)
    /// TCP_NOTSENT_LOWAT, which Swift's Glibc module does not export.
    private static let notSentLowWater: CInt = 25

    /// Binds a socket and listens on it. With `sharesPort`, several sockets may listen on one address, and the kernel
    /// distributes new connections among them (SO_REUSEPORT).
    ///
    /// Accepted sockets inherit TCP_NODELAY and a limit of 64 KiB on unsent bytes in the kernel. Without the limit, a
    /// peer that reads nothing would make the kernel buffer megabytes.
    package static func listen(
        on address: SocketAddress, backlog: CInt = 1024, sharesPort: Bool = false
    ) throws(SystemError) -> OwnedDescriptor {
        let descriptor = try bind(to: address, sharesPort: sharesPort)
        let number = descriptor.rawValue
        try setOption(TCP_NODELAY, level: tcp, to: 1, on: number)
        try setOption(notSentLowWater, level: tcp, to: 65_536, on: number)
        try retryingInterrupts("listen") { Glibc.listen(number, backlog) }
        return descriptor
    }

    /// Throws when another socket listens on the address. This binds without listening, so no client's connection is
    /// accepted and dropped.
    package static func probe(_ address: SocketAddress) throws(SystemError) {
        _ = try bind(to: address, sharesPort: false)
    }

    private static func bind(to address: SocketAddress, sharesPort: Bool) throws(SystemError) -> OwnedDescriptor {
        let descriptor = try make(family: address.family)
        let number = descriptor.rawValue
        try setOption(SO_REUSEADDR, level: SOL_SOCKET, to: 1, on: number)
        if sharesPort { try setOption(SO_REUSEPORT, level: SOL_SOCKET, to: 1, on: number) }
        if address.family == AF_INET6 { try setOption(IPV6_V6ONLY, level: CInt(IPPROTO_IPV6), to: 0, on: number) }
        try retryingInterrupts("bind \(address)") {
            unsafe address.withSockaddr { unsafe Glibc.bind(number, $0, $1) }
        }
        return descriptor
    }

    /// Accepts one connection. Throws EAGAIN when no connection waits.
    package static func accept(_ listener: CInt) throws(SystemError) -> Accepted {
        var storage = sockaddr_storage()
        var length = UInt32(MemoryLayout<sockaddr_storage>.size)
        let accepted = try retryingInterrupts("accept4") { unsafe clinux_accept(listener, &storage, &length) }
        return Accepted(descriptor: OwnedDescriptor(adopting: accepted), storage: storage)
    }

    package struct Accepted: ~Copyable {
        package let descriptor: OwnedDescriptor
        fileprivate let storage: sockaddr_storage

        package var peer: SocketAddress? { SocketAddress(storage) }

        /// The peer's address without its port; `unspecified` for a family other than IPv4 and IPv6.
        package var peerAddress: NetworkAddress { NetworkAddress(storage) }

        package consuming func takeDescriptor() -> OwnedDescriptor { descriptor }
    }

    /// Connects before `deadline`.
    /// - Precondition: the caller runs on `loop`.
    package static func connect(
        to address: SocketAddress, on loop: EventLoop, until deadline: MonotonicInstant
    ) async throws -> OwnedDescriptor {
        let descriptor = try make(family: address.family)
        let number = descriptor.rawValue
        try setOption(TCP_NODELAY, level: tcp, to: 1, on: number)
        let result = unsafe address.withSockaddr { unsafe Glibc.connect(number, $0, $1) }
        if result == -1 {
            let failure = errno
            // connect(2) goes on in the background after EINTR, as it does after EINPROGRESS.
            if failure != EINPROGRESS && failure != EINTR { throw SystemError("connect", number: failure) }
            _ = try await loop.ready(number, for: .writable, until: deadline)
            let outcome = try pendingError(of: number)
            if outcome != 0 { throw SystemError("connect", number: outcome) }
        }
        return descriptor
    }

    /// The address the socket is bound to.
    package static func localAddress(of descriptor: CInt) throws(SystemError) -> SocketAddress {
        var storage = sockaddr_storage()
        var length = socklen_t(MemoryLayout<sockaddr_storage>.size)
        let result = unsafe withUnsafeMutablePointer(to: &storage) { pointer in
            unsafe pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                unsafe getsockname(descriptor, $0, &length)
            }
        }
        if result == -1 { throw SystemError.last("getsockname") }
        guard let address = SocketAddress(storage) else { throw SystemError("getsockname", number: EAFNOSUPPORT) }
        return address
    }

    /// Tells the peer that no more data will be sent (shutdown(2) with SHUT_WR).
    package static func finishSending(_ descriptor: CInt) {
        _ = Glibc.shutdown(descriptor, CInt(SHUT_WR))
    }

    /// Makes the next close send a reset and discard unsent data, for a peer that does not read.
    package static func abortOnClose(_ descriptor: CInt) {
        var option = linger(l_onoff: 1, l_linger: 0)
        _ = unsafe setsockopt(
            descriptor, SOL_SOCKET, SO_LINGER, &option, socklen_t(MemoryLayout<linger>.size))
    }

    private static func make(family: CInt) throws(SystemError) -> OwnedDescriptor {
        OwnedDescriptor(
            adopting: try retryingInterrupts("socket") { socket(family, stream | nonBlocking | closeOnExec, 0) })
    }

    private static func setOption(
        _ option: CInt, level: CInt, to value: CInt, on descriptor: CInt
    ) throws(SystemError) {
        var value = value
        try retryingInterrupts("setsockopt") {
            unsafe setsockopt(descriptor, level, option, &value, socklen_t(MemoryLayout<CInt>.size))
        }
    }

    private static func pendingError(of descriptor: CInt) throws(SystemError) -> CInt {
        var value: CInt = 0
        var length = socklen_t(MemoryLayout<CInt>.size)
        try retryingInterrupts("getsockopt") {
            unsafe getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &value, &length)
        }
        return value
    }
}
