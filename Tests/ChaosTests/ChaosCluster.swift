import BrokerTesting
import Cryptography
import DevelopmentProvider
import ExternalText
import FoundationEssentials
import HTTPCodec
import JSON
import Reactor
import Synchronization

/// Three replicas as processes, their database, their provider, and what stands between them.
struct ChaosCluster {
    /// The longest a call to the provider may take, by the brokers' configuration.
    static let providerTimeoutSeconds = 2
    let settings: ChaosSettings
    let database: ChaosDatabase
    /// The server that takes writes now.
    var postgres: PostgresServer { database.server }
    /// In transaction mode, before the database of the replicas that `ChaosSettings.pooling` says.
    private let pooler: PgBouncerServer
    let provider: RunningProvider
    let replicas: [ChaosReplica]
    /// By replica: to PgBouncer for some, to the database for the others.
    let relays: [ChaosRelay]
    let listenRelays: [ChaosRelay]
    /// Between PgBouncer and the database.
    private let poolerRelay: ChaosRelay
    /// Between all replicas and the provider.
    let providerRelay: ChaosRelay
    let records = ChaosRecords()
    let listeners: [ChaosListener]
    /// Minutes that a replica's clock is off.
    let offsets: [Int: Int]
    let changes: ChaosChanges
    /// The apps of the users who log in through one.
    let apps: [Int: ChaosApp]
    /// The replicas that hear of nothing, and look for changes themselves.
    let polling: Set<Int>
    /// What tenants know of the provider.
    private let providerURL: String
    private let directories: StoreFixtureDirectory
    private let loop: EventLoop

    struct Failure: Error, CustomStringConvertible {
        let description: String
    }

    /// Starts everything, runs `body`, and ends everything.
    /// - Parameter lifetime: of access tokens.
    static func run(
        _ settings: ChaosSettings, lifetime: Duration, _ body: (ChaosCluster) async throws -> Void
    ) async throws {
        let cluster = try await ChaosCluster(settings, lifetime: lifetime)
        let result: Result<Void, any Error>
        var listening: [Task<Void, Never>] = []
        do {
            for relay in cluster.allRelays { await relay.start() }
            try await cluster.startReplicas()
            for tenant in 0..<cluster.tenantCount { try await cluster.putTenant(tenant, until: .after(.seconds(60))) }
            try await cluster.putClients(until: .after(.seconds(60)))
            listening = await cluster.startListeners()
            result = .success(try await body(cluster))
        } catch {
            result = .failure(error)
        }
        for listener in cluster.listeners { listener.close() }
        await cluster.close()
        for task in listening { await task.value }
        try result.get()
    }

    private var allRelays: [ChaosRelay] { relays + listenRelays + [poolerRelay, providerRelay] }

    /// Leads everything that was led to the database to the server that is the database now.
    func leadToDatabase() async throws {
        let server = postgres
        guard let address = SocketAddress(numericHost: server.address, port: server.port) else {
            throw Failure(description: "not an address: \(server.address)")
        }
        for (index, relay) in relays.enumerated() where !isPooled(index) { await relay.lead(to: address) }
        for relay in listenRelays + [poolerRelay] { await relay.lead(to: address) }
    }

    private func isPooled(_ replica: Int) -> Bool { Self.isPooled(replica, settings) }

    private static func isPooled(_ replica: Int, _ settings: ChaosSettings) -> Bool {
        settings.pooling == .all || settings.pooling == .one && replica == 1
    }

    /// Returns once all of them hear of what happens.
    private func startListeners() async -> [Task<Void, Never>] {
        var tasks: [Task<Void, Never>] = []
        for listener in listeners {
            let (begun, hasBegun) = AsyncStream.makeStream(of: Void.self)
            tasks.append(Task { await listener.run { hasBegun.finish() } })
            for await _ in begun {}
        }
        return tasks
    }

    private init(_ settings: ChaosSettings, lifetime: Duration) async throws {
        changes = ChaosChanges(graceSeconds: settings.graceSeconds)
        self.settings = settings
        apps = Dictionary(
            uniqueKeysWithValues: settings.appUsers.enumerated().map { place, user in
                (user, ChaosApp(user: user, rotates: place % 3 != 2))
            })
        database = try await ChaosDatabase()
        let (postgres, name) = (database.server, database.name)
        loop = try EventLoop(name: "chaos-relays")
        poolerRelay = try ChaosRelay(to: postgres.port, on: loop)
        pooler = try await PgBouncerServer.start(
            before: postgres, by: settings.faults.contains(.failover) ? poolerRelay.port : nil)
        let scopes = ["r_usr", "w_usr"]
        var configuration = ProviderConfiguration(
            profile: .tidal,
            clients: [
                ProviderClient(ChaosChanges.publicClient, secret: nil, scopes: scopes),
                ProviderClient(ChaosChanges.secretClient, secret: changes.secret, scopes: scopes),
            ])
        configuration.rotation = .rotate(grace: .seconds(settings.graceSeconds))
        configuration.accessTokenLifetime = lifetime
        configuration.accessTokenFormat = .jwt
        configuration.capacity = 2_000_000
        provider = try RunningProvider(configuration)
        directories = StoreFixtureDirectory()
        var generator = SplitMix64(seed: settings.seed)
        let sign = Bool.random(using: &generator) ? 1 : -1
        let minutes = Int.random(in: 2...10, using: &generator) * sign
        // Behind a pooler there may be no other way to the database, and no notifications then.
        polling = Int.random(in: 0..<4, using: &generator) == 0 ? [1] : []
        offsets = settings.faults.contains(.clock) ? [ChaosSettings.replicas - 1: minutes] : [:]
        let clocks = settings.faults.contains(.step) ? Set(0..<ChaosSettings.replicas) : Set(offsets.keys)
        let clockLibrary = clocks.isEmpty ? nil : try await ChaosClock.makeLibrary(in: directories.path)
        providerRelay = try ChaosRelay(to: provider.address.port, on: loop)
        providerURL =
            settings.faults.contains(.link) ? "http://127.0.0.1:\(providerRelay.port)" : provider.baseURL
        var relays: [ChaosRelay] = []
        var listenRelays: [ChaosRelay] = []
        var replicas: [ChaosReplica] = []
        // Each byte through a relay costs this process time, which a measurement is not to pay for nothing.
        let needsRelays = !settings.faults.isDisjoint(with: [.cut, .listen, .oneway, .late, .failover])
        var firstPort: UInt16 = 0
        for index in 0..<ChaosSettings.replicas {
            let isPooled = Self.isPooled(index, settings)
            let relay = try ChaosRelay(to: isPooled ? pooler.port : postgres.port, on: loop)
            let listenRelay = try ChaosRelay(to: postgres.port, on: loop)
            relays.append(relay)
            listenRelays.append(listenRelay)
            let port = try PostgresServer.freePort()
            if index == 0 { firstPort = port }
            let journal = directories.path + "/journal-\(index)"
            try FileManager.default.createDirectory(
                atPath: journal, withIntermediateDirectories: true, attributes: [.posixPermissions: 0o700])
            let listenURL = postgres.uri(database: name, port: needsRelays ? listenRelay.port : nil)
            let variables = [
                "LISTEN": "127.0.0.1:\(port)", "ADMIN_KEY": BrokerHarness.adminKey,
                "MASTER_KEYS": changes.masterKeys, "ALLOW_INSECURE_PROVIDERS": "true",
                "DATABASE_URL": postgres.uri(
                    database: name, port: needsRelays ? relay.port : isPooled ? pooler.port : nil),
                "DATABASE_POOLER": "\(isPooled)", "DATABASE_LISTEN_URL": polling.contains(index) ? "" : listenURL,
                "DATABASE_CONNECTIONS": "8", "JOURNAL_DIR": journal, "SHUTDOWN_GRACE": "5",
                "PROVIDER_TIMEOUT": "\(Self.providerTimeoutSeconds)", "EVENT_LOOPS": "2", "RENEWAL_PATIENCE": "1",
                // A balancer would be there. The requests of apps are counted, and all of them come from one address.
                "PUBLIC_BASE_URL": "http://127.0.0.1:\(firstPort)", "APP_REQUESTS_PER_ADDRESS": "10000000",
                "APP_REQUESTS_PER_USER": "10000000",
            ]
            var clock: ChaosClock?
            if clocks.contains(index), let clockLibrary {
                clock = ChaosClock(
                    library: clockLibrary, file: directories.path + "/clock-\(index)",
                    offset: (offsets[index] ?? 0) * 60)
            }
            replicas.append(try ChaosReplica(index: index, port: port, variables: variables, clock: clock))
        }
        self.relays = relays
        self.listenRelays = listenRelays
        self.replicas = replicas
        let records = records
        listeners = [0, 2].map { ChaosListener($0, ports: replicas.map(\.port), records: records) }
    }

    private func startReplicas() async throws {
        // The first one makes the tables, so that the others do not wait for each other's locks.
        try await replicas[0].start()
        for replica in replicas.dropFirst() { try await replica.start() }
        try await waitUntilReady(within: .seconds(60))
    }

    /// Stores the tenant's configuration as `changes` has it.
    func putTenant(_ tenant: Int, first: Int = 0, until deadline: MonotonicInstant) async throws {
        try await retry(first: first, until: deadline, what: "configuration of tenant \(tenant)") { replica in
            try await replicas[replica].client.call(
                .put, "/tenants/\(Self.tenantName(tenant))", body: changes.configuration(of: tenant, at: providerURL))
        }
    }

    func close() async {
        postgres.resume()
        for replica in replicas { await replica.close() }
        for relay in allRelays { await relay.close() }
        await pooler.stop()
        await provider.close()
        loop.shutDown()
    }

    // MARK: Names

    var tenantCount: Int { settings.users < 1000 ? ChaosSettings.tenants : 20 }
    static func tenantName(_ number: Int) -> String { "t\(number)" }
    func tenant(of user: Int) -> String { Self.tenantName(user % tenantCount) }
    static func storageKey(_ user: Int) -> String { "user-\(user)" }
    static func userName(_ user: Int) -> String { "chaos-user-\(user)" }

    /// The user whose key it is.
    static func user(ofStorageKey key: String) -> Int? {
        key.hasPrefix("user-") ? Int(key.dropFirst("user-".count)) : nil
    }

    /// What stands for a user in the brokers' logs.
    static func digest(_ user: Int) -> String {
        Hex.encode(Array(SHA256.digest(Array(storageKey(user).utf8)).prefix(6)))
    }

    // MARK: Calls

    /// Whether readers take this user's token until it is nearly over.
    static func isPatient(_ user: Int) -> Bool { user % 10 == 9 }

    /// Asks that replica for the user's token and writes down what came of it.
    @discardableResult
    func read(_ user: Int, at replica: Int, isForced: Bool = false) async -> Read {
        var read = Read(user: user, replica: replica, begun: rightNow())
        var target = "/credentials?storage_key=\(Self.storageKey(user))"
        if isForced { target += "&policy=local_force_refresh" }
        if Self.isPatient(user) {
            read.wanted = 2000
            target += "&min_ttl=2"
        }
        do {
            let answer = try await replicas[replica].client.call(.get, target, tenant: tenant(of: user))
            read.ended = rightNow()
            fill(&read, answer)
        } catch {
            read.ended = rightNow()
        }
        records.add(read)
        return read
    }

    private func fill(_ read: inout Read, _ answer: BrokerHarness.Answer) {
        guard answer.status == 200 else {
            read.outcome = .refused(answer.status, answer.code ?? "")
            return
        }
        let json = answer.json
        guard json["level"]?.string == "user", let token = json["token"]?.text else {
            read.outcome = .lower
            return
        }
        read.outcome = .user
        read.version = Self.version(answer) ?? 0
        read.expiresIn = json["expires_in"]?.integer
        read.isDegraded = json["degraded"] != nil
        look(&read, token)
    }

    /// Notes what the provider knows of the token.
    func look(_ read: inout Read, _ token: String) {
        read.token = token.hashValue
        if let record = provider.provider.record(ofAccessToken: token) {
            read.family = record.family
            read.expiresAt = record.expiresAt
            read.isForeign = record.user?.name != Self.userName(read.user)
            read.isRevoked =
                provider.provider.introspect(accessToken: token) == nil && rightNow() < record.expiresAt
        }
    }

    private static func version(_ answer: BrokerHarness.Answer) -> Int64? {
        (answer.fields["ETag"]?.text).flatMap { Int64($0.filter(\.isNumber)) }
    }

    /// Stores a new session of the user, at one replica after the other until one says that it has.
    /// - Parameter isExpired: whether its access token counts as expired from the start.
    func logIn(_ user: Int, isExpired: Bool = false, first: Int, until deadline: MonotonicInstant) async throws {
        if let app = app(of: user) { return try await logIn(to: app, first: first, until: deadline) }
        let place = records.begin(Write(user: user, kind: .login, begun: rightNow()))
        try await retry(first: first, until: deadline, what: "login of user \(user)") { replica in
            let clientID = ChaosChanges.clientID(of: user % tenantCount)
            let session = provider.provider.openSessions(users: [Self.userName(user)], clientID: clientID)?.first
            guard let session,
                let refreshToken = session.refreshToken,
                let family = provider.provider.introspect(accessToken: session.accessToken)?.family
            else { throw Failure(description: "no session") }
            records.change(place) { $0.families.append(family) }
            let expires = Date(timeIntervalSinceNow: isExpired ? -60 : Double(session.expiresIn))
            let answer = try await replicas[replica].client.call(
                .put, "/credentials", tenant: tenant(of: user),
                body: #"""
                    {"storage_key": "\#(Self.storageKey(user))", "refresh_token": "\#(refreshToken)",
                     "credentials": {"client_id": "\#(clientID)", "user_id": "\#(session.user.id)", "granted_scopes": ["r_usr"],
                     "expires": "\#(expires.formatted(.iso8601))", "token": "\#(session.accessToken)"}}
                    """#)
            if answer.status == 200 {
                records.change(place) { write in
                    write.done = rightNow()
                    write.replica = replica
                    write.version = Self.version(answer)
                }
            }
            return answer
        }
    }

    func logOut(_ user: Int, first: Int, until deadline: MonotonicInstant) async throws {
        _ = try await app(of: user)?.takeForWrite()
        defer { app(of: user)?.release(nil) }
        let place = records.begin(Write(user: user, kind: .logout, begun: rightNow()))
        try await retry(first: first, until: deadline, what: "logout of user \(user)") { replica in
            let answer = try await replicas[replica].client.call(
                .delete, "/credentials?storage_key=\(Self.storageKey(user))", tenant: tenant(of: user))
            if answer.status == 204 {
                records.change(place) { write in
                    write.done = rightNow()
                    write.replica = replica
                }
            }
            return answer
        }
    }

    func retry(
        first: Int, until deadline: MonotonicInstant, what: String,
        _ attempt: (Int) async throws -> BrokerHarness.Answer
    ) async throws {
        var replica = first
        var last = ""
        while MonotonicInstant.now < deadline {
            do {
                let answer = try await attempt(replica)
                if answer.status < 300 { return }
                last = answer.text
                guard answer.status >= 500 || answer.status == 409 else { break }
            } catch let error as Failure {
                throw error
            } catch {
                last = "\(error)"
            }
            // Time for what the lost call may have begun at the database to come to its end.
            try await Task.sleep(for: .milliseconds(500))
            replica = (replica + 1) % replicas.count
        }
        throw Failure(description: "\(what) does not succeed: \(last)")
    }

    // MARK: States

    /// Reads until the user's token comes, or until it is clear that the session is over, and writes down how long after
    /// `moment` the token came. Returns false for a session that is over.
    private func recover(_ user: Int, at replica: Int, from moment: Moment, _ kinds: [FaultKind]) async -> Bool {
        let deadline = MonotonicInstant.after(.seconds(20))
        var recovery = Recovery(kinds: kinds, user: user, replica: replica, from: moment)
        var lowerReads = 0
        while recovery.took == nil, lowerReads < 40, MonotonicInstant.now < deadline {
            let read = await read(user, at: replica)
            if read.outcome == .lower { lowerReads += 1 }
            if read.outcome == .user {
                recovery.took = read.ended - moment
            } else {
                try? await Task.sleep(for: .milliseconds(25))
            }
        }
        records.add(recovery)
        return recovery.took != nil || lowerReads < 40
    }

    /// Lets every probe be read at every replica until there is a token again, and logs in anew those that were lost.
    func recover(from moment: Moment, _ kinds: [FaultKind]) async throws {
        let lost = await withTaskGroup(of: Int?.self) { group in
            for user in (settings.users - settings.probes)..<settings.users {
                for replica in 0..<replicas.count {
                    group.addTask { await recover(user, at: replica, from: moment, kinds) ? nil : user }
                }
            }
            return await group.reduce(into: Set<Int>()) { lost, user in
                if let user { lost.insert(user) }
            }
        }
        for user in lost.sorted() { try await logIn(user, first: 0, until: .after(.seconds(60))) }
    }

    /// Returns once every replica says that it is ready.
    func waitUntilReady(within time: Duration) async throws {
        let deadline = MonotonicInstant.after(time)
        for replica in replicas {
            while await !replica.isReady() {
                guard MonotonicInstant.now < deadline else {
                    throw Failure(
                        description: "replica \(replica.index) is not ready after \(time):\n"
                            + (await replica.lines).suffix(5).map(\.text).joined(separator: "\n"))
                }
                try await Task.sleep(for: .milliseconds(50))
            }
        }
    }
}
