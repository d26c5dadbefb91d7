package import Reactor

/// Which servers a client may send requests to: those of the public internet over https, and what is allowed besides.
///
/// The two freedoms are independent. A server in a private network needs its network allowed, and one that is called over
/// `http://` needs that allowed as well.
package struct TargetPolicy: Sendable, Equatable {
    /// `http://` besides `https://`. What is sent can be read and changed by everything between here and the server.
    package var allowsHTTP: Bool

    /// The networks outside the public internet in which servers may be; nil for everything that the host can reach.
    package var networks: [NetworkRange]?

    package init(allowsHTTP: Bool = false, networks: [NetworkRange]? = []) {
        self.allowsHTTP = allowsHTTP
        self.networks = networks
    }

    /// Every address, over `http://` too: for development and tests.
    package static let everything = TargetPolicy(allowsHTTP: true, networks: nil)

    /// Whether a server may be at the address. A metadata service of a cloud hands out the machine's own credentials, so no
    /// range covers one: it must be named by itself.
    package func allows(_ address: SocketAddress) -> Bool {
        if address.isGloballyRoutable { return true }
        guard let networks else { return true }
        return networks.contains {
            $0.contains(NetworkAddress(address.ip)) && ($0.isSingleAddress || !address.ip.isMetadataService)
        }
    }
}
