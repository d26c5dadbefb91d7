import BrokerTesting
import DevelopmentProvider
import ExternalText
import FoundationEssentials
import HTTPCodec
import JSON
import Testing

/// Apps that use OAuth libraries from outside this project, at the program `token-broker`.
@Suite(.timeLimit(.minutes(5))) struct `OAuth libraries` {
    enum Library: String, CaseIterable {
        case authlib
        case requests
        case go
    }

    @Test(arguments: Library.allCases, [true, false])
    func `log a user in, refresh and revoke`(_ library: Library, isPublic: Bool) async throws {
        let port = try PostgresServer.freePort()
        let base = "http://127.0.0.1:\(port)"
        let provider = try RunningProvider(
            ProviderConfiguration(
                profile: .rfc,
                clients: [ProviderClient("broker", secret: "the secret", scopes: ["r_usr"])]))
        let (directory, programs) = (StoreFixtureDirectory(), StoreFixtureDirectory())
        let process = try await BrokerProcess.start(
            port: port,
            [
                "DATA_DIR": directory.path, "MASTER_KEYS": BrokerHarness.masterKeys,
                "ALLOW_INSECURE_PROVIDERS": "true", "PUBLIC_BASE_URL": base,
            ])
        let admin = try BrokerClient(port: port)
        let tenant = try await admin.call(
            .put, "/tenants/t1",
            body: #"""
                {"provider": "oidc", "issuer": "\#(provider.baseURL)", "client_id": "broker",
                 "client_secret": "the secret", "scopes": ["r_usr"]}
                """#)
        #expect(tenant.status == 201, "\(tenant.text)")
        let redirectURI = "http://127.0.0.1:7/callback"
        let secret = isPublic ? "" : "the app's s:cret"
        let registered = try await admin.call(
            .put, "/tenants/t1/clients/player",
            body: #"""
                {"redirect_uris": ["http://127.0.0.1/callback"], "storage_key": "default",
                 "client_secret": \#(isPublic ? "null" : "\"\(secret)\"")}
                """#)
        #expect(registered.status == 201, "\(registered.text)")

        let app = try await TestProcess.start(
            try await Self.command(library, in: programs.path) + [base, "player", secret, redirectURI]
                + (library == .go ? [Self.python, Self.folder + "/browser.py"] : []))
        let token = try await app.line { $0.hasPrefix("access token ") }
        let stored = try await admin.call(.get, "/credentials", tenant: "t1")
        #expect(stored.json["token"]?.text == String(token.dropFirst("access token ".count)))
        _ = try await app.line { $0 == "refreshed" }
        _ = try await app.line { $0 == "revoked" }
        #expect(await app.exitStatus() == 0)
        let sessions = try await admin.call(.get, "/tenants/t1/sessions")
        #expect(sessions.json["sessions"]?.array?.isEmpty == true)
        #expect(await process.terminate() == 0)
        await admin.close()
        await provider.close()
    }

    private static let root = #filePath.split(separator: "/").dropLast(3).map { "/" + $0 }.joined()
    private static let folder = root + "/Tests/IntegrationTests/oauth-libraries"
    private static let python = root + "/.build-tools/python/bin/python3"

    private static func command(_ library: Library, in directory: String) async throws -> [String] {
        switch library {
        case .authlib: return [python, folder + "/authlib_app.py"]
        case .requests: return [python, folder + "/requests_app.py"]
        case .go:
            // Debian's packages of Go libraries are a GOPATH.
            let program = directory + "/go-app"
            try FileManager.default.createDirectory(atPath: directory, withIntermediateDirectories: true)
            let build = try await TestProcess.start(
                ["/usr/bin/go", "build", "-o", program, folder + "/go-app/main.go"],
                environment: [
                    "GO111MODULE": "off", "GOPATH": "/usr/share/gocode", "GOCACHE": root + "/.build-tools/go-cache",
                    "PATH": "/usr/bin:/bin",
                ])
            #expect(await build.exitStatus() == 0)
            return [program]
        }
    }
}
