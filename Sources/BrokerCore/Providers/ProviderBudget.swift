import Containers
import HTTPSClient
package import OAuth
import Reactor
import Synchronization
import Waiting

/// Limits the concurrent token requests of this process to one provider. Further requests wait for a place: the tenants
/// in turn, and each tenant's requests in order.
///
/// A renewal takes its place before it claims the lease on a record, and keeps the place until the provider has answered,
/// the waits between tries included. So no renewal holds a lease while it waits in the queue, and a provider that fails is
/// called by no more renewals than there are places. Code exchanges and device polls need no place, because a user waits
/// for them; the connections beyond the places are for them.
///
/// Safe to use from any task. Keeps nothing about a provider without requests.
package final class ProviderBudget: Sendable {
    package struct Limits: Sendable, Equatable {
        /// The places at one provider, which is the origin of a token endpoint. At least 1.
        package var places = 16
        /// How many requests may wait for a place at one provider; further ones are refused, but those of tenants that have
        /// less than an equal share of them. Not negative.
        package var waiting = 20_000

        package init() {}

        /// How many connections to a provider are needed: for the places, and some for requests that need no place.
        package var connections: Int { places + max(4, places / 4) }

        /// How many places background renewals may hold.
        var backgroundPlaces: Int { max(1, places / 2) }
    }

    package enum Urgency: Sendable, CaseIterable {
        /// A caller waits for the renewal, or soon will.
        case caller
        /// The broker renews ahead of any caller. Such a request gets a place while no caller's request waits, or after
        /// three callers' requests have got one since the last background request: a caller may wait for this renewal by
        /// then. Background requests get at most half of the places, so that they never take all.
        case background
    }

    /// How many hold a place and how many wait for one, over all providers.
    package struct Usage: Sendable, Equatable {
        package let inUse: Int
        package let waiting: Int

        package init(inUse: Int, waiting: Int) {
            self.inUse = inUse
            self.waiting = waiting
        }
    }

    private enum Outcome: Sendable {
        case taken
        case paused(ProviderHealth.Refusal)
        case full
        case cancelled
    }

    /// Those who wait with one urgency. The first tenant's first is next; after it the tenant goes to the end.
    private struct Line {
        /// The waiters of one tenant, with the pause that each heeds, and the tenant's place in `turns`.
        struct TenantLine {
            var waiters = WaitList<ProviderClient.User?, Outcome>()
            var turn: Int
        }

        var tenants: [TenantName: TenantLine] = [:]
        var turns = LinkedList<TenantName>()
        var count = 0

        mutating func enter(_ pause: ProviderClient.User?, of tenant: TenantName) -> Waiter<Outcome> {
            count += 1
            if let waiter = tenants[tenant]?.waiters.enter(pause) { return waiter }
            var line = TenantLine(turn: turns.append(tenant))
            let waiter = line.waiters.enter(pause)
            tenants[tenant] = line
            return waiter
        }

        mutating func next() -> (pause: ProviderClient.User?, waiter: Waiter<Outcome>)? {
            guard let tenant = turns.popFirst(), let next = tenants[tenant]?.waiters.popFirst() else { return nil }
            count -= 1
            if tenants[tenant]?.waiters.isEmpty == true {
                tenants[tenant] = nil
            } else {
                tenants[tenant]?.turn = turns.append(tenant)
            }
            return (next.subject, next.waiter)
        }

        mutating func remove(_ waiter: Waiter<Outcome>, of tenant: TenantName) -> Waiter<Outcome>? {
            guard let removed = tenants[tenant]?.waiters.remove(waiter) else { return nil }
            count -= 1
            if let line = tenants[tenant], line.waiters.isEmpty {
                turns.remove(at: line.turn)
                tenants[tenant] = nil
            }
            return removed
        }
    }

    private struct Provider {
        var inUse = 0
        var inBackground = 0
        var callers = Line()
        var background = Line()
        /// How many callers' requests have got a place while a background request waited for one.
        var callersInARow = 0

        var waiting: Int { callers.count + background.count }
        var isUnused: Bool { inUse == 0 && waiting == 0 }

        /// Whether no further request of the tenant may wait: one tenant cannot use up the queue for the others.
        func isFull(for tenant: TenantName, _ limits: Limits) -> Bool {
            guard waiting >= limits.waiting else { return false }
            let lines = [callers, background]
            let own = lines.reduce(0) { $0 + ($1.tenants[tenant]?.waiters.count ?? 0) }
            let others = lines.map { $0.tenants.count - ($0.tenants[tenant] == nil ? 0 : 1) }.max() ?? 0
            return own >= limits.waiting / (others + 1)
        }

        /// Whether one of that urgency may have a place now. While that is so, none of that urgency waits.
        func hasRoom(for urgency: Urgency, _ limits: Limits) -> Bool {
            if inUse >= limits.places { return false }
            return urgency == .caller || inBackground < limits.backgroundPlaces
        }

        mutating func take(_ urgency: Urgency) {
            inUse += 1
            switch urgency {
            case .caller: callersInARow = background.count == 0 ? 0 : callersInARow + 1
            case .background:
                inBackground += 1
                callersInARow = 0
            }
        }

        /// Who is next to have a place, if there is room.
        mutating func next(
            _ limits: Limits
        ) -> (pause: ProviderClient.User?, waiter: Waiter<Outcome>, urgency: Urgency)? {
            let isBackgroundsTurn = callers.count == 0 || callersInARow >= ProviderBudget.mostCallersInARow
            if isBackgroundsTurn, hasRoom(for: .background, limits), let next = background.next() {
                return (next.pause, next.waiter, .background)
            }
            guard hasRoom(for: .caller, limits), let next = callers.next() else { return nil }
            return (next.pause, next.waiter, .caller)
        }

        mutating func giveBack(_ urgency: Urgency) {
            inUse -= 1
            if urgency == .background { inBackground -= 1 }
        }
    }

    /// What a caller finds that asks for a place.
    private enum Admission {
        case settled(Outcome)
        case waiting(Waiter<Outcome>)
    }

    private static let mostCallersInARow = 3

    /// Has the pauses that providers have asked for.
    package let health: ProviderHealths
    private let limits: Limits
    private let providers = Mutex<[String: Provider]>([:])

    package init(limits: Limits = Limits(), health: ProviderHealths, metrics: Metrics) {
        precondition(limits.places >= 1 && limits.waiting >= 0, "a provider has at least one place")
        self.limits = limits
        self.health = health
        metrics.show(.providerPlacesInUse) { [weak self] in self?.usage.inUse }
        metrics.show(.providerPlacesWaiting) { [weak self] in self?.usage.waiting }
    }

    /// Runs `body` while it holds a place at the provider; does not suspend before where there is one. `body` may not
    /// ask for another: it might wait for its own.
    /// - Parameters:
    ///   - user: whose pauses count beside those of the client; nil for a call that belongs to no stored credentials.
    ///   - mayWait: whether it waits for a place where there is none; default true.
    /// - Throws: what `body` does; `retryable_error` where the provider has asked this client to be left alone, before
    ///   the call or while it waited, where too many wait already, and where the task is cancelled while it waits. Then
    ///   `body` has not begun.
    package func withPlace<R>(
        for client: ClientConfiguration, at server: AuthorizationServer, of tenant: TenantName,
        _ urgency: Urgency = .caller, by user: CredentialsID? = nil, mayWait: Bool = true, heedsPause: Bool = true,
        _ body: () async throws(BrokerError) -> R
    ) async throws(BrokerError) -> R {
        let place = try await takePlace(
            for: client, at: server, of: tenant, urgency, by: user, mayWait: mayWait, heedsPause: heedsPause)
        defer { giveBack(place) }
        return try await body()
    }

    /// A place at a provider, which is given back once.
    package struct Place: Sendable {
        fileprivate let urgency: Urgency
        fileprivate let origin: String
    }

    /// Takes a place as `withPlace` does, until `giveBack`.
    package func takePlace(
        for client: ClientConfiguration, at server: AuthorizationServer, of tenant: TenantName, _ urgency: Urgency,
        by user: CredentialsID?, mayWait: Bool, heedsPause: Bool
    ) async throws(BrokerError) -> Place {
        let origin = server.origin
        let pause = heedsPause ? ProviderClient.User(user, of: ProviderClient(client, at: server)) : nil
        switch await take(urgency, at: origin, pause, tenant, mayWait: mayWait) {
        case .taken: return Place(urgency: urgency, origin: origin)
        case .paused(let refusal): throw health.error(refusal)
        case .full:
            throw BrokerError(
                .retryableError, "Too many renewals wait for this provider. What is stored was left as it is.",
                retryAfter: 5)
        case .cancelled: throw BrokerError.shuttingDown
        }
    }

    package func giveBack(_ place: Place) { giveBack(place.urgency, at: place.origin) }

    package var usage: Usage {
        providers.withLock { providers in
            Usage(
                inUse: providers.values.reduce(0) { $0 + $1.inUse },
                waiting: providers.values.reduce(0) { $0 + $1.waiting })
        }
    }

    private func take(
        _ urgency: Urgency, at origin: String, _ pause: ProviderClient.User?, _ tenant: TenantName, mayWait: Bool
    ) async -> Outcome {
        if let pause, let refusal = health.refusal(pause) { return .paused(refusal) }
        let admission = providers.withLock { providers -> Admission in
            // Taken out, so that its lines are changed in place.
            var provider = providers.removeValue(forKey: origin) ?? Provider()
            defer { if !provider.isUnused { providers[origin] = provider } }
            if provider.hasRoom(for: urgency, limits) {
                provider.take(urgency)
                return .settled(.taken)
            }
            if !mayWait || provider.isFull(for: tenant, limits) { return .settled(.full) }
            return switch urgency {
            case .caller: .waiting(provider.callers.enter(pause, of: tenant))
            case .background: .waiting(provider.background.enter(pause, of: tenant))
            }
        }
        switch admission {
        case .settled(let outcome): return outcome
        case .waiting(let waiter):
            return await waiter.value { self.leave(waiter, urgency, at: origin, tenant) }
        }
    }

    private func leave(_ waiter: Waiter<Outcome>, _ urgency: Urgency, at origin: String, _ tenant: TenantName) {
        let removed = providers.withLock { providers in
            switch urgency {
            case .caller: providers[origin]?.callers.remove(waiter, of: tenant)
            case .background: providers[origin]?.background.remove(waiter, of: tenant)
            }
        }
        removed?.resume(returning: .cancelled)
    }

    private func giveBack(_ urgency: Urgency, at origin: String) {
        let settled = providers.withLock { providers -> [(Waiter<Outcome>, Outcome)] in
            guard var provider = providers.removeValue(forKey: origin) else { return [] }
            provider.giveBack(urgency)
            let settled = hand(out: &provider)
            if !provider.isUnused { providers[origin] = provider }
            return settled
        }
        for (waiter, outcome) in settled { waiter.resume(returning: outcome) }
    }

    /// Gives free places to those who are next, and turns those away whose client has been asked for patience
    /// meanwhile.
    private func hand(out provider: inout Provider) -> [(Waiter<Outcome>, Outcome)] {
        var settled: [(Waiter<Outcome>, Outcome)] = []
        while let (pause, waiter, urgency) = provider.next(limits) {
            if let pause, let refusal = health.refusal(pause) {
                settled.append((waiter, .paused(refusal)))
            } else {
                provider.take(urgency)
                settled.append((waiter, .taken))
            }
        }
        return settled
    }
}
