import BrokerTesting
import Cryptography
import DevelopmentProvider
import ExternalText
import FoundationEssentials
import HTTPCodec
import JSON
import Reactor

/// Three replicas as processes, their database, their provider, and what stands between them.
struct ChaosCluster {
    /// The longest a call to the provider may take, by the brokers' configuration.
    static let providerTimeoutSeconds = 2
    /// How long the provider takes a refresh token that was used already.
    static let grace: Duration = .seconds(10)

    let settings: ChaosSettings
    let postgres: PostgresServer
    /// In transaction mode, before the database of the replica in the middle.
    private let pooler: PgBouncerServer
    let provider: RunningProvider
    let replicas: [ChaosReplica]
    /// By replica.
    let relays: [ChaosRelay]
    let listenRelays: [ChaosRelay]
    let records = ChaosRecords()
    /// Minutes that a replica's clock is off.
    let offsets: [Int: Int]
    /// The replicas that hear of nothing, and look for changes themselves.
    let polling: Set<Int>
    private let directories: StoreFixtureDirectory
    private let loop: EventLoop

    struct Failure: Error, CustomStringConvertible {
        let description: String
    }

    private static let fakeTime = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"

    /// Starts everything, runs `body`, and ends everything.
    /// - Parameter lifetime: of access tokens.
    static func run(
        _ settings: ChaosSettings, lifetime: Duration, _ body: (ChaosCluster) async throws -> Void
    ) async throws {
        let cluster = try await ChaosCluster(settings, lifetime: lifetime)
        let result: Result<Void, any Error>
        do {
            for relay in cluster.relays + cluster.listenRelays { await relay.start() }
            try await cluster.startReplicas()
            try await cluster.makeTenants()
            result = .success(try await body(cluster))
        } catch {
            result = .failure(error)
        }
        await cluster.close()
        try result.get()
    }

    private init(_ settings: ChaosSettings, lifetime: Duration) async throws {
        self.settings = settings
        postgres = try PostgresServer()
        let database = try await postgres.makeDatabase()
        pooler = try await PgBouncerServer.start(before: postgres)
        var configuration = ProviderConfiguration(
            profile: .tidal, clients: [ProviderClient("app", secret: nil, scopes: ["r_usr"])])
        configuration.rotation = .rotate(grace: Self.grace)
        configuration.accessTokenLifetime = lifetime
        configuration.capacity = 2_000_000
        provider = try RunningProvider(configuration)
        loop = try EventLoop(name: "chaos-relays")
        directories = StoreFixtureDirectory()
        var generator = SplitMix64(seed: settings.seed)
        let sign = Bool.random(using: &generator) ? 1 : -1
        let minutes = Int.random(in: 2...10, using: &generator) * sign
        // Behind a pooler there may be no other way to the database, and no notifications then.
        polling = Int.random(in: 0..<4, using: &generator) == 0 ? [1] : []
        offsets = settings.faults.contains(.clock) ? [ChaosSettings.replicas - 1: minutes] : [:]
        if !offsets.isEmpty, !FileManager.default.fileExists(atPath: Self.fakeTime) {
            throw Failure(description: "\(Self.fakeTime) is missing (Debian: faketime, which Deploy/test installs)")
        }
        var relays: [ChaosRelay] = []
        var listenRelays: [ChaosRelay] = []
        var replicas: [ChaosReplica] = []
        // Each byte through a relay costs this process time, which a measurement is not to pay for nothing.
        let needsRelays = !settings.faults.isDisjoint(with: [.cut, .listen])
        for index in 0..<ChaosSettings.replicas {
            let isPooled = index == 1
            let relay = try ChaosRelay(to: isPooled ? pooler.port : postgres.port, on: loop)
            let listenRelay = try ChaosRelay(to: postgres.port, on: loop)
            relays.append(relay)
            listenRelays.append(listenRelay)
            let port = try PostgresServer.freePort()
            let journal = directories.path + "/journal-\(index)"
            try FileManager.default.createDirectory(
                atPath: journal, withIntermediateDirectories: true, attributes: [.posixPermissions: 0o700])
            let listenURL = postgres.uri(database: database, port: needsRelays ? listenRelay.port : nil)
            let variables = [
                "LISTEN": "127.0.0.1:\(port)", "ADMIN_KEY": BrokerHarness.adminKey,
                "MASTER_KEYS": BrokerHarness.masterKeys, "ALLOW_INSECURE_PROVIDERS": "true",
                "DATABASE_URL": postgres.uri(
                    database: database, port: needsRelays ? relay.port : isPooled ? pooler.port : nil),
                "DATABASE_POOLER": "\(isPooled)", "DATABASE_LISTEN_URL": polling.contains(index) ? "" : listenURL,
                "DATABASE_CONNECTIONS": "8", "JOURNAL_DIR": journal, "SHUTDOWN_GRACE": "5",
                "PROVIDER_TIMEOUT": "\(Self.providerTimeoutSeconds)", "EVENT_LOOPS": "2",
            ]
            var preload: [String: String] = [:]
            if let minutes = offsets[index] {
                // The monotonic clock stays: timeouts and leases are not what is tried here.
                preload = [
                    "LD_PRELOAD": Self.fakeTime, "FAKETIME": "\(minutes < 0 ? "" : "+")\(minutes)m",
                    "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                ]
            }
            replicas.append(try ChaosReplica(index: index, port: port, variables: variables, preload: preload))
        }
        self.relays = relays
        self.listenRelays = listenRelays
        self.replicas = replicas
    }

    private func startReplicas() async throws {
        // The first one makes the tables, so that the others do not wait for each other's locks.
        try await replicas[0].start()
        for replica in replicas.dropFirst() { try await replica.start() }
        try await waitUntilReady(within: .seconds(60))
    }

    private func makeTenants() async throws {
        for tenant in 0..<tenantCount {
            let answer = try await replicas[0].client.call(
                .put, "/tenants/\(Self.tenantName(tenant))",
                body: #"""
                    {"client_id": "app", "scopes": ["r_usr"], "login_service_base_uri": "\#(provider.baseURL)",
                     "auth_service_base_uri": "\#(provider.baseURL)/v1"}
                    """#)
            guard answer.status < 300 else { throw Failure(description: answer.text) }
        }
    }

    func close() async {
        for replica in replicas { await replica.close() }
        for relay in relays + listenRelays { await relay.close() }
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

    /// What stands for a user in the brokers' logs.
    static func digest(_ user: Int) -> String {
        Hex.encode(Array(SHA256.digest(Array(storageKey(user).utf8)).prefix(6)))
    }

    // MARK: Calls

    /// Asks that replica for the user's token and writes down what came of it.
    @discardableResult
    func read(_ user: Int, at replica: Int) async -> Read {
        var read = Read(user: user, replica: replica, begun: rightNow())
        do {
            let answer = try await replicas[replica].client.call(
                .get, "/credentials?storage_key=\(Self.storageKey(user))", tenant: tenant(of: user))
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
        read.token = token.hashValue
        if let record = provider.provider.introspect(accessToken: token) {
            read.family = record.family
            read.expiresAt = record.expiresAt
        }
    }

    private static func version(_ answer: BrokerHarness.Answer) -> Int64? {
        (answer.fields["ETag"]?.text).flatMap { Int64($0.filter(\.isNumber)) }
    }

    /// Stores a new session of the user, at one replica after the other until one says that it has.
    /// - Parameter isExpired: whether its access token counts as expired from the start.
    func logIn(_ user: Int, isExpired: Bool = false, first: Int, until deadline: MonotonicInstant) async throws {
        let place = records.begin(Write(user: user, kind: .login, begun: rightNow()))
        try await retry(first: first, until: deadline, what: "login of user \(user)") { replica in
            guard let session = provider.provider.openSessions(users: [Self.userName(user)])?.first,
                let refreshToken = session.refreshToken,
                let family = provider.provider.introspect(accessToken: session.accessToken)?.family
            else { throw Failure(description: "no session") }
            records.change(place) { $0.families.append(family) }
            let expires = Date(timeIntervalSinceNow: isExpired ? -60 : Double(session.expiresIn))
            let answer = try await replicas[replica].client.call(
                .put, "/credentials", tenant: tenant(of: user),
                body: #"""
                    {"storage_key": "\#(Self.storageKey(user))", "refresh_token": "\#(refreshToken)",
                     "credentials": {"client_id": "app", "user_id": "\#(session.user.id)", "granted_scopes": ["r_usr"],
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

    private func retry(
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

    /// Returns once every replica says that it is ready.
    func waitUntilReady(within time: Duration) async throws {
        let deadline = MonotonicInstant.after(time)
        for replica in replicas {
            while await !replica.isReady() {
                guard MonotonicInstant.now < deadline else {
                    throw Failure(
                        description: "replica \(replica.index) is not ready after \(time):\n"
                            + (await replica.lines).suffix(5).joined(separator: "\n"))
                }
                try await Task.sleep(for: .milliseconds(50))
            }
        }
    }
}
