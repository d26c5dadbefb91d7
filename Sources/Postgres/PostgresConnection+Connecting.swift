import Reactor

// libpq resolves names with a blocking getaddrinfo(3). So each host is looked up first, and each of its addresses gets
// an attempt of its own with `hostaddr`; `host` stays the name that the server's certificate is checked against. Each
// attempt also gets its own share of the time: when libpq goes through a list by itself, a first host that drops
// packets uses up the time that the second one needs. Numeric hosts and Unix-domain sockets need no look-up.
//
// libpq computes TLS and SCRAM's 4096 rounds of HMAC on the loop's thread, which takes some milliseconds per
// connection. A loop that must answer sooner should not be the loop of a pool.
extension PostgresConnection {
    /// The SQLSTATEs with which a server says that it is starting, stopping or out of connections: another host may be
    /// able to serve.
    private static let otherHostStates: Set<String> = ["57P01", "57P02", "57P03", "53300"]

    /// Tries each host of the configuration, first the one that took the last connection.
    func connect(
        to configuration: PostgresConfiguration, resolver: NameResolver, until deadline: MonotonicInstant
    ) async throws(PostgresError) {
        var failure = PostgresError.timedOut
        let hosts = configuration.memory.order(of: configuration.targets.count)
        for (index, host) in hosts.enumerated() {
            let rest = hosts.count - index
            var share = Self.share(of: deadline, among: rest)
            if rest > 1 { share = min(share, .after(configuration.memory.patience(configuration.hostTimeout))) }
            do throws(PostgresError) {
                try await connect(
                    to: configuration.targets[host], of: configuration, resolver: resolver, until: share)
                return configuration.memory.connected(to: host)
            } catch {
                guard Self.mayTryOtherHost(after: error) else { throw error }
                failure = error
            }
        }
        configuration.memory.noneConnected()
        throw failure
    }

    /// Tries each address of one host.
    private func connect(
        to target: PostgresConfiguration.Target, of configuration: PostgresConfiguration, resolver: NameResolver,
        until deadline: MonotonicInstant
    ) async throws(PostgresError) {
        var addresses = [target.address]
        if target.needsLookup { addresses = try await lookUp(target, by: resolver, until: deadline) }
        var failure = PostgresError.timedOut
        for (index, address) in addresses.enumerated() {
            let share = Self.share(of: deadline, among: addresses.count - index)
            do throws(PostgresError) {
                return try await make(configuration.attempts(at: target, address: address), until: share)
            } catch {
                handle.close()
                guard Self.mayTryOtherHost(after: error) else { throw error }
                failure = error
            }
        }
        throw failure
    }

    /// The addresses of a target's host; only loopback addresses when the target is local by its name.
    private func lookUp(
        _ target: PostgresConfiguration.Target, by resolver: NameResolver, until deadline: MonotonicInstant
    ) async throws(PostgresError) -> [String] {
        let answer: Result<[SocketAddress], ResolutionError>
        do throws(WaitInterrupted) {
            answer = try await resolver.addresses(of: target.host, port: 0, on: loop, until: deadline)
        } catch {
            throw error == .cancelled ? .cancelled : .timedOut
        }
        switch answer {
        case .success(let addresses):
            let usable = target.isLocal ? addresses.filter(\.ip.isLoopback) : addresses
            if !usable.isEmpty { return usable.map(\.host) }
            throw .connectionFailed(sqlstate: nil, detail: "the host \"\(target.host)\" has no loopback address")
        case .failure(let error):
            let reason = error == .notFound ? "is unknown" : "could not be looked up"
            throw .connectionFailed(sqlstate: nil, detail: "the host \"\(target.host)\" \(reason)")
        }
    }

    /// Makes one attempt after the other until one succeeds. The next attempt is made when the server refuses the
    /// protection of the attempt before it, or users with that protection, and not when the server refuses the
    /// password.
    private func make(
        _ attempts: [PostgresConfiguration.Attempt], until deadline: MonotonicInstant
    ) async throws(PostgresError) {
        var failure = PostgresError.timedOut
        for (index, attempt) in attempts.enumerated() {
            let share = Self.share(of: deadline, among: attempts.count - index)
            do throws(PostgresError) {
                return try await make(attempt, until: share)
            } catch {
                handle.close()
                switch error {
                case .connectionFailed(nil, _), .connectionFailed("28000"?, _), .insecureAuthentication:
                    // That the password would have been revealed tells the operator more than a later failure.
                    if failure != .insecureAuthentication { failure = error }
                default: throw error
                }
            }
        }
        throw failure
    }

    private func make(
        _ attempt: PostgresConfiguration.Attempt, until deadline: MonotonicInstant
    ) async throws(PostgresError) {
        guard handle.start(attempt.options) else { throw handle.failure }
        var relay: AuthenticationRelay?
        var needsRelay = attempt.allowsSCRAMOnly
        // libpq, "Asynchronous connection": begin as if PQconnectPoll had returned PGRES_POLLING_WRITING.
        var step = PostgresHandle.ConnectStep.writable
        while true {
            if needsRelay {
                switch handle.progress {
                case .connecting: break
                case .connected:
                    relay = try startRelay()
                    needsRelay = false
                // libpq has sent bytes before the relay could take over the connection.
                case .speaking: throw step == .failed ? handle.failure : .connectionLost
                }
            }
            switch step {
            case .writable where relay == nil: _ = try await ready(.writable, until: deadline)
            case .writable: break
            case .readable:
                if let relay {
                    try await receive(by: relay, until: deadline)
                } else {
                    _ = try await ready(.readable, until: deadline)
                }
            case .failed: throw handle.failure
            case .connected:
                guard handle.useNonBlocking() else { throw .connectionLost }
                return
            }
            step = handle.connectPoll()
            if let authenticating = relay, step != .failed {
                try await send(by: authenticating, until: deadline)
                if authenticating.isAuthenticated {
                    try close(authenticating)
                    relay = nil
                }
            }
        }
    }

    // MARK: The authentication relay

    private func startRelay() throws(PostgresError) -> AuthenticationRelay {
        do throws(SystemError) {
            return try AuthenticationRelay(replacing: handle.socket)
        } catch {
            throw .connectionFailed(sqlstate: nil, detail: "\(error)")
        }
    }

    private func close(_ relay: AuthenticationRelay) throws(PostgresError) {
        do throws(SystemError) {
            try relay.close(restoring: handle.socket)
        } catch {
            throw .connectionFailed(sqlstate: nil, detail: "\(error)")
        }
    }

    /// Passes libpq's bytes on to the server.
    private func send(by relay: AuthenticationRelay, until deadline: MonotonicInstant) async throws(PostgresError) {
        while true {
            do throws(AuthenticationRelay.Fault) {
                if try relay.send() { return }
            } catch {
                throw Self.failure(of: error)
            }
            _ = try await ready(.writable, of: relay.descriptor, until: deadline)
        }
    }

    /// Passes the server's next message on to libpq.
    private func receive(by relay: AuthenticationRelay, until deadline: MonotonicInstant) async throws(PostgresError) {
        while true {
            do throws(AuthenticationRelay.Fault) {
                if case .passedOn = try relay.receive() { return }
            } catch {
                throw Self.failure(of: error)
            }
            _ = try await ready(.readable, of: relay.descriptor, until: deadline)
        }
    }

    private static func failure(of fault: AuthenticationRelay.Fault) -> PostgresError {
        switch fault {
        case .asksForPassword: .insecureAuthentication
        case .broken: .connectionLost
        }
    }

    /// Whether the next host is tried, as libpq does with a list of hosts: after an unreachable or read-only host, and
    /// not after a refused user or database.
    private static func mayTryOtherHost(after error: PostgresError) -> Bool {
        switch error {
        case .connectionFailed(let sqlstate, _): sqlstate.map { otherHostStates.contains($0) } ?? true
        case .timedOut, .connectionLost: true
        default: false
        }
    }

    /// An equal share of the time that is left.
    private static func share(of deadline: MonotonicInstant, among count: Int) -> MonotonicInstant {
        let now = MonotonicInstant.now
        return now.advanced(by: now.duration(to: deadline) / count)
    }
}
