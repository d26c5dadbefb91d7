import Glibc

/// The names and addresses by which a program reaches the machine that it runs on.
package enum LocalNames {
    private static let localhost = Array("localhost".utf8)
    private static let below = Array(".localhost".utf8)

    /// The machine's own name in lower case; empty where it has none.
    private static let machine: [UInt8] = {
        var name = [UInt8](repeating: 0, count: 256)
        let status = unsafe name.withUnsafeMutableBytes { buffer in
            unsafe gethostname(buffer.baseAddress!.assumingMemoryBound(to: CChar.self), buffer.count - 1)
        }
        guard status == 0 else { return [] }
        return name.prefix { $0 != 0 }.map(lowercased)
    }()

    /// Whether the host is `localhost` or a name below it (RFC 6761 §6.3), a loopback address or the unspecified one, or
    /// the machine's own name.
    /// - Parameter host: a DNS name, with or without a dot at its end, a dotted quad, or an IPv6 address without brackets.
    package static func include(_ host: String) -> Bool {
        if let address = SocketAddress(numericHost: host, port: 0) {
            return address.ip.isLoopback || address.ip.isUnspecified
        }
        var name = host.utf8.map(lowercased)
        if name.last == UInt8(ascii: ".") { name.removeLast() }
        return name == localhost || name.suffix(below.count).elementsEqual(below) || !name.isEmpty && name == machine
    }

    /// Whether the host is only ever this machine: `localhost`, or a loopback address.
    /// - Parameter host: as in `include`.
    package static func isLoopback(_ host: String) -> Bool {
        SocketAddress(numericHost: host, port: 0)?.ip.isLoopback ?? (host.utf8.map(lowercased) == localhost)
    }

    private static func lowercased(_ byte: UInt8) -> UInt8 {
        (UInt8(ascii: "A")...UInt8(ascii: "Z")).contains(byte) ? byte | 0x20 : byte
    }
}
