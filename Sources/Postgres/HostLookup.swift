package import Reactor

/// The look-up of host names for libpq, which would itself block in it.
///
/// getaddrinfo(3) cannot be interrupted. A caller whose deadline passes leaves it behind, and the next caller for the
/// same name joins it, so that a resolver which hangs has one call per name in it and not one per attempt.
package actor HostLookup {
    private let loop: EventLoop
    private let resolve: @Sendable (String) async throws(ResolutionError) -> [String]
    private var waiters: [String: [Suspension<[String]>]] = [:]

    nonisolated package var unownedExecutor: UnownedSerialExecutor { unsafe loop.asUnownedSerialExecutor() }

    package init(resolver: NameResolver, on loop: EventLoop) {
        self.init(on: loop) { host throws(ResolutionError) in
            try await resolver.addresses(of: host, port: 0).map(\.host)
        }
    }

    /// - Parameter resolve: gives the numeric addresses of a name.
    package init(on loop: EventLoop, _ resolve: @escaping @Sendable (String) async throws(ResolutionError) -> [String])
    {
        self.loop = loop
        self.resolve = resolve
    }

    /// The numeric addresses of `host`, in the resolver's order.
    func addresses(of host: String, until deadline: MonotonicInstant) async throws(PostgresError) -> [String] {
        let suspension = Suspension<[String]>(on: loop)
        if waiters[host] == nil {
            waiters[host] = [suspension]
            Task { await self.ask(host) }
        } else {
            waiters[host]?.append(suspension)
        }
        return try await suspension.wait(until: deadline, overdue: .timedOut)
    }

    private func ask(_ host: String) async {
        let outcome: Suspension<[String]>.Outcome
        do throws(ResolutionError) {
            outcome = .success(try await resolve(host))
        } catch {
            let reason = error == .notFound ? "is unknown" : "could not be looked up"
            outcome = .failure(.connectionFailed(sqlstate: nil, detail: "the host \"\(host)\" \(reason)"))
        }
        for suspension in waiters.removeValue(forKey: host) ?? [] { suspension.resume(outcome) }
    }
}
