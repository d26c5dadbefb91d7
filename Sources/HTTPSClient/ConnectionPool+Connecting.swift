internal import Reactor

extension ConnectionPool {
    /// More addresses of one host are not tried: the connect deadline is divided among them.
    private static let maximumAddresses = 8

    /// A new connection to a server that has proved to be the key's.
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

    /// The addresses that may be connected to. What is checked here is what is connected to afterwards, without another
    /// look-up, so a name that changes its addresses in between gains nothing (CWE-367).
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

    /// The first address that accepts. Each gets an equal share of the time that is left, so that one that drops
    /// packets does not use up that of the others.
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
