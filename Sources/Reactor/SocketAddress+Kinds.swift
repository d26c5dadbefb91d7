extension SocketAddress.IP {
    /// The IPv4 address in an IPv4-mapped IPv6 address (RFC 4291 §2.5.5.2), to which a socket really connects. Any
    /// other address is returned unchanged.
    package var unmapped: SocketAddress.IP {
        guard case .v6(let bytes, _) = self, bytes[0..<10].allSatisfy({ $0 == 0 }), bytes[10] == 0xff,
            bytes[11] == 0xff
        else { return self }
        return .v4(Array(bytes[12...]))
    }

    /// Whether the address means every address of this host: 0.0.0.0 and ::.
    package var isUnspecified: Bool {
        switch unmapped {
        case .v4(let bytes), .v6(let bytes, _): bytes.allSatisfy { $0 == 0 }
        }
    }

    /// Whether the address means this host: 127.0.0.0/8 (RFC 1122 §3.2.1.3) and ::1 (RFC 4291 §2.5.3).
    package var isLoopback: Bool {
        switch unmapped {
        case .v4(let bytes): bytes[0] == 127
        case .v6(let bytes, _): bytes[..<15].allSatisfy { $0 == 0 } && bytes[15] == 1
        }
    }

    /// Whether a cloud serves credentials of the machine or the workload at this address: the metadata services of AWS,
    /// Google Cloud, Azure (and its host agent), Oracle Cloud and Alibaba Cloud, and the credentials endpoints of AWS
    /// containers. The check includes such an address inside NAT64 (RFC 6052, RFC 8215) or 6to4 (RFC 3056).
    package var isMetadataService: Bool {
        switch unmapped {
        // Compares without the scope: the interface does not change which service answers.
        case .v6(let bytes, _) where Self.metadataServices.contains(.v6(bytes, scope: 0)): true
        default: embedded.contains(where: Self.metadataServices.contains)
        }
    }

    /// Whether the address is link-local: 169.254.0.0/16 (RFC 3927 §1.5) and fe80::/10 (RFC 4291 §2.5.6). The check
    /// includes such an address inside NAT64, 6to4 or an IPv4-compatible address (RFC 4291 §2.5.5.1).
    package var isLinkLocal: Bool {
        if case .v6(let bytes, _) = unmapped, bytes[0] == 0xfe, bytes[1] & 0xc0 == 0x80 { return true }
        return embedded.contains { if case .v4(let bytes) = $0 { bytes.starts(with: [169, 254]) } else { false } }
    }

    /// The IPv4 addresses that this address may contain.
    private var embedded: [SocketAddress.IP] {
        guard case .v6(let bytes, _) = unmapped else { return [unmapped] }
        if bytes.starts(with: [0, 0x64, 0xff, 0x9b]) {
            // The prefix length decides where the IPv4 address is, and in its own prefix a network chooses the length
            // (RFC 6052 §2.2). Octet 8 is never part of the address.
            return [[6, 7, 9, 10], [7, 9, 10, 11], [9, 10, 11, 12], [12, 13, 14, 15]].map { octets in
                .v4(octets.map { bytes[$0] })
            }
        }
        if bytes.starts(with: [0x20, 0x02]) { return [.v4(Array(bytes[2..<6]))] }
        return bytes[..<12].allSatisfy { $0 == 0 } ? [.v4(Array(bytes[12...]))] : []
    }

    private static let metadataServices: Set<SocketAddress.IP> = Set(
        [
            "169.254.169.254", "fd00:ec2::254", "fd20:ce::254", "168.63.129.16", "192.0.0.192", "100.100.100.200",
            "169.254.170.2", "169.254.170.23", "fd00:ec2::23",
        ].compactMap { SocketAddress(numericHost: $0, port: 0)?.ip })
}
