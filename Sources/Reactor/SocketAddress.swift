package import Glibc

/// An IPv4 or IPv6 address and port.
package struct SocketAddress: Sendable, Hashable, CustomStringConvertible {
    package enum IP: Sendable, Hashable {
        case v4([UInt8])
        case v6([UInt8], scope: UInt32)
    }

    package let ip: IP
    package let port: UInt16

    package init(ip: IP, port: UInt16) {
        self.ip = ip
        self.port = port
    }

    /// Reads a numeric address (`127.0.0.1`, `::1`) as inet_pton(3) does: no names, and no shortened or octal
    /// spellings.
    package init?(numericHost host: String, port: UInt16) {
        var v4 = [UInt8](repeating: 0, count: 4)
        if unsafe inet_pton(AF_INET, host, &v4) == 1 {
            self.init(ip: .v4(v4), port: port)
            return
        }
        var v6 = [UInt8](repeating: 0, count: 16)
        if unsafe inet_pton(AF_INET6, host, &v6) == 1 {
            self.init(ip: .v6(v6, scope: 0), port: port)
            return
        }
        return nil
    }

    /// Reads the address that a system call or the resolver wrote; nil for families other than IPv4 and IPv6.
    package init?(_ storage: sockaddr_storage) {
        var storage = storage
        switch CInt(storage.ss_family) {
        case AF_INET:
            let address = unsafe withUnsafeBytes(of: &storage) { unsafe $0.load(as: sockaddr_in.self) }
            var raw = address.sin_addr.s_addr
            ip = .v4(unsafe withUnsafeBytes(of: &raw) { unsafe Array($0) })
            port = UInt16(bigEndian: address.sin_port)
        case AF_INET6:
            let address = unsafe withUnsafeBytes(of: &storage) { unsafe $0.load(as: sockaddr_in6.self) }
            var raw = address.sin6_addr
            ip = .v6(unsafe withUnsafeBytes(of: &raw) { unsafe Array($0) }, scope: address.sin6_scope_id)
            port = UInt16(bigEndian: address.sin6_port)
        default:
            return nil
        }
    }

    package var family: CInt {
        switch ip {
        case .v4: AF_INET
        case .v6: AF_INET6
        }
    }

    /// Lends the address in the form that the system calls take.
    package func withSockaddr<R>(_ body: (UnsafePointer<sockaddr>, socklen_t) -> R) -> R {
        var storage = sockaddr_storage()
        let length: Int
        switch ip {
        case .v4(let bytes):
            var address = sockaddr_in()
            address.sin_family = sa_family_t(AF_INET)
            address.sin_port = port.bigEndian
            unsafe withUnsafeMutableBytes(of: &address.sin_addr) { unsafe $0.copyBytes(from: bytes) }
            unsafe withUnsafeMutableBytes(of: &storage) { storage in
                unsafe withUnsafeBytes(of: &address) { unsafe storage.copyMemory(from: $0) }
            }
            length = MemoryLayout<sockaddr_in>.size
        case .v6(let bytes, let scope):
            var address = sockaddr_in6()
            address.sin6_family = sa_family_t(AF_INET6)
            address.sin6_port = port.bigEndian
            address.sin6_scope_id = scope
            unsafe withUnsafeMutableBytes(of: &address.sin6_addr) { unsafe $0.copyBytes(from: bytes) }
            unsafe withUnsafeMutableBytes(of: &storage) { storage in
                unsafe withUnsafeBytes(of: &address) { unsafe storage.copyMemory(from: $0) }
            }
            length = MemoryLayout<sockaddr_in6>.size
        }
        return unsafe withUnsafePointer(to: &storage) { pointer in
            unsafe pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) { unsafe body($0, socklen_t(length)) }
        }
    }

    /// `127.0.0.1:8080`, `[::1]:8080`.
    package var description: String {
        switch ip {
        case .v4: "\(host):\(port)"
        case .v6: "[\(host)]:\(port)"
        }
    }

    /// The numeric address without the port.
    package var host: String {
        var text = [CChar](repeating: 0, count: Int(INET6_ADDRSTRLEN))
        switch ip {
        case .v4(let bytes), .v6(let bytes, _):
            _ = unsafe inet_ntop(family, bytes, &text, socklen_t(text.count))
        }
        return String(decoding: text.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self)
    }

    /// Whether the public internet routes this address. False for loopback, private, link-local, shared, multicast,
    /// reserved, documentation and benchmark ranges, for services of the machine's own cloud, and for an IPv6 address
    /// that contains such an IPv4 address.
    ///
    /// The ranges for protocol assignments (192.0.0.0/24, 2001::/23) count as not public as a whole, although a few
    /// anycast addresses in them are public.
    ///
    /// Source: the IANA special-purpose address registries (RFC 6890).
    package var isGloballyRoutable: Bool {
        switch ip {
        case .v4(let bytes):
            return Self.isGlobal(v4: bytes)
        case .v6(let bytes, _):
            let first = UInt16(bytes[0]) << 8 | UInt16(bytes[1])
            if bytes[0..<10].allSatisfy({ $0 == 0 }), bytes[10] == bytes[11], bytes[10] == 0xff || bytes[10] == 0 {
                // ::ffff:a.b.c.d (mapped), ::a.b.c.d (compatible, deprecated), :: and ::1.
                return bytes[10] == 0xff && Self.isGlobal(v4: Array(bytes[12...]))
            }
            if bytes[0..<12].elementsEqual([0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0]) {
                return Self.isGlobal(v4: Array(bytes[12...]))  // 64:ff9b::/96, NAT64
            }
            if first == 0x2002 { return Self.isGlobal(v4: Array(bytes[2..<6])) }  // 6to4
            // Global unicast is 2000::/3, less 2001:0000::/23 (Teredo and other protocol assignments),
            // 2001:db8::/32 and 3fff::/20 (documentation).
            if bytes[0] & 0xe0 != 0x20 { return false }
            if first == 0x2001, bytes[2] & 0xfe == 0 { return false }
            if first == 0x2001, bytes[2] == 0x0d, bytes[3] == 0xb8 { return false }
            if first == 0x3fff, bytes[2] & 0xf0 == 0 { return false }
            return true
        }
    }

    private static func isGlobal(v4 b: [UInt8]) -> Bool {
        switch (b[0], b[1], b[2]) {
        case (0, _, _), (10, _, _), (127, _, _): false
        case (100, 64...127, _): false  // shared address space
        case (169, 254, _): false  // link-local, cloud metadata
        case (172, 16...31, _), (192, 168, _): false
        case (192, 0, 0), (192, 0, 2), (198, 51, 100), (203, 0, 113): false  // assignments and documentation
        case (192, 88, 99): false  // 6to4 relay
        case (198, 18...19, _): false  // benchmarks
        case (168, 63, 129): b[3] != 16  // Azure's host agent, at a public address that is the same for every machine
        case (224..., _, _): false  // multicast, reserved, broadcast
        default: true
        }
    }
}
