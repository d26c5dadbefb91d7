import CLinux
import Glibc

/// Looks up host names with getaddrinfo(3).
package enum SystemResolver {
    /// The addresses of `host`, in the resolver's order of preference and without repetition. Blocks until the system's
    /// resolver answers or reaches its own time limit (resolv.conf(5): `timeout` times `attempts` for each server).
    package static func addresses(of host: String) throws(ResolutionError) -> [SocketAddress.IP] {
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
        var addresses: [SocketAddress.IP] = []
        var next = unsafe list
        while let entry = unsafe next {
            var storage = sockaddr_storage()
            let length = min(unsafe Int(entry.pointee.ai_addrlen), MemoryLayout<sockaddr_storage>.size)
            if let source = unsafe entry.pointee.ai_addr {
                unsafe withUnsafeMutableBytes(of: &storage) {
                    unsafe $0.copyMemory(from: UnsafeRawBufferPointer(start: source, count: length))
                }
                if let address = SocketAddress(storage), !addresses.contains(address.ip) {
                    addresses.append(address.ip)
                }
            }
            unsafe next = unsafe entry.pointee.ai_next
        }
        if addresses.isEmpty { throw .notFound }
        return addresses
    }
}
