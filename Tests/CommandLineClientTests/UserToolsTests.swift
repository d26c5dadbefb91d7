import BrokerTesting
import Testing

/// The tools that read what `token-broker token` prints, each as it is released.
@Suite(.timeLimit(.minutes(5))) struct `Tools that read tokens` {
    private static let jwt = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiI0MiJ9.c2lnbmF0dXJl"
    private static let keys =
        #"{"AccessKeyId":"AKIA1","SecretAccessKey":"s","SessionToken":"x","Expiration":"2099-01-01T00:00:00Z"}"#

    @Test(arguments: [
        ("git", jwt), ("google", jwt), ("kubernetes", jwt), ("docker", jwt), ("aws_sso", jwt), ("aws", keys),
    ])
    func `get them from the program`(tool: String, token: String) async throws {
        let fixture = try await UserFixture()
        try await fixture.makeTenant("empty")
        try await fixture.store(token)
        let root = #filePath.split(separator: "/").dropLast(3).map { "/" + $0 }.joined()
        let process = try await TestProcess.start(
            [
                "/bin/sh", "-c", #"exec "$@" 2>&1"#, "sh", root + "/.build-tools/python/bin/python3",
                root + "/Tests/IntegrationTests/oauth-libraries/credential_tools.py", tool,
                BrokerProcess.program("token-broker"), token,
            ],
            environment: fixture.environment.merging(["PATH": "/usr/bin:/bin"]) { $1 })
        #expect(await process.exitStatus() == 0, "\(process.lines.joined(separator: "\n"))")
        #expect(process.lines.last == "ok")
        await fixture.close()
    }
}
