internal import Reactor

extension ConnectionPool {
    /// At most this many addresses of a host are tried, because the connect deadline is divided among them.
    private static let maximumAddresses = 8

    /// Opens a connection to the server of `key` and verifies the server's identity.
    func connect(
        _ key: PoolKey, resuming session: ResumableSession?, until exchangeDeadline: MonotonicInstant
    ) async throws(TransportError) -> ClientConnection {
        let deadline = min(exchangeDeadline, .after(configuration.connectTimeout))
        let addresses = try await allowedAddresses(of: key.origin, until: deadline)
        let descriptor = try await connect(to: addresses, until: deadline)
        var tls: TLSSession?
        if key.origin.scheme == .https {
            guard await trustSystemRoots() else { throw .tlsFailed }
            tls = context.makeSession(for: PeerIdentity(host: key.origin.host), resuming: session)
            if tls == nil { throw .tlsFailed }
        }
        let connection = ClientConnection(descriptor: descriptor, tls: tls, loop: loop)
        do throws(ClientConnection.Fault) {
            try await connection.handshake(
                pins: key.pins, until: min(exchangeDeadline, .after(configuration.tlsHandshakeTimeout)))
        } catch {
            switch error {
            case .timedOut: throw .timedOut(.tlsHandshake, requestSent: false)
            case .cancelled: throw .cancelled
            case .untrusted(let reason): throw .untrusted(reason)
            case .tlsFailed, .lost: throw .tlsFailed
            }
        }
        return connection
    }

    /// The addresses that the client may connect to. The client connects to exactly the addresses that were checked
    /// here, without another look-up, so changing a name's addresses in between does not help an attacker (CWE-367).
    private func allowedAddresses(
        of origin: URLTarget.Origin, until deadline: MonotonicInstant
    ) async throws(TransportError) -> [SocketAddress] {
        let addresses: [SocketAddress]
        if let numeric = SocketAddress(numericHost: origin.host, port: origin.port) {
            addresses = [numeric]
        } else {
            addresses = try await resolve(origin, until: deadline)
        }
        let allowed = addresses.filter(configuration.targets.allows)
        if allowed.isEmpty { throw addresses.isEmpty ? .nameNotFound : .forbiddenAddress }
        return Array(allowed.prefix(Self.maximumAddresses))
    }

    private func resolve(
        _ origin: URLTarget.Origin, until deadline: MonotonicInstant
    ) async throws(TransportError) -> [SocketAddress] {
        let result: Result<[SocketAddress], ResolutionError>
        do throws(WaitInterrupted) {
            result = try await resolver.addresses(of: origin.host, port: origin.port, on: loop, until: deadline)
        } catch {
            throw error == .cancelled ? .cancelled : .timedOut(.nameResolution, requestSent: false)
        }
        switch result {
        case .success(let addresses): return addresses
        case .failure(.notFound): throw .nameNotFound
        case .failure(.temporary): throw .nameResolutionFailed
        }
    }

    /// Connects to the first address that accepts. Each address gets an equal share of the remaining time, so that an
    /// address that drops packets leaves time for the others.
    private func connect(
        to addresses: [SocketAddress], until deadline: MonotonicInstant
    ) async throws(TransportError) -> OwnedDescriptor {
        for (index, address) in addresses.enumerated() {
            let now = MonotonicInstant.now
            let share = now.duration(to: deadline) / (addresses.count - index)
            do {
                return try await Socket.connect(to: address, on: loop, until: now.advanced(by: share))
            } catch WaitInterrupted.cancelled {
                throw .cancelled
            } catch {
                if MonotonicInstant.now >= deadline { throw .timedOut(.connect, requestSent: false) }
            }
        }
        throw .connectFailed
    }
}
