package import Glibc

/// An IPv4 or IPv6 address without port and scope, in one integer: comparing and hashing it allocates nothing.
///
/// A listener on `::` sees IPv4 peers as IPv4-mapped IPv6 addresses (`::ffff:192.0.2.1`). Such an address equals the
/// IPv4 address.
package struct NetworkAddress: Sendable, Hashable, CustomStringConvertible {
    /// The address in host byte order; an IPv4 address in its IPv6-mapped form.
    private let bits: UInt128

    /// `::`. No peer has this address, so it means that the address is not known.
    package static let unspecified = NetworkAddress(bits: 0)

    /// `::1`.
    fileprivate static let loopback = NetworkAddress(bits: 1)

    private static let mappedPrefix: UInt128 = 0xffff << 32
    /// The longest text form: eight groups of which the last two are an IPv4 address.
    private static let longestText = 45

    private init(bits: UInt128) {
        self.bits = bits
    }

    /// Reads the address that a system call wrote; `unspecified` for families other than IPv4 and IPv6.
    package init(_ storage: sockaddr_storage) {
        var storage = storage
        switch CInt(storage.ss_family) {
        case AF_INET:
            let address = unsafe withUnsafeBytes(of: &storage) { unsafe $0.load(as: sockaddr_in.self) }
            bits = Self.mappedPrefix | UInt128(UInt32(bigEndian: address.sin_addr.s_addr))
        case AF_INET6:
            let address = unsafe withUnsafeBytes(of: &storage) { unsafe $0.load(as: sockaddr_in6.self) }
            bits = Self.bits(of: address.sin6_addr)
        default:
            bits = 0
        }
    }

    package init(_ ip: SocketAddress.IP) {
        switch ip {
        case .v4(let bytes): bits = bytes.reduce(Self.mappedPrefix >> 32) { $0 << 8 | UInt128($1) }
        case .v6(let bytes, _): bits = bytes.reduce(0) { $0 << 8 | UInt128($1) }
        }
    }

    /// Reads a numeric address (`192.0.2.1`, `2001:db8::1`) as inet_pton(3) does: no names, brackets, ports or zones,
    /// and no shortened or octal spellings. Longer texts than an address can be are refused before they are copied.
    package init?(parsing text: ArraySlice<UInt8>) {
        guard (2...Self.longestText).contains(text.count), !text.contains(0) else { return nil }
        var terminated = [CChar](repeating: 0, count: text.count + 1)
        for (index, byte) in text.enumerated() { terminated[index] = CChar(bitPattern: byte) }
        var v4 = in_addr()
        if unsafe inet_pton(AF_INET, terminated, &v4) == 1 {
            bits = Self.mappedPrefix | UInt128(UInt32(bigEndian: v4.s_addr))
            return
        }
        var v6 = in6_addr()
        guard unsafe inet_pton(AF_INET6, terminated, &v6) == 1 else { return nil }
        bits = Self.bits(of: v6)
    }

    private static func bits(of address: in6_addr) -> UInt128 {
        var address = address
        return unsafe withUnsafeBytes(of: &address) { bytes in
            unsafe bytes.reduce(UInt128(0)) { $0 << 8 | UInt128($1) }
        }
    }

    package var isIPv4: Bool { bits >> 32 == 0xffff }

    /// The address with all bits after the first `count` cleared.
    /// - Parameter count: 0...32 for an IPv4 address, 0...128 for an IPv6 address.
    package func prefix(bits count: Int) -> NetworkAddress {
        let kept = isIPv4 ? 96 + count : count
        return NetworkAddress(bits: kept == 0 ? 0 : bits & (UInt128.max << UInt128(128 - kept)))
    }

    var ip: SocketAddress.IP {
        var bytes = (0..<16).map { UInt8(truncatingIfNeeded: bits >> UInt128(120 - 8 * $0)) }
        if isIPv4 { bytes.removeFirst(12) }
        return isIPv4 ? .v4(bytes) : .v6(bytes, scope: 0)
    }

    /// `192.0.2.1`, `2001:db8::1`.
    package var description: String { SocketAddress(ip: ip, port: 0).host }
}

/// The unit that limits for each client count by: an IPv4 address, or the /64 prefix of an IPv6 address, because one
/// subscriber has all addresses of such a prefix.
package struct NetworkSource: Sendable, Hashable, CustomStringConvertible {
    private let prefix: NetworkAddress

    /// The source of requests without a known client, such as requests that did not arrive over a connection. Its value
    /// cannot be a client's: a client's prefix has no bits set after the first 64. (The prefix of `::1` is all zeros,
    /// and a client can have it.)
    package static let unknown = NetworkSource(prefix: .loopback)

    private init(prefix: NetworkAddress) {
        self.prefix = prefix
    }

    package init(_ address: NetworkAddress) {
        if address == .unspecified {
            self = .unknown
        } else {
            prefix = address.isIPv4 ? address : address.prefix(bits: 64)
        }
    }

    /// `192.0.2.1`, `2001:db8::/64`, `unknown`.
    package var description: String { self == .unknown ? "unknown" : prefix.isIPv4 ? "\(prefix)" : "\(prefix)/64" }
}

/// A range of addresses of one family: one address, or a prefix in CIDR notation (RFC 4632 §3.1, RFC 4291 §2.3).
package struct NetworkRange: Sendable, Hashable {
    private let prefix: NetworkAddress
    private let length: Int

    /// Reads `192.0.2.1`, `10.0.0.0/8`, `2001:db8::/32`. Nil for anything else, including a prefix with bits set after
    /// its length, because it is ambiguous.
    package init?(parsing text: String) {
        let parts = Array(text.utf8).split(separator: UInt8(ascii: "/"), omittingEmptySubsequences: false)
        guard parts.count <= 2, let address = NetworkAddress(parsing: parts[0]) else { return nil }
        let longest = address.isIPv4 ? 32 : 128
        var length = longest
        if parts.count == 2 {
            guard (1...3).contains(parts[1].count), parts[1].allSatisfy({ (0x30...0x39).contains($0) }),
                let number = Int(String(decoding: parts[1], as: UTF8.self)), number <= longest
            else { return nil }
            length = number
        }
        guard address.prefix(bits: length) == address else { return nil }
        prefix = address
        self.length = length
    }

    /// Whether the range holds exactly one address.
    package var isSingleAddress: Bool { length == (prefix.isIPv4 ? 32 : 128) }

    /// Whether the range is within 169.254.0.0/16 or fe80::/10, or is the single address of a metadata service.
    package var isLinkLocalOrMetadataService: Bool {
        let ip = prefix.ip
        return isSingleAddress && ip.isMetadataService || ip.isLinkLocal && length >= (prefix.isIPv4 ? 16 : 10)
    }

    package func contains(_ address: NetworkAddress) -> Bool {
        address.isIPv4 == prefix.isIPv4 && address.prefix(bits: length) == prefix
    }
}
