import BrokerCore
import BrokerTesting
import ExternalText
import OAuth
import Synchronization
import Testing

@Suite(.timeLimit(.minutes(1))) struct `Provider budget` {
    /// A budget and those who want a place of it. Each of them holds its place until the test ends its turn.
    private final class Users: Sendable {
        let budget: ProviderBudget
        let time: ManualTime
        private let state = Mutex<(begun: [String], gates: [String: Gate])>(([], [:]))

        init(places: Int = 1, waiting: Int = 20_000) {
            let time = ManualTime()
            var limits = ProviderBudget.Limits()
            limits.places = places
            limits.waiting = waiting
            self.time = time
            let metrics = Metrics()
            budget = ProviderBudget(
                limits: limits,
                health: ProviderHealths(
                    time: time, metrics: metrics, log: Log(threshold: .error, time: time) { _ in }),
                metrics: metrics)
        }

        /// The names of those who have got a place, in order.
        var begun: [String] { state.withLock { $0.begun } }

        /// Starts a request, and waits until it has a place, waits for one, or was refused.
        func ask(
            _ name: String, _ urgency: ProviderBudget.Urgency = .caller, client: String = "c1",
            at host: String = "id.example"
        ) async -> Task<BrokerError?, Never> {
            let before = budget.usage
            let settled = HTTPLatch()
            state.withLock { $0.gates[name] = Gate() }
            let task = Task {
                defer { settled.open() }
                return await self.hold(name, urgency, client: client, at: host)
            }
            while budget.usage == before, !settled.isOpen { await Task.yield() }
            return task
        }

        /// Asks for a place and holds it until the turn is ended.
        /// - Parameter name: the tenant's name with whatever behind a dash.
        func hold(
            _ name: String, _ urgency: ProviderBudget.Urgency = .caller, client: String = "c1",
            at host: String = "id.example", mayWait: Bool = true
        ) async -> BrokerError? {
            do throws(BrokerError) {
                try await budget.withPlace(
                    for: Self.client(client), at: Self.server(host), of: Self.tenant(name), urgency, mayWait: mayWait
                ) { () async throws(BrokerError) in
                    guard
                        let gate = self.state.withLock({ state in
                            state.begun.append(name)
                            return state.gates[name]
                        })
                    else { return }
                    gate.arrive()
                    await gate.opened()
                }
                return nil
            } catch {
                return error
            }
        }

        /// Ends the turn of one who has a place or will have one.
        func end(_ name: String) async {
            guard let gate = state.withLock({ $0.gates[name] }) else { return }
            await gate.arrivals()
            gate.open()
        }

        static func server(_ host: String) -> AuthorizationServer {
            AuthorizationServer(
                preset: .oidc, authorizationEndpoint: "https://\(host)/authorize",
                tokenEndpoint: "https://\(host)/token",
                revocationEndpoint: nil, issuer: nil, announcesIssuerInResponses: false, clientAuthentication: .none,
                pinnedCertificates: [])
        }

        static func client(_ id: String) -> ClientConfiguration {
            ClientConfiguration(clientID: WireText(id), clientSecret: nil, clientUniqueKey: nil, scopes: .empty)
        }

        private static func tenant(_ name: String) -> TenantName {
            TenantName(String(name.prefix { $0 != "-" }))!
        }
    }

    // H090
    @Test(arguments: [1, 2, 16])
    func `has so many places at each provider`(places: Int) async {
        let users = Users(places: places)
        var tasks: [Task<BrokerError?, Never>] = []
        for number in 0...places { tasks.append(await users.ask("a-\(number)")) }
        #expect(users.budget.usage == .init(inUse: places, waiting: 1))
        tasks.append(await users.ask("b", at: "other.example"))
        #expect(users.budget.usage == .init(inUse: places + 1, waiting: 1))
        // Another port is another origin, another path is not.
        tasks.append(await users.ask("c", at: "id.example:8443"))
        tasks.append(await users.ask("d", at: "id.example/realm"))
        #expect(users.budget.usage == .init(inUse: places + 2, waiting: 2))
        for name in (0...places).map({ "a-\($0)" }) + ["b", "c", "d"] { await users.end(name) }
        for task in tasks { #expect(await task.value == nil) }
        #expect(users.budget.usage == .init(inUse: 0, waiting: 0))
    }

    // H027
    @Test(
        arguments: [
            (["a-1", "a-2", "a-3"], ["a-1", "a-2", "a-3"]),
            (["a-1", "a-2", "a-3", "b-1", "c-1", "c-2"], ["a-1", "b-1", "c-1", "a-2", "c-2", "a-3"]),
            (["a-1", "b-1", "b-2", "a-2"], ["a-1", "b-1", "a-2", "b-2"]),
        ])
    func `serves the tenants in turn and each in order`(asked: [String], served: [String]) async {
        let users = Users()
        var tasks = [await users.ask("z")]
        for name in asked { tasks.append(await users.ask(name)) }
        for name in ["z"] + served { await users.end(name) }
        for task in tasks { #expect(await task.value == nil) }
        #expect(users.begun == ["z"] + served)
    }

    @Test func `one who may not wait has a free place or none`() async {
        let users = Users(places: 1)
        #expect(await users.hold("a-1", mayWait: false) == nil)
        let holder = await users.ask("b-1")
        #expect(await users.hold("a-2", mayWait: false)?.code == .retryableError)
        #expect(users.budget.usage == .init(inUse: 1, waiting: 0))
        await users.end("b-1")
        #expect(await holder.value == nil)
        #expect(await users.hold("a-3", mayWait: false) == nil)
        #expect(users.begun == ["a-1", "b-1", "a-3"])
    }

    @Test func `one who is cancelled leaves the queue`() async {
        let users = Users()
        let first = await users.ask("a-1")
        let second = await users.ask("a-2")
        let third = await users.ask("a-3")
        second.cancel()
        #expect(await second.value?.code == .retryableError)
        #expect(users.budget.usage == .init(inUse: 1, waiting: 1))
        for name in ["a-1", "a-3"] { await users.end(name) }
        #expect(await (first.value, third.value) == (nil, nil))
        #expect(users.begun == ["a-1", "a-3"])
        #expect(users.budget.usage == .init(inUse: 0, waiting: 0))
    }

    @Test func `one who was cancelled before does not wait`() async {
        let users = Users()
        let first = await users.ask("a-1")
        let gate = Gate()
        let second = Task {
            await gate.opened()
            return await users.hold("a-2")
        }
        second.cancel()
        gate.open()
        #expect(await second.value?.code == .retryableError)
        #expect(users.budget.usage == .init(inUse: 1, waiting: 0))
        await users.end("a-1")
        #expect(await first.value == nil)
    }

    @Test(arguments: [0, 1, 3])
    func `refuses who would wait behind too many`(waiting: Int) async {
        let users = Users(waiting: waiting)
        var tasks: [Task<BrokerError?, Never>] = []
        for number in 0...waiting { tasks.append(await users.ask("a-\(number)")) }
        let refused = await users.ask("a-more").value
        #expect(refused?.code == .retryableError)
        #expect(refused?.retryAfter == 5)
        #expect(users.budget.usage == .init(inUse: 1, waiting: waiting))
        for number in 0...waiting { await users.end("a-\(number)") }
        for task in tasks { #expect(await task.value == nil) }
    }

    @Test func `a tenant that fills the queue leaves the others their share of it`() async {
        let users = Users(waiting: 4)
        for index in 0..<5 { _ = await users.ask("a-\(index)") }
        #expect(await users.hold("a-5")?.code == .retryableError)
        for index in 0..<2 { _ = await users.ask("b-\(index)") }
        #expect(await users.hold("b-2")?.code == .retryableError)
        #expect(await users.hold("a-6")?.code == .retryableError)
        #expect(users.budget.usage == ProviderBudget.Usage(inUse: 1, waiting: 6))
        for name in ["a-0", "a-1", "b-0", "a-2", "b-1", "a-3", "a-4"] { await users.end(name) }
        #expect(users.begun == ["a-0", "a-1", "b-0", "a-2", "b-1", "a-3", "a-4"])
    }

    @Test func `a thousand who leave make room for others`() async {
        let users = Users(waiting: 2)
        let first = await users.ask("a-0")
        for number in 1...1000 {
            let waiter = await users.ask("a-\(number)")
            waiter.cancel()
            #expect(await waiter.value?.code == .retryableError)
        }
        let last = await users.ask("b")
        for name in ["a-0", "b"] { await users.end(name) }
        #expect(await (first.value, last.value) == (nil, nil))
    }

    // MARK: Patience

    @Test func `no call takes a place while the provider has asked for patience`() async {
        let users = Users()
        let client = Users.client("c1")
        users.budget.health.pause(
            .init(nil, of: .init(client, at: Users.server("id.example"))), for: .milliseconds(1500))
        let refused = await users.ask("a-1").value
        #expect((refused?.code, refused?.retryAfter) == (.retryableError, 2))
        // It was this client that asked too often.
        let other = await users.ask("b", client: "c2")
        await users.end("b")
        #expect(await other.value == nil)
        users.time.advance(by: .milliseconds(1500))
        let later = await users.ask("a-2")
        await users.end("a-2")
        #expect(await later.value == nil)
    }

    @Test func `those who wait are turned away when it has`() async {
        let users = Users()
        let first = await users.ask("a-1")
        let second = await users.ask("a-2")
        let other = await users.ask("b", client: "c2")
        let third = await users.ask("a-3")
        users.budget.health.pause(
            .init(nil, of: .init(Users.client("c1"), at: Users.server("id.example"))), for: .seconds(4))
        await users.end("a-1")
        #expect(await second.value?.retryAfter == 4)
        await users.end("b")
        #expect(await (first.value, other.value) == (nil, nil))
        #expect(await third.value?.retryAfter == 4)
        #expect(users.begun == ["a-1", "b"])
        #expect(users.budget.usage == .init(inUse: 0, waiting: 0))
    }

    // MARK: Renewals without a waiting caller

    @Test(arguments: [(1, 1), (2, 1), (3, 1), (4, 2), (16, 8)])
    func `those in the background have half of the places`(places: Int, half: Int) async {
        let users = Users(places: places)
        var tasks: [Task<BrokerError?, Never>] = []
        for number in 0...half { tasks.append(await users.ask("a-\(number)", .background)) }
        #expect(users.budget.usage == .init(inUse: half, waiting: 1))
        for number in 0...half { await users.end("a-\(number)") }
        for task in tasks { #expect(await task.value == nil) }
    }

    @Test(
        arguments: [
            (["b-1", "a-1"], ["a-1", "b-1"]), (["b-1", "a-1", "a-2", "a-3"], ["a-1", "a-2", "a-3", "b-1"]),
            (["b-1", "a-1", "a-2", "a-3", "a-4"], ["a-1", "a-2", "a-3", "b-1", "a-4"]),
            (
                ["a-1", "a-2", "a-3", "a-4", "a-5", "a-6", "a-7", "b-1", "b-2"],
                ["a-1", "a-2", "a-3", "b-1", "a-4", "a-5", "a-6", "b-2", "a-7"]
            ),
        ])
    func `those in the background come after the callers, or every fourth time`(
        asked: [String], served: [String]
    ) async {
        let users = Users()
        var tasks = [await users.ask("z")]
        for name in asked { tasks.append(await users.ask(name, name.hasPrefix("b") ? .background : .caller)) }
        for name in ["z"] + served { await users.end(name) }
        for task in tasks { #expect(await task.value == nil) }
        #expect(users.begun == ["z"] + served)
    }

    @Test func `a background call gets the place that no other call wants any more`() async {
        let users = Users(places: 2)
        var tasks = [await users.ask("a-1"), await users.ask("a-2")]
        tasks.append(await users.ask("b-1", .background))
        let leaving = await users.ask("a-3")
        leaving.cancel()
        #expect(await leaving.value?.code == .retryableError)
        await users.end("a-1")
        await users.end("b-1")
        await users.end("a-2")
        for task in tasks { #expect(await task.value == nil) }
        #expect(users.begun == ["a-1", "a-2", "b-1"])
        #expect(users.budget.usage == .init(inUse: 0, waiting: 0))
    }
}
