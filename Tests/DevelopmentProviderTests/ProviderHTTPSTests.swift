import BrokerTesting
import DevelopmentProvider
import HTTPCodec
import HTTPSClient
import JSON
import Reactor
import Testing

/// The program `token-broker-provider` with `--https`.
@Suite(.timeLimit(.minutes(1))) struct `Provider over HTTPS` {
    private struct Running {
        let process: TestProcess
        let address: SocketAddress
        let baseURL: String
        let authorityFile: String?

        init(_ arguments: [String], environment: [String: String] = [:]) async throws {
            process = try await TestProcess.start(
                [BrokerProcess.program("token-broker-provider"), "--listen", "127.0.0.1:0", "--https"] + arguments,
                environment: environment)
            let line = try JSONValue(parsing: Array(try await process.line { $0.hasPrefix("{") }.utf8))
            baseURL = try #require(line["base_url"]?.text)
            let port = try #require(line["address"]?.text?.split(separator: ":").last.flatMap { UInt16($0) })
            address = SocketAddress(ip: .v4([127, 0, 0, 1]), port: port)
            authorityFile = line["ca_file"]?.text
        }
    }

    /// What curl prints when it trusts the file alone, and its exit status in the last line.
    private static func curl(_ options: [String], trusting file: String) async throws -> String {
        try await DialogueProcess.blocking {
            let process = try DialogueProcess(
                [
                    "sh", "-c",
                    "curl --silent --max-time 20 --capath /nowhere --cacert \"$@\"; status=$?; echo; echo $status",
                    "sh", file,
                ]
                    + options)
            var output = ""
            while let line = try process.readLine() { output += line + "\n" }
            return output
        }
    }

    @Test func `its addresses are those of HTTPS, and curl trusts its certificate under every name of this host`()
        async throws
    {
        let provider = try await Running(["--profile", "rfc", "--public-base-url", "https://id.example.test/x"])
        #expect(provider.baseURL == "https://id.example.test/x")
        let file = try #require(provider.authorityFile)
        let port = provider.address.port
        for host in ["localhost", "127.0.0.1", "id.example.test"] {
            let output = try await Self.curl(
                [
                    "--resolve", "\(host):\(port):127.0.0.1",
                    "https://\(host):\(port)/x/.well-known/oauth-authorization-server",
                ], trusting: file)
            let metadata = try JSONValue(parsing: Array(output.prefix { $0 != "\n" }.utf8))
            #expect(metadata["issuer"]?.text == provider.baseURL)
            for member in ["authorization_endpoint", "token_endpoint", "jwks_uri", "revocation_endpoint"] {
                #expect(metadata[member]?.text?.hasPrefix(provider.baseURL + "/") == true, "\(member)")
            }
        }
        // Another name is not in the certificate: curl ends with 60.
        let output = try await Self.curl(
            ["--resolve", "other.test:\(port):127.0.0.1", "https://other.test:\(port)/"], trusting: file)
        #expect(output.hasSuffix("\n60\n"), "\(output)")
    }

    @Test func `its cookies are for HTTPS alone`() async throws {
        let provider = try await Running(["--profile", "duckduckgo", "--client", "app"])
        #expect(provider.baseURL == "https://\(provider.address)")
        let challenge = ProviderDriver.challenge
        let output = try await Self.curl(
            [
                "--include",
                "\(provider.baseURL)/api/auth/v2/authorize?response_type=code&code_challenge=\(challenge)"
                    + "&code_challenge_method=S256&client_id=app&redirect_uri=com.duckduckgo%3A%2Fauthcb"
                    + "&scope=privacypro",
            ], trusting: try #require(provider.authorityFile))
        #expect(output.contains("Set-Cookie: ddg_auth_session_id="), "\(output)")
        #expect(output.contains("; Secure\r\n"), "\(output)")
        #expect(output.contains("Location: https://"), "\(output)")
    }

    @Test func `a client that does not trust the authority refuses, and one that was told of it does not`() async throws
    {
        let directory = StoreFixtureDirectory()
        let file = directory.path + ".pem"
        defer { SmallFile.remove(file) }
        // What stands there is replaced.
        try SmallFile.create(file, Array("old".utf8))
        let provider = try await Running(["--ca-file", file])
        #expect(provider.authorityFile == file)
        for (trusted, isTrusted) in [(TLSTestCertificates.shared.root, false), (file, true)] {
            var configuration = HTTPSClientConfiguration()
            configuration.trustedCAFile = trusted
            configuration.targets = .everything
            let loop = try EventLoop(name: "provider-client")
            let client = try HTTPSClient(configuration: configuration, loop: loop, resolver: try NameResolver())
            let url = try #require(URLTarget(provider.baseURL + "/_control/requests"))
            do throws(TransportError) {
                let response = try await client.send(ClientRequest(method: .get, url: url, fields: [:], body: []))
                #expect(isTrusted)
                #expect(response.status == .ok)
            } catch {
                #expect(!isTrusted)
                #expect(error == .untrusted(.chain))
            }
            await client.close()
            loop.shutDown()
        }
        #expect(await provider.process.terminate() == 0)
        #expect(SmallFile.exists(file))
    }

    @Test func `a file that the options do not name is readable for its owner alone, and is removed at the end`()
        async throws
    {
        // A directory that all users may write to.
        let provider = try await Running([], environment: ["TMPDIR": "/var/tmp"])
        let file = try #require(provider.authorityFile)
        #expect(file.hasPrefix("/var/tmp/token-broker-provider-"))
        let (bytes, access) = try SmallFile.readWithAccess(file, limit: 10_000)
        #expect(String(decoding: bytes, as: UTF8.self).hasPrefix("-----BEGIN CERTIFICATE-----\n"))
        #expect(!access.isReadableByOthers)
        #expect(await provider.process.terminate() == 0)
        #expect(!SmallFile.exists(file))
    }

    @Test func `a certificate that was given is used`() async throws {
        let certificates = TLSTestCertificates.shared
        let provider = try await Running(["--certificate", certificates.chain(.good), "--key", certificates.key(.good)])
        #expect(provider.authorityFile == nil)
        let output = try await Self.curl(
            ["https://localhost:\(provider.address.port)/_control/requests"], trusting: certificates.root)
        #expect(output.hasSuffix("\n0\n"), "\(output)")
    }

    @Test func `a start with files that do not fit ends with 1`() async throws {
        let certificates = TLSTestCertificates.shared
        let process = try await TestProcess.start([
            BrokerProcess.program("token-broker-provider"), "--listen", "127.0.0.1:0", "--https", "--certificate",
            certificates.chain(.good), "--key", certificates.key(.backup),
        ])
        #expect(await process.exitStatus() == 1)
    }
}
