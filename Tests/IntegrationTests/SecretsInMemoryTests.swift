import BrokerTesting
import DevelopmentProvider
import Glibc
import HTTPCodec
import JSON
import Reactor
import Testing

/// What a process still has in its memory of secrets that it was told to forget.
@Suite(
    .timeLimit(.minutes(3)),
    .enabled(if: geteuid() == 0, "the kernel shows the memory of a process without core dumps to root alone"))
struct `Secrets in memory` {
    private let directory = StoreFixtureDirectory()

    @Test func `no copy of a token is left in memory after the logout`() async throws {
        let provider = try RunningProvider(
            ProviderConfiguration(profile: .tidal, clients: [ProviderClient("the app", scopes: ["r_usr"])]))
        let port = try PostgresServer.freePort()
        let process = try await BrokerProcess.start(
            port: port, ["DATA_DIR": directory.path, "ALLOW_INSECURE_PROVIDERS": "true"])
        let broker = try BrokerClient(port: port)
        try await broker.makeTenant(at: provider)

        // A token by each way in: a login's answer, a refresh's answer, a caller's request.
        try await broker.logIn(at: provider)
        var tokens = [try await token(broker)]
        tokens.append(try await token(broker, "&policy=local_force_refresh"))
        let given = ["access-token", "refresh-token"].map { "\($0)-of-a-caller-\(UInt64.random(in: .min ... .max))" }
        let set = try await broker.call(
            .put, "/credentials", tenant: "t1",
            body: #"""
                {"storage_key": "bob", "refresh_token": "\#(given[1])", "credentials":
                 {"client_id": "the app", "user_id": "7", "token": "\#(given[0])", "expires": "2099-01-01T00:00:00Z"}}
                """#)
        #expect(set.status == 200)
        // Answers that come again are kept ready to be sent.
        for _ in 0..<50 {
            #expect(try await token(broker, "&storage_key=bob") == given[0])
            _ = try await token(broker)
        }
        tokens += given
        for token in [tokens[1], tokens[2]] { #expect(try occurrences(of: token, in: process) > 0) }

        for storageKey in ["default", "bob"] {
            let answer = try await broker.call(.delete, "/credentials?storage_key=\(storageKey)", tenant: "t1")
            #expect(answer.status == 204)
        }
        // Buffers that stay in use are overwritten twice a second.
        let end = MonotonicInstant.now.advanced(by: .seconds(15))
        var left = tokens
        while !left.isEmpty, MonotonicInstant.now < end {
            try await Task.sleep(for: .milliseconds(100))
            left = try left.filter { try occurrences(of: $0, in: process) > 0 }
        }
        #expect(left.isEmpty)

        await broker.close()
        #expect(await process.terminate() == 0)
        await provider.close()
    }

    private func token(_ broker: BrokerClient, _ query: String = "") async throws -> String {
        let answer = try await broker.call(.get, "/credentials?level=user\(query)", tenant: "t1")
        #expect(answer.status == 200)
        return try #require(answer.json["token"]?.text)
    }

    private func occurrences(of token: String, in process: TestProcess) throws -> Int {
        try process.occurrences(of: Array(token.utf8))
    }
}
