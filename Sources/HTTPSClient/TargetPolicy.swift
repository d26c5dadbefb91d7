package import Reactor

/// Which servers a client may send requests to: those of the public internet over https, and what is allowed besides.
///
/// The two freedoms are independent. A server in a private network needs its network allowed, and one that is called over
/// `http://` needs that allowed as well.
package struct TargetPolicy: Sendable, Equatable {
    /// `http://` besides `https://`. What is sent can be read and changed by everything between here and the server.
    package var allowsHTTP: Bool

    /// The servers outside the public internet that need not be listed.
    package enum Unlisted: Sendable {
        case none
        /// All but link-local addresses and the services that give out a machine's credentials.
        case ordinary
        case all
    }

    package var unlisted: Unlisted

    /// The networks outside the public internet in which servers may be besides.
    package var networks: [NetworkRange]

    package init(allowsHTTP: Bool = false, unlisted: Unlisted = .none, networks: [NetworkRange] = []) {
        self.allowsHTTP = allowsHTTP
        self.unlisted = unlisted
        self.networks = networks
    }

    /// Every address, over `http://` too.
    package static let everything = TargetPolicy(allowsHTTP: true, unlisted: .all)

    /// Loopback and private addresses, over `http://` too. What every machine of a cloud finds beside it stays closed, since
    /// development happens there as well.
    package static let development = TargetPolicy(allowsHTTP: true, unlisted: .ordinary)

    /// Whether a server may be at the address. A metadata service of a cloud hands out the machine's own credentials, so no
    /// range covers one: it must be named by itself.
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
