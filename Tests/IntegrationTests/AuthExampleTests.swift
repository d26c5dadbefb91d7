import BrokerTesting
import DevelopmentProvider
import HTTPCodec
import Testing

/// The library's example, run as the program that it is.
@Suite(.timeLimit(.minutes(2))) struct `The library's example` {
    @Test func `logs a user in, keeps them for a second run, and logs them out`() async throws {
        let directory = StoreFixtureDirectory()
        let provider = try RunningProvider(
            ProviderConfiguration(
                profile: .tidal, clients: [ProviderClient("example", secret: nil, scopes: ["r_usr"])]))
        let browser = try BrokerClient(port: 1)
        let arguments = [
            BrokerProcess.program("auth-example"), "example", provider.baseURL, provider.baseURL + "/v1",
            directory.path,
        ]
        let first = try await TestProcess.start(arguments)
        let line = try await first.line { $0.hasPrefix("open ") }
        let code = try #require(line.split(separator: " ").last)
        #expect(line.hasPrefix("open \(provider.baseURL)/link "))
        let approved = try await browser.call(
            .post, provider.baseURL + "/link", key: nil,
            body: FormEncoding.encode([
                .init("user_code", String(code)), .init("user", "alice"), .init("decision", "approve"),
            ]), fields: ["Content-Type": "application/x-www-form-urlencoded"])
        #expect(approved.status == 200)
        let user = try await first.line { $0.hasPrefix("user ") }
        #expect(user.contains("level user"))
        #expect(await first.exitStatus() == 0)

        let second = try await TestProcess.start(arguments)
        #expect(
            try await second.line { $0.hasPrefix("user ") }.split(separator: ",")[0] == user.split(separator: ",")[0])
        #expect(await second.exitStatus() == 0)

        let third = try await TestProcess.start(arguments + ["logout"])
        _ = try await third.line { $0 == "logged out" }
        #expect(await third.exitStatus() == 0)

        let fourth = try await TestProcess.start(arguments)
        _ = try await fourth.line { $0.hasPrefix("open ") }
        #expect(await fourth.terminate() != 0)
        await browser.close()
        await provider.close()
    }
}
