/// The limits and the trust of an `HTTPSClient`.
package struct HTTPSClientConfiguration: Sendable {
    /// A PEM file with roots that are trusted besides the system's; nil for none.
    package var trustedCAFile: String?
    /// Which servers requests may be sent to. Default: those of the public internet, over https.
    package var targets = TargetPolicy()

    /// From the start of a connection to its acceptance by the peer, name resolution and all addresses included.
    package var connectTimeout: Duration = .seconds(5)
    package var tlsHandshakeTimeout: Duration = .seconds(5)
    /// From the start of sending to the first byte of the answer.
    package var firstByteTimeout: Duration = .seconds(15)
    /// The whole exchange, waiting for a free connection included. It bounds every other limit.
    package var exchangeTimeout: Duration = .seconds(20)

    /// The largest answer body, in bytes.
    package var maximumBodyBytes = 1 << 20
    /// The largest answer head, in bytes.
    package var maximumHeadBytes = 64 << 10

    /// Connections to one origin with one set of pins, busy and idle together; further requests wait for one. At least 1.
    package var maximumConnectionsPerOrigin = 16
    /// Idle connections over all origins; beyond it the one that has been idle longest is closed.
    package var maximumIdleConnections = 64
    /// How long a connection without a request is kept. Below the idle limits common among servers, so that they seldom
    /// close one that is about to be used.
    package var idleTimeout: Duration = .seconds(20)

    package init() {}
}

/// Why a client cannot be made. An operator must mend the configuration.
package enum HTTPSClientConfigurationError: Error, Equatable, Sendable, CustomStringConvertible {
    /// The file of additional roots is missing, unreadable or holds no certificate.
    case trustedCAFile(String)
    /// libssl refused one of the settings that are fixed in this module, so the installed library does not fit.
    case tlsUnavailable

    package var description: String {
        switch self {
        case .trustedCAFile(let path): "\(path) holds no certificate that can be read"
        case .tlsUnavailable: "the installed libssl refuses this program's settings"
        }
    }
}
