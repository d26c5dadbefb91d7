internal import CLinux
internal import Glibc

/// Why a host name has no address.
package enum ResolutionError: Error, Equatable {
    /// The name does not exist or has no address of a usable family. Retrying soon does not help.
    case notFound
    /// The resolver could not be asked or did not answer. Retrying may help.
    case temporary
}

/// getaddrinfo(3), which blocks, on a thread of its own.
package actor NameResolver {
    private let thread: BlockingThread
    nonisolated package var unownedExecutor: UnownedSerialExecutor { unsafe thread.asUnownedSerialExecutor() }

    package init() throws(SystemError) {
        thread = try BlockingThread(name: "resolver")
    }

    deinit {
        thread.shutDown()
    }

    /// The addresses of `host`, in the resolver's order of preference. Numeric hosts need no look-up.
    package func addresses(of host: String, port: UInt16) throws(ResolutionError) -> [SocketAddress] {
        if let numeric = SocketAddress(numericHost: host, port: port) { return [numeric] }
        var hints = unsafe addrinfo()
        unsafe hints.ai_family = AF_UNSPEC
        unsafe hints.ai_socktype = CInt(SOCK_STREAM.rawValue)
        unsafe hints.ai_flags = AI_ADDRCONFIG
        var list: UnsafeMutablePointer<addrinfo>?
        let result = unsafe getaddrinfo(host, nil, &hints, &list)
        guard result == 0 else {
            throw result == EAI_NONAME || result == CLINUX_EAI_NODATA ? .notFound : .temporary
        }
        defer { unsafe freeaddrinfo(list) }
        var addresses: [SocketAddress] = []
        var next = unsafe list
        while let entry = unsafe next {
            var storage = sockaddr_storage()
            let length = min(unsafe Int(entry.pointee.ai_addrlen), MemoryLayout<sockaddr_storage>.size)
            if let source = unsafe entry.pointee.ai_addr {
                unsafe withUnsafeMutableBytes(of: &storage) {
                    unsafe $0.copyMemory(from: UnsafeRawBufferPointer(start: source, count: length))
                }
                if let address = SocketAddress(storage) {
                    let withPort = SocketAddress(ip: address.ip, port: port)
                    if !addresses.contains(withPort) { addresses.append(withPort) }
                }
            }
            unsafe next = unsafe entry.pointee.ai_next
        }
        if addresses.isEmpty { throw .notFound }
        return addresses
    }
}
