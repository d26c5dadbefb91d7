import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import HTTPCodec
import OAuth
import Reactor
import Synchronization
import Testing
import TokenBroker

/// Two replicas at one database. The database's clock, and the provider's, are right; the first replica's machine has its
/// wall clock set.
@Suite struct `A replica whose wall clock is set` {
    /// The tokens that the provider has granted, and when they expire.
    private final class Provider: Sendable {
        private let time: ManualTime
        private let ends = Mutex<[String: Timestamp]>([:])

        static let lifetime = 40

        init(_ time: ManualTime) {
            self.time = time
        }

        func grant() -> ScriptedTransport.Step {
            let end = time.now.advanced(by: .seconds(Self.lifetime))
            let number = ends.withLock { ends in
                ends["access-\(ends.count + 1)"] = end
                return ends.count
            }
            return .json(
                200,
                BrokerHarness.token(
                    "access-\(number)", refresh: "refresh-\(number)", expiresIn: Self.lifetime, scope: "r_usr"))
        }

        func end(of token: String) -> Timestamp? { ends.withLock { $0[token] } }

        var count: Int { ends.withLock { $0.count } }
    }

    /// By how much the time may be off, since clocks are read in whole milliseconds.
    private static let rounding: Duration = .milliseconds(2)

    private struct Cluster {
        let time: ManualTime
        let machines: [MachineTime]
        let clocks: [SharedTime]
        let stores: [FaultyStore]
        let replicas: [BrokerHarness]
        let provider: Provider

        /// - Parameters:
        ///   - lead: by how much the first one's wall clock is wrong when it starts.
        ///   - skipsSleeps: whether a sleep moves the time on. Then a machine that is busy may see any time pass in a renewal.
        init(ahead lead: Duration = .zero, skipsSleeps: Bool = true) async throws {
            let time = ManualTime(skipsSleeps: skipsSleeps)
            self.time = time
            let provider = Provider(time)
            let transport = ScriptedTransport()
            transport.always(.decide { _ in provider.grant() })
            let records = MemoryRecordStore { time.monotonic }
            machines = [MachineTime(time, ahead: lead), MachineTime(time)]
            clocks = machines.map { SharedTime($0) }
            stores = machines.map { _ in FaultyStore(records, revalidateAfter: .seconds(5), time: time) }
            var replicas: [BrokerHarness] = []
            for (store, clock) in zip(stores, clocks) {
                replicas.append(
                    try await BrokerHarness(store: store, transport: transport, time: time, brokerTime: clock))
            }
            self.replicas = replicas
            self.provider = provider
            await measure()
            await replicas[0].makeTenant("t1", "{" + BrokerHarness.oidc + #""client_id": "c1", "client_secret": "s1"}"#)
        }

        /// What each replica does every five seconds. A database that is away says nothing.
        func measure() async {
            for (clock, replica) in zip(clocks, replicas) { _ = try? await clock.adjust(by: replica.vault) }
        }

        func setAway(_ isAway: Bool) {
            for store in stores { store.setDown(isAway) }
        }

        /// Asks each replica; none may serve what has expired, or say another end of it.
        /// - Returns: how many served a user's token.
        func ask(_ query: String = "min_ttl=0") async -> Int {
            var served = 0
            for replica in replicas {
                let answer = await replica.get(query)
                // The next replica would wait for a renewal that goes on here, and the test's time does not.
                await replica.broker.core.renewer.finish()
                guard answer.status == 200, let token = answer.token else { continue }
                served += 1
                let end = provider.end(of: token)
                #expect(
                    end.map { $0.advanced(by: `A replica whose wall clock is set`.rounding) > time.now } == true,
                    "\(token) has expired")
                // It is told in whole seconds, and counts from when the provider was asked: the clock may have moved by one of
                // the test's seconds during a renewal that no caller waited for.
                let rounding = `A replica whose wall clock is set`.rounding
                let ends = [.seconds(-1) - rounding, .seconds(-1), .zero - rounding, .zero, rounding].map {
                    end?.advanced(by: $0).description
                }
                #expect(ends.contains(answer.json["expires"]?.text), "\(token)")
            }
            return served
        }
    }

    private func logIn(at replica: BrokerHarness) async {
        let login = await replica.beginLogin()
        #expect(await replica.callback("code=c-1&state=\(login.state)").status == 200)
    }

    /// Steps in seconds, one after another, and whether the database is away from just before each step on for 60 s.
    // H082 H088
    @Test(arguments: [[15], [-15], [-90], [3600], [15, -90], [-90, 15]], [false, true])
    func `leaves all replicas with tokens that are good`(steps: [Int], isAway: Bool) async throws {
        // What cannot be stored is tried again after a sleep.
        let cluster = try await Cluster(skipsSleeps: isAway)
        await logIn(at: cluster.replicas[0])
        #expect(await cluster.ask() == 2)
        var served = 0
        for step in steps {
            for second in 1...120 {
                cluster.time.advance(by: .seconds(1))
                if second == 3 { cluster.setAway(isAway) }
                if second == 4 { cluster.machines[0].setWallClock(by: .seconds(step)) }
                if second == 63 { cluster.setAway(false) }
                if second.isMultiple(of: 5) { await cluster.measure() }
                served += await cluster.ask()
            }
        }
        // Where the database is there, both have served a token each second.
        #expect(served >= (isAway ? 100 : 240) * steps.count)
        #expect(cluster.provider.count >= 2 * steps.count)
    }

    // H088
    @Test(arguments: [-90, 15, 3600])
    func `starts with a wrong wall clock and stores the right times`(lead: Int) async throws {
        let cluster = try await Cluster(ahead: .seconds(lead))
        await logIn(at: cluster.replicas[0])
        for _ in 0..<100 {
            #expect(await cluster.ask() == 2)
            cluster.time.advance(by: .seconds(1))
        }
    }

    /// A logout that a replica cannot hear of is served no longer than the token lives, whatever the wall clock says.
    @Test(arguments: [-3600, -90, 0, 15])
    func `serves a user who has logged out no longer than the token lives`(step: Int) async throws {
        let cluster = try await Cluster()
        await logIn(at: cluster.replicas[1])
        #expect(await cluster.ask() == 2)
        cluster.stores[0].setDown(true)
        #expect(await cluster.replicas[1].logOut().status == 204)
        cluster.machines[0].setWallClock(by: .seconds(step))
        cluster.time.advance(by: .seconds(Provider.lifetime - 1))
        #expect(await cluster.replicas[0].get("min_ttl=0").token == "access-1")
        for _ in 0..<5 {
            cluster.time.advance(by: .seconds(1))
            let answer = await cluster.replicas[0].get("min_ttl=0")
            #expect((answer.status, answer.code) == (503, "storage_unavailable"))
        }
        cluster.stores[0].setDown(false)
        #expect(await cluster.replicas[0].status().isLoggedIn == false)
    }

    // H088
    @Test(arguments: [86_400, -86_400])
    func `removes from the store only what has expired by the database's clock`(step: Int) async throws {
        let cluster = try await Cluster()
        let login = await cluster.replicas[0].beginLogin()
        cluster.machines[0].setWallClock(by: .seconds(step))
        let expiring = try await cluster.replicas[0].vault.removeExpired(before: cluster.clocks[0].now, limit: 100)
        #expect(expiring == 0)
        let status = await cluster.replicas[1].call(.get, "/login/\(login.id)", tenant: "t1")
        #expect(status.json["status"]?.text == "pending")
    }

    // MARK: The embedded store

    /// The store of one process has no clock of its own.
    // H082
    @Test(arguments: [[15], [-90], [15, -90], [-90, 15], [3600, -3600]])
    func `serves no expired token from a store of its own`(steps: [Int]) async throws {
        let time = ManualTime(skipsSleeps: false)
        let machine = MachineTime(time)
        let provider = Provider(time)
        let clock = SharedTime(machine)
        let broker = try await BrokerHarness(time: time, brokerTime: clock)
        broker.transport.always(.decide { _ in provider.grant() })
        await broker.makeTenant("t1", "{" + BrokerHarness.oidc + #""client_id": "c1", "client_secret": "s1"}"#)
        await logIn(at: broker)
        for step in steps {
            for second in 1...120 {
                time.advance(by: .seconds(1))
                if second == 4 { machine.setWallClock(by: .seconds(step)) }
                if second.isMultiple(of: 5) { _ = try await clock.adjust(by: broker.vault) }
                let answer = await broker.get("min_ttl=0")
                // The test's time does not pass while a renewal goes on.
                await broker.broker.core.renewer.finish()
                let token = try #require(answer.token)
                #expect(provider.end(of: token).map { $0 > time.now } == true, "\(token) has expired")
            }
        }
    }
}
