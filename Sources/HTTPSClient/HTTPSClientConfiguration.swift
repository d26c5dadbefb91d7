/// The limits of an `HTTPSClient` and the servers it trusts.
package struct HTTPSClientConfiguration: Sendable {
    /// A PEM file with roots that are trusted in addition to the system's. Nil for none, which is the default.
    package var trustedCAFile: String?
    /// Which servers the client may send requests to. Default: those of the public internet, over https.
    package var targets = TargetPolicy()

    /// The proxy through which servers are reached over https. Default: none.
    package var proxy: OutboundProxy?

    /// Called with a server whose chain has a backup key of the pins and not the first, the key in use: the operator has to
    /// list new pins before the backups are used up. Once an hour at most for each server, on the client's loop. Default:
    /// nothing is called.
    package var onBackupPin: (@Sendable (URLTarget.Origin) -> Void)?

    /// The time for opening a TCP connection, including name resolution and all tried addresses.
    package var connectTimeout: Duration = .seconds(5)
    package var tlsHandshakeTimeout: Duration = .seconds(5)
    /// The time from the start of sending to the first byte of the response.
    package var firstByteTimeout: Duration = .seconds(15)
    /// The time for a whole exchange, including waiting for a free connection. It bounds every other time limit.
    package var exchangeTimeout: Duration = .seconds(20)

    /// The largest response body, in bytes.
    package var maximumBodyBytes = 1 << 20
    /// The largest response head, in bytes.
    package var maximumHeadBytes = 64 << 10

    /// The most connections, busy and idle, to one origin with one set of pins. Further requests wait. At least 1.
    package var maximumConnectionsPerOrigin = 16
    /// The most idle connections to all origins together. Beyond it, the connection that has been idle longest is
    /// closed.
    package var maximumIdleConnections = 64
    /// How long an idle connection is kept. This is shorter than the idle limits of most servers, so that a server
    /// seldom closes a connection that is about to be used.
    package var idleTimeout: Duration = .seconds(20)

    package init() {}
}

/// Why a client cannot be created. Retrying does not help; an operator must correct the configuration.
package enum HTTPSClientConfigurationError: Error, Equatable, Sendable, CustomStringConvertible {
    /// The file with additional roots is missing, unreadable, or holds no certificate.
    case trustedCAFile(String)
    /// libssl refused a setting that this module requires, so the installed library is not suitable.
    case tlsUnavailable

    package var description: String {
        switch self {
        case .trustedCAFile(let path): "\(path) holds no certificate that can be read"
        case .tlsUnavailable: "the installed libssl refuses this program's settings"
        }
    }
}
