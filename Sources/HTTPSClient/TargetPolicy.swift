package import Reactor

/// Which servers a client may send requests to: those of the public internet over https, and further servers that the
/// policy allows.
///
/// The two settings are independent: a server in a private network requires its network to be allowed, and if it is
/// called over `http://`, plain HTTP must be allowed as well.
package struct TargetPolicy: Sendable, Equatable {
    /// Allows `http://` besides `https://`. Every host between the client and the server can then read and change the
    /// messages.
    package var allowsHTTP: Bool

    /// The servers outside the public internet that may be called without being listed in `networks`.
    package enum Unlisted: Sendable {
        case none
        /// Servers at all addresses except link-local addresses and the metadata services of clouds.
        case ordinary
        case all
    }

    /// Default: `none`.
    package var unlisted: Unlisted

    /// Further networks outside the public internet in which servers may be. Default: none.
    package var networks: [NetworkRange]

    package init(allowsHTTP: Bool = false, unlisted: Unlisted = .none, networks: [NetworkRange] = []) {
        self.allowsHTTP = allowsHTTP
        self.unlisted = unlisted
        self.networks = networks
    }

    /// Allows every address, also over `http://`.
    package static let everything = TargetPolicy(allowsHTTP: true, unlisted: .all)

    /// Allows loopback and private addresses, also over `http://`. The link-local addresses and metadata services that
    /// every machine in a cloud can reach are not allowed, because development also happens in clouds.
    package static let development = TargetPolicy(allowsHTTP: true, unlisted: .ordinary)

    /// The same policy without `networks`.
    package var withoutNetworks: TargetPolicy { TargetPolicy(allowsHTTP: allowsHTTP, unlisted: unlisted) }

    /// Whether the client may connect to the address. The metadata service of a cloud gives out the machine's own
    /// credentials, so a range does not allow it: it must be listed as a single address.
    package func allows(_ address: SocketAddress) -> Bool {
        if address.isGloballyRoutable { return true }
        switch unlisted {
        case .all: return true
        case .ordinary where !address.ip.isLinkLocal && !address.ip.isMetadataService: return true
        case .ordinary, .none: break
        }
        return networks.contains {
            $0.contains(NetworkAddress(address.ip)) && ($0.isSingleAddress || !address.ip.isMetadataService)
        }
    }
}
