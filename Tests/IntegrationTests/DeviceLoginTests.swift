import BrokerTesting
import DevelopmentProvider
import ExternalText
import HTTPCodec
import JSON
import Testing

/// Device logins of the broker as a program, over real sockets.
@Suite(.timeLimit(.minutes(5)))
struct `A device login at a running broker` {
    /// What the other programs of a test share with the first one.
    private static func database() async throws -> [String: String] {
        let server = try await PostgresServer.shared.value
        return [
            "DATABASE_URL": server.uri(database: try await server.makeDatabase()),
            "MASTER_KEYS": BrokerHarness.masterKeys, "ALLOW_INSECURE_PROVIDERS": "true", "LOG_LEVEL": "debug",
        ]
    }

    private static func start(_ variables: [String: String]) async throws -> (TestProcess, BrokerClient) {
        let port = try PostgresServer.freePort()
        return (try await BrokerProcess.start(port: port, variables), try BrokerClient(port: port))
    }

    /// A takeover in the middle of a poll takes half a minute, so that two waits are more than enough.
    private static func waitForEnd(_ handle: String, _ broker: BrokerClient) async throws -> BrokerHarness.Answer {
        let answer = try await broker.call(.get, "/device/\(handle)?wait=60", tenant: "t1")
        guard answer.json["status"]?.string == "pending" else { return answer }
        return try await broker.call(.get, "/device/\(handle)?wait=60", tenant: "t1")
    }

    /// Types the user code into the provider's page.
    private static func approve(_ userCode: String, at provider: RunningProvider, _ client: BrokerClient) async throws {
        let page = try await client.call(
            .post, provider.baseURL + "/link", key: nil,
            body: FormEncoding.encode([
                .init("user_code", userCode), .init("user", "alice"), .init("decision", "approve"),
            ]),
            fields: ["Content-Type": "application/x-www-form-urlencoded"])
        #expect(page.status == 200, "\(page.text)")
    }

    private static func provider(_ profile: ProviderProfile) throws -> RunningProvider {
        var configuration = ProviderConfiguration(
            profile: profile, clients: [ProviderClient("app", secret: nil, scopes: ["r_usr"])])
        configuration.deviceInterval = .seconds(1)
        configuration.slowsDownEagerPolls = true
        return try RunningProvider(configuration)
    }

    private static func makeTenant(
        _ profile: ProviderProfile, at provider: RunningProvider, _ broker: BrokerClient
    ) async throws {
        switch profile {
        case .tidal: try await broker.makeTenant(at: provider)
        case .rfc:
            let answer = try await broker.call(
                .put, "/tenants/t1",
                body: #"{"client_id": "app", "provider": "oidc", "issuer": "\#(provider.baseURL)"}"#)
            #expect(answer.status == 201, "\(answer.text)")
        case .duckduckgo, .authgear: Issue.record("this profile has no device login")
        }
    }

    @Test(arguments: ProviderProfile.withLoginPage)
    func `is completed by another broker when the one that polls is killed`(profile: ProviderProfile) async throws {
        let provider = try Self.provider(profile)
        let variables = try await Self.database()
        let (first, firstClient) = try await Self.start(variables)
        let (second, secondClient) = try await Self.start(variables)
        try await Self.makeTenant(profile, at: provider, firstClient)

        let begun = try await firstClient.call(.post, "/device", tenant: "t1")
        #expect(begun.status == 201, "\(begun.text)")
        let handle = try #require(begun.json["device_code"]?.text)
        let userCode = try #require(begun.json["user_code"]?.text)
        let address = try #require(begun.json["verification_uri"]?.text)
        #expect(address.hasSuffix("/link") && address.contains("://"))
        _ = try await first.line { $0.contains(#""event":"device_poll_answered""#) }
        await first.kill()
        let polls = { provider.provider.requests.filter { $0.grant == GrantType.deviceCode.rawValue } }
        let before = polls().count

        try await Self.approve(userCode, at: provider, secondClient)
        let ended = try await Self.waitForEnd(handle, secondClient)
        #expect(ended.text == #"{"status":"completed"}"#)
        let answer = try await secondClient.call(.get, "/credentials?level=user", tenant: "t1")
        let token = try #require(answer.json["token"]?.text)
        #expect(provider.provider.introspect(accessToken: token)?.user == EndToEnd.user)

        #expect(polls().count == before + 1)
        let times = polls().map(\.receivedAt)
        #expect(zip(times, times.dropFirst()).allSatisfy { $1 - $0 >= 1000 })
        #expect(polls().allSatisfy { $0.error != "slow_down" })
        for line in second.lines { #expect(!line.contains(token) && !line.contains(handle), "\(line)") }
        #expect(await second.terminate() == 0)
        await provider.close()
    }

    @Test func `goes on when the only broker is killed and started again`() async throws {
        let provider = try Self.provider(.tidal)
        let directory = StoreFixtureDirectory()
        let variables = [
            "DATA_DIR": directory.path, "MASTER_KEYS": BrokerHarness.masterKeys, "ALLOW_INSECURE_PROVIDERS": "true",
            "LOG_LEVEL": "debug",
        ]
        let (first, firstClient) = try await Self.start(variables)
        try await Self.makeTenant(.tidal, at: provider, firstClient)
        let begun = try await firstClient.call(.post, "/device", tenant: "t1")
        let handle = try #require(begun.json["device_code"]?.text)
        _ = try await first.line { $0.contains(#""event":"device_poll_answered""#) }
        await first.kill()

        let (second, secondClient) = try await Self.start(variables)
        try await Self.approve(try #require(begun.json["user_code"]?.text), at: provider, secondClient)
        #expect(try await Self.waitForEnd(handle, secondClient).text == #"{"status":"completed"}"#)
        #expect(try await secondClient.call(.get, "/credentials", tenant: "t1").json["level"]?.string == "user")
        #expect(await second.terminate() == 0)
        await provider.close()
    }

    @Test func `is told within about a second by a broker that does not poll`() async throws {
        let provider = try Self.provider(.rfc)
        let variables = try await Self.database()
        let (first, firstClient) = try await Self.start(variables)
        let (second, secondClient) = try await Self.start(variables)
        try await Self.makeTenant(.rfc, at: provider, firstClient)
        let begun = try await firstClient.call(.post, "/device", tenant: "t1")
        let handle = try #require(begun.json["device_code"]?.text)
        async let waiting = Self.waitForEnd(handle, secondClient)
        try await Self.approve(try #require(begun.json["user_code"]?.text), at: provider, firstClient)
        _ = try await first.line { $0.contains(#""event":"login_completed""#) }
        let completed = ContinuousClock.now
        #expect(try await waiting.text == #"{"status":"completed"}"#)
        // It takes a second, and more on a busy machine; untold, the caller would wait for a minute.
        #expect(completed.duration(to: .now) < .seconds(20))
        #expect(await first.terminate() == 0)
        #expect(await second.terminate() == 0)
        await provider.close()
    }

    @Test func `goes through Glewlwyd`() async throws {
        var options = GlewlwydServer.Options(redirectURIs: ["http://127.0.0.1/unused"])
        options.speaksTLS = true
        options.deviceInterval = 1
        let provider = try await GlewlwydServer.start(options)
        var variables = try await Self.database()
        variables["TRUSTED_CA_FILE"] = provider.certificateAuthorityFile
        let (process, broker) = try await Self.start(variables)
        let tenant = try await broker.call(.put, "/tenants/t1", body: provider.tenant)
        #expect(tenant.status == 201, "\(tenant.text)")

        let begun = try await broker.call(.post, "/device", tenant: "t1", body: #"{"storage_key": "u1"}"#)
        #expect(begun.status == 201, "\(begun.text)")
        let handle = try #require(begun.json["device_code"]?.text)
        // The user takes longer than one poll.
        _ = try await process.line { $0.contains(#""event":"device_poll_answered""#) }
        try await provider.approveDevice(userCode: try #require(begun.json["user_code"]?.text))
        #expect(try await Self.waitForEnd(handle, broker).text == #"{"status":"completed"}"#)

        let first = try await broker.call(.get, "/credentials?storage_key=u1&level=user", tenant: "t1")
        #expect(first.status == 200, "\(first.text)")
        #expect(first.json["granted_scopes"] == .array([.string("music")]))
        let token = try #require(first.json["token"]?.text)
        let refreshed = try await broker.call(
            .get, "/credentials?storage_key=u1&policy=local_force_refresh", tenant: "t1")
        #expect(refreshed.json["level"]?.string == "user", "\(refreshed.text)")
        #expect(refreshed.json["token"]?.string != token)

        let secrets = [token, provider.clientSecret, handle]
        for line in process.lines { #expect(!secrets.contains { line.contains($0) }, "\(line)") }
        #expect(await process.terminate() == 0)
        await provider.stop()
    }
}
