import HTTPCodec
import Reactor

extension ConnectionPool {
    /// At most this many addresses of a host are tried, because the connect deadline is divided among them.
    private static let maximumAddresses = 8

    /// Opens a connection to the server of `key` and verifies the server's identity.
    func connect(
        _ key: PoolKey, resuming session: ResumableSession?, until exchangeDeadline: MonotonicInstant
    ) async throws(TransportError) -> ClientConnection {
        let deadline = min(exchangeDeadline, .after(configuration.connectTimeout))
        let connection = try await connect(to: key, until: deadline)
        guard key.origin.scheme == .https else { return connection }
        guard await trustSystemRoots(),
            let tls = context(for: key.certificate)?.makeSession(
                for: PeerIdentity(host: key.origin.host), resuming: session)
        else { throw .tlsFailed }
        do throws(ClientConnection.Fault) {
            try await connection.begin(
                tls, pins: key.pins, until: min(exchangeDeadline, .after(configuration.tlsHandshakeTimeout)))
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

    /// Opens a connection to the server, or a tunnel to it through the proxy.
    private func connect(
        to key: PoolKey, until deadline: MonotonicInstant
    ) async throws(TransportError) -> ClientConnection {
        let origin = key.origin
        let targets = key.avoidsListedNetworks ? configuration.targets.withoutNetworks : configuration.targets
        guard let proxy = key.proxy ?? configuration.proxy.flatMap({ $0.serves(origin) ? $0 : nil }) else {
            let addresses = try await allowedAddresses(of: origin, by: targets, until: deadline)
            return ClientConnection(descriptor: try await connect(to: addresses, until: deadline), loop: loop)
        }
        if let address = SocketAddress(numericHost: origin.host, port: origin.port),
            !targets.allows(address)
        {
            throw .forbiddenAddress
        }
        var addresses = try await addresses(of: proxy.host, port: proxy.port, until: deadline)
        // The operator of the machine has named the client's proxy, so it may be anywhere. That of a request may not.
        if key.proxy != nil {
            // To the proxy, such a name is its own machine's.
            if LocalNames.include(origin.host) {
                _ = try await allowedAddresses(of: origin, by: targets, until: deadline)
            }
            let found = addresses
            addresses = found.filter(configuration.targets.allows)
            if addresses.isEmpty { throw found.isEmpty ? .nameNotFound : .forbiddenAddress }
        }
        let connection = ClientConnection(
            descriptor: try await connect(to: Array(addresses.prefix(Self.maximumAddresses)), until: deadline),
            loop: loop)
        try await openTunnel(to: origin, on: connection, of: proxy, until: deadline)
        return connection
    }

    /// Asks the proxy for a tunnel, and receives its answer.
    private func openTunnel(
        to origin: URLTarget.Origin, on connection: ClientConnection, of proxy: OutboundProxy,
        until deadline: MonotonicInstant
    ) async throws(TransportError) {
        // As after HEAD, no content follows the head of the answer that opens a tunnel. The content of another answer is not read.
        var parser = ResponseParser(
            limits: ResponseLimits(headBytes: configuration.maximumHeadBytes, bodyBytes: 0), requestMethod: .head)
        var isAnswered = false
        do throws(ClientConnection.Fault) {
            try await connection.send(proxy.connectRequest(to: origin), until: deadline)
            while !isAnswered, try await connection.receive(until: deadline) {
                let (progress, length) = connection.withReceived { bytes in (try? parser.consume(bytes), bytes.count) }
                // The server does not send before the client has begun the handshake, so nothing follows the answer.
                if case .complete(let end) = progress, end != length, Self.opensTunnel(parser.response) { throw .lost }
                guard let progress else { throw .lost }
                isAnswered = progress != .needsMore
            }
        } catch {
            switch error {
            case .timedOut: throw .timedOut(.connect, requestSent: false)
            case .cancelled: throw .cancelled
            case .untrusted, .tlsFailed, .lost: throw .connectFailed
            }
        }
        guard isAnswered else { throw .connectFailed }
        guard Self.opensTunnel(parser.response) else { throw .proxyRefused(parser.response.status) }
    }

    private static func opensTunnel(_ response: ParsedResponse) -> Bool { (200..<300).contains(response.status.code) }

    /// The addresses that the client may connect to. The client connects to exactly the addresses that were checked
    /// here, without another look-up, so changing a name's addresses in between does not help an attacker (CWE-367).
    private func allowedAddresses(
        of origin: URLTarget.Origin, by targets: TargetPolicy, until deadline: MonotonicInstant
    ) async throws(TransportError) -> [SocketAddress] {
        let addresses = try await addresses(of: origin.host, port: origin.port, until: deadline)
        let allowed = addresses.filter(targets.allows)
        if allowed.isEmpty { throw addresses.isEmpty ? .nameNotFound : .forbiddenAddress }
        return Array(allowed.prefix(Self.maximumAddresses))
    }

    private func addresses(
        of host: String, port: UInt16, until deadline: MonotonicInstant
    ) async throws(TransportError) -> [SocketAddress] {
        if let numeric = SocketAddress(numericHost: host, port: port) { return [numeric] }
        let result: Result<[SocketAddress], ResolutionError>
        do throws(WaitInterrupted) {
            result = try await resolver.addresses(of: host, port: port, on: loop, until: deadline)
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
