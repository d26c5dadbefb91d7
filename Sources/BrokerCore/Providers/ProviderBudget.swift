internal import HTTPSClient
package import OAuth
internal import Reactor
internal import Synchronization

/// How many token requests of this process one provider is to answer at once. Who wants more waits for a place, the
/// tenants in turn and each tenant's requests in order.
///
/// A renewal takes its place before it claims the lease on a record and keeps it until the provider has answered, the
/// waits between tries included: nobody holds a lease while waiting in a queue, and a provider in trouble is asked by no
/// more than have a place. Code exchanges and device polls take none, since a user waits for them; the connections
/// beyond the places are theirs.
///
/// Safe to use from any task and by many at once. Keeps nothing about a provider that nobody uses.
package final class ProviderBudget: Sendable {
    package struct Limits: Sendable, Equatable {
        /// The places at one provider, which is the origin of a token endpoint. At least 1.
        package var places = 16
        /// How many may wait for a place at one provider; who comes then is refused. Not negative.
        package var waiting = 20_000

        package init() {}

        /// How many connections to a provider the places need, with some for those who need no place.
        package var connections: Int { places + max(4, places / 4) }

        /// How many places those may hold that nobody waits for.
        var backgroundPlaces: Int { max(1, places / 2) }
    }

    package enum Urgency: Sendable, CaseIterable {
        /// Somebody waits for the renewal, or soon will.
        case caller
        /// The broker renews by itself. Such a request gets a place while no caller's waits for one, or when three of
        /// those had theirs since it was the background's turn: somebody may have come to wait for it meanwhile. At most
        /// half of the places are given to its kind, so that a caller does not find all of them taken.
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
        case paused(Duration)
        case full
        case cancelled
    }

    private struct Waiter {
        let ticket: UInt64
        /// Nil where no pause is heeded.
        let pause: ProviderPauses.Key?
        let continuation: CheckedContinuation<Outcome, Never>
    }

    /// Those who wait with one urgency. The first tenant's first is next; after it the tenant goes to the end.
    private struct Line {
        var tenants: [TenantName: TenantLine] = [:]
        var turns = Queue<TenantName>()
        var count = 0

        mutating func append(_ waiter: Waiter, of tenant: TenantName) {
            if tenants[tenant] == nil { turns.append(tenant) }
            tenants[tenant, default: TenantLine()].append(waiter)
            count += 1
        }

        mutating func next() -> Waiter? {
            while let tenant = turns.popFirst() {
                guard let waiter = tenants[tenant]?.next() else {
                    // All of its waiters have left.
                    tenants[tenant] = nil
                    continue
                }
                count -= 1
                if tenants[tenant]?.waiters.isEmpty == true {
                    tenants[tenant] = nil
                } else {
                    turns.append(tenant)
                }
                return waiter
            }
            return nil
        }

        mutating func remove(_ ticket: UInt64, of tenant: TenantName) -> Waiter? {
            guard let waiter = tenants[tenant]?.remove(ticket) else { return nil }
            count -= 1
            return waiter
        }
    }

    /// The waiters of one tenant. One that leaves stays in the order as a ticket without a waiter until its turn comes,
    /// or until there are more of those than of the others.
    private struct TenantLine {
        var waiters: [UInt64: Waiter] = [:]
        var order = Queue<UInt64>()

        mutating func append(_ waiter: Waiter) {
            waiters[waiter.ticket] = waiter
            order.append(waiter.ticket)
        }

        mutating func next() -> Waiter? {
            while let ticket = order.popFirst() {
                if let waiter = waiters.removeValue(forKey: ticket) { return waiter }
            }
            return nil
        }

        mutating func remove(_ ticket: UInt64) -> Waiter? {
            guard let waiter = waiters.removeValue(forKey: ticket) else { return nil }
            if order.count > 2 * waiters.count + 16 { order.keep { [waiters] in waiters[$0] != nil } }
            return waiter
        }
    }

    private struct Provider {
        var inUse = 0
        var inBackground = 0
        var callers = Line()
        var background = Line()
        /// How many callers have got a place while somebody in the background waited for one.
        var callersInARow = 0

        var waiting: Int { callers.count + background.count }
        var isUnused: Bool { inUse == 0 && waiting == 0 }

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
        mutating func next(_ limits: Limits) -> (waiter: Waiter, urgency: Urgency)? {
            let isBackgroundsTurn = callers.count == 0 || callersInARow >= ProviderBudget.mostCallersInARow
            if isBackgroundsTurn, hasRoom(for: .background, limits), let waiter = background.next() {
                return (waiter, .background)
            }
            guard hasRoom(for: .caller, limits) else { return nil }
            return callers.next().map { ($0, .caller) }
        }

        mutating func giveBack(_ urgency: Urgency) {
            inUse -= 1
            if urgency == .background { inBackground -= 1 }
        }
    }

    private struct State {
        var providers: [String: Provider] = [:]
        var lastTicket: UInt64 = 0
    }

    private static let mostCallersInARow = 3

    package let pauses = ProviderPauses()
    private let limits: Limits
    private let time: any Time
    private let state = Mutex(State())

    package init(limits: Limits = Limits(), time: any Time) {
        precondition(limits.places >= 1 && limits.waiting >= 0, "a provider has at least one place")
        self.limits = limits
        self.time = time
    }

    /// Runs `body` while it holds a place at the provider; does not suspend before where there is one. `body` may not
    /// ask for another: it might wait for its own.
    /// - Parameter mayWait: whether it waits for a place where there is none; default true.
    /// - Throws: what `body` does; `retryable_error` where the provider has asked this client to be left alone, before
    ///   the call or while it waited, where too many wait already, and where the task is cancelled while it waits. Then
    ///   `body` has not begun.
    package func withPlace<R>(
        for client: ClientConfiguration, at server: AuthorizationServer, of tenant: TenantName,
        _ urgency: Urgency = .caller, mayWait: Bool = true, heedsPause: Bool = true,
        _ body: () async throws(BrokerError) -> R
    ) async throws(BrokerError) -> R {
        let origin = server.origin
        let pause = heedsPause ? ProviderPauses.Key(client, at: server) : nil
        switch await take(urgency, at: origin, pause, tenant, mayWait: mayWait) {
        case .taken: break
        case .paused(let remaining): throw TokenEndpoint.retryable(nil, after: remaining)
        case .full:
            throw BrokerError(
                .retryableError, "Too many renewals wait for this provider. What is stored was left as it is.",
                retryAfter: 5)
        case .cancelled: throw BrokerError(.retryableError, "The broker is shutting down.", retryAfter: 1)
        }
        defer { giveBack(urgency, at: origin) }
        return try await body()
    }

    package var usage: Usage {
        state.withLock { state in
            Usage(
                inUse: state.providers.values.reduce(0) { $0 + $1.inUse },
                waiting: state.providers.values.reduce(0) { $0 + $1.waiting })
        }
    }

    private func take(
        _ urgency: Urgency, at origin: String, _ pause: ProviderPauses.Key?, _ tenant: TenantName, mayWait: Bool
    ) async -> Outcome {
        if let pause, let remaining = pauses.remaining(pause, now: time.monotonic) { return .paused(remaining) }
        let ticket = state.withLock { state -> UInt64? in
            if state.providers[origin, default: Provider()].hasRoom(for: urgency, limits) {
                state.providers[origin, default: Provider()].take(urgency)
                return nil
            }
            state.lastTicket += 1
            return state.lastTicket
        }
        guard let ticket else { return .taken }
        if !mayWait { return .full }
        return await withTaskCancellationHandler {
            await withCheckedContinuation { (continuation: CheckedContinuation<Outcome, Never>) in
                let settled = state.withLock { state -> Outcome? in
                    // The mark of a cancellation is set before its handler runs, which finds whoever waits by then.
                    if Task.isCancelled { return .cancelled }
                    var provider = state.providers.removeValue(forKey: origin) ?? Provider()
                    defer { state.providers[origin] = provider }
                    if provider.hasRoom(for: urgency, limits) {
                        provider.take(urgency)
                        return .taken
                    }
                    if provider.waiting >= limits.waiting { return .full }
                    let waiter = Waiter(ticket: ticket, pause: pause, continuation: continuation)
                    switch urgency {
                    case .caller: provider.callers.append(waiter, of: tenant)
                    case .background: provider.background.append(waiter, of: tenant)
                    }
                    return nil
                }
                if let settled { continuation.resume(returning: settled) }
            }
        } onCancel: {
            leave(urgency, at: origin, ticket, tenant)
        }
    }

    private func leave(_ urgency: Urgency, at origin: String, _ ticket: UInt64, _ tenant: TenantName) {
        let left = state.withLock { state -> Waiter? in
            guard var provider = state.providers.removeValue(forKey: origin) else { return nil }
            // Somebody holds a place, or there would be no line.
            defer { state.providers[origin] = provider }
            return switch urgency {
            case .caller: provider.callers.remove(ticket, of: tenant)
            case .background: provider.background.remove(ticket, of: tenant)
            }
        }
        left?.continuation.resume(returning: .cancelled)
    }

    private func giveBack(_ urgency: Urgency, at origin: String) {
        let settled = state.withLock { state -> [(Waiter, Outcome)] in
            guard var provider = state.providers.removeValue(forKey: origin) else { return [] }
            provider.giveBack(urgency)
            let settled = hand(out: &provider)
            if !provider.isUnused { state.providers[origin] = provider }
            return settled
        }
        for (waiter, outcome) in settled { waiter.continuation.resume(returning: outcome) }
    }

    /// Gives free places to those who are next, and turns those away whose client has been asked for patience
    /// meanwhile.
    private func hand(out provider: inout Provider) -> [(Waiter, Outcome)] {
        var settled: [(Waiter, Outcome)] = []
        let now = time.monotonic
        while let (waiter, urgency) = provider.next(limits) {
            if let pause = waiter.pause, let remaining = pauses.remaining(pause, now: now) {
                settled.append((waiter, .paused(remaining)))
            } else {
                provider.take(urgency)
                settled.append((waiter, .taken))
            }
        }
        return settled
    }
}

/// First in, first out; both in constant time, on average.
private struct Queue<Element> {
    private var elements: [Element] = []
    private var head = 0

    var count: Int { elements.count - head }

    mutating func append(_ element: Element) { elements.append(element) }

    mutating func popFirst() -> Element? {
        guard head < elements.count else { return nil }
        let element = elements[head]
        head += 1
        if head > 32, head * 2 > elements.count {
            elements.removeFirst(head)
            head = 0
        }
        return element
    }

    mutating func keep(where isKept: (Element) -> Bool) {
        elements = elements[head...].filter(isKept)
        head = 0
    }
}
