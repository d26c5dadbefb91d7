internal import CLinux
internal import Glibc

/// Stream sockets: listening, accepting, connecting. All non-blocking and close-on-exec from their first moment.
package enum Socket {
    // Glibc types these as enumerations or as other integer widths than the calls take.
    private static let stream = CInt(SOCK_STREAM.rawValue)
    private static let nonBlocking = CInt(SOCK_NONBLOCK.rawValue)
    private static let closeOnExec = CInt(SOCK_CLOEXEC.rawValue)
    private static let tcp = CInt(IPPROTO_TCP)
    /// TCP_NOTSENT_LOWAT, which Glibc's module has not.
    private static let notSentLowWater: CInt = 25

    /// Binds and listens. With `sharesPort`, several sockets may listen on the address and the kernel spreads new
    /// connections over them (SO_REUSEPORT). Accepted sockets inherit TCP_NODELAY, and a bound of 64 KiB on what the kernel
    /// takes of them beyond what is on its way: a peer that reads nothing would have it hold megabytes.
    package static func listen(
        on address: SocketAddress, backlog: CInt = 1024, sharesPort: Bool = false
    ) throws(SystemError) -> OwnedDescriptor {
        let descriptor = try bind(to: address, sharesPort: sharesPort)
        let number = descriptor.rawValue
        try set(number, tcp, TCP_NODELAY, 1)
        try set(number, tcp, notSentLowWater, 65_536)
        try retryingInterrupts("listen") { Glibc.listen(number, backlog) }
        return descriptor
    }

    /// Shows that nobody listens on the address. Nothing listens on it afterwards either, so no client is accepted and
    /// dropped.
    package static func probe(_ address: SocketAddress) throws(SystemError) {
        _ = try bind(to: address, sharesPort: false)
    }

    private static func bind(to address: SocketAddress, sharesPort: Bool) throws(SystemError) -> OwnedDescriptor {
        let descriptor = try make(family: address.family)
        let number = descriptor.rawValue
        try set(number, SOL_SOCKET, SO_REUSEADDR, 1)
        if sharesPort { try set(number, SOL_SOCKET, SO_REUSEPORT, 1) }
        if address.family == AF_INET6 { try set(number, CInt(IPPROTO_IPV6), IPV6_V6ONLY, 0) }
        try retryingInterrupts("bind \(address)") {
            unsafe address.withSockaddr { unsafe Glibc.bind(number, $0, $1) }
        }
        return descriptor
    }

    /// One accepted connection and where it comes from. EAGAIN when there is none.
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
        try set(number, tcp, TCP_NODELAY, 1)
        let result = unsafe address.withSockaddr { unsafe Glibc.connect(number, $0, $1) }
        if result == -1 {
            let failure = errno
            // An interrupted connect goes on by itself, like one in progress.
            if failure != EINPROGRESS && failure != EINTR { throw SystemError("connect", number: failure) }
            _ = try await loop.ready(number, .writable, until: deadline)
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

    /// Tells the peer that no more will be sent.
    package static func finishSending(_ descriptor: CInt) {
        _ = Glibc.shutdown(descriptor, CInt(SHUT_WR))
    }

    /// Makes the close that follows a reset: what is queued for a peer that does not read is thrown away.
    package static func abortOnClose(_ descriptor: CInt) {
        var option = linger(l_onoff: 1, l_linger: 0)
        _ = unsafe setsockopt(
            descriptor, SOL_SOCKET, SO_LINGER, &option, socklen_t(MemoryLayout<linger>.size))
    }

    private static func make(family: CInt) throws(SystemError) -> OwnedDescriptor {
        OwnedDescriptor(
            adopting: try retryingInterrupts("socket") { socket(family, stream | nonBlocking | closeOnExec, 0) })
    }

    private static func set(
        _ descriptor: CInt, _ level: CInt, _ option: CInt, _ value: CInt
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
