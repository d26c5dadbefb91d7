extension SocketAddress.IP {
    /// The IPv4 address that an IPv4-mapped IPv6 address stands for (RFC 4291 §2.5.5.2), which is what a socket connects to;
    /// any other address as it is.
    package var unmapped: SocketAddress.IP {
        guard case .v6(let bytes, _) = self, bytes[0..<10].allSatisfy({ $0 == 0 }), bytes[10] == 0xff,
            bytes[11] == 0xff
        else { return self }
        return .v4(Array(bytes[12...]))
    }

    /// Whether it stands for every address of this host: 0.0.0.0 and ::.
    package var isUnspecified: Bool {
        switch unmapped {
        case .v4(let bytes), .v6(let bytes, _): bytes.allSatisfy { $0 == 0 }
        }
    }

    /// Whether it stands for this host: 127.0.0.0/8 (RFC 1122 §3.2.1.3) and ::1 (RFC 4291 §2.5.3).
    package var isLoopback: Bool {
        switch unmapped {
        case .v4(let bytes): bytes[0] == 127
        case .v6(let bytes, _): bytes[..<15].allSatisfy { $0 == 0 } && bytes[15] == 1
        }
    }

    /// Whether a cloud answers there with credentials of the machine or of the workload: the metadata services of AWS, Google
    /// Cloud, Azure (and its host agent), Oracle Cloud and Alibaba Cloud, and what gives AWS's containers their roles. Also
    /// by way of NAT64 (RFC 6052, RFC 8215) or 6to4 (RFC 3056).
    package var isMetadataService: Bool {
        guard case .v6(let bytes, _) = unmapped else { return Self.metadataServices.contains(unmapped) }
        if bytes.starts(with: [0, 0x64, 0xff, 0x9b]) {
            // How long the prefix is decides where the IPv4 address stands, and in a network's own part the network does
            // (RFC 6052 §2.2): octet 8 is never part of it.
            return [[6, 7, 9, 10], [7, 9, 10, 11], [9, 10, 11, 12], [12, 13, 14, 15]].contains { places in
                Self.metadataServices.contains(.v4(places.map { bytes[$0] }))
            }
        }
        if bytes.starts(with: [0x20, 0x02]) { return Self.metadataServices.contains(.v4(Array(bytes[2..<6]))) }
        // Without the interface, which does not make it another address.
        return Self.metadataServices.contains(.v6(bytes, scope: 0))
    }

    private static let metadataServices: Set<SocketAddress.IP> = Set(
        [
            "169.254.169.254", "fd00:ec2::254", "fd20:ce::254", "168.63.129.16", "192.0.0.192", "100.100.100.200",
            "169.254.170.2", "169.254.170.23", "fd00:ec2::23",
        ].compactMap { SocketAddress(numericHost: $0, port: 0)?.ip })
}
