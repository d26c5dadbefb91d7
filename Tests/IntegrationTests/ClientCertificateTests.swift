import BrokerTesting
import ExternalText
import FoundationEssentials
import JSON
import Testing

/// `token-broker` with a listener that asks its clients for certificates.
@Suite(.timeLimit(.minutes(3))) struct `The program with certificates of clients` {
    private let directory = StoreFixtureDirectory()
    private let server = TLSTestCertificates.shared
    private let clients = ClientCertificates.shared

    private var authorities: String { directory.path + "/clients.crt" }

    private func variables(_ authorities: String) -> [String: String] {
        [
            "DATA_DIR": directory.path + "/data", "TLS_CERTIFICATE": server.chain(.good), "TLS_KEY": server.key(.good),
            "TLS_CLIENT_CA": authorities,
        ]
    }

    private func writeAuthorities(_ sources: [String]) throws {
        try FileManager.default.createDirectory(atPath: directory.path, withIntermediateDirectories: true)
        let parts = try sources.map { try Data(contentsOf: URL(filePath: $0)) }
        try parts.reduce(Data(), +).write(to: URL(filePath: authorities))
    }

    /// Sends a request with the admin key; returns the status and the content.
    private func administer(
        _ port: UInt16, _ method: String, _ target: String, _ body: String = ""
    ) async throws -> (status: String, body: String) {
        let root = server.root
        let lines = try await DialogueProcess.blocking {
            let command =
                #"curl --silent --max-time 20 --write-out '\n%{http_code}\n' "$@" 2>&1"#
            let process = try DialogueProcess([
                "sh", "-c", command, "sh", "--cacert", root, "--request", method, "--header",
                "Authorization: Bearer \(BrokerHarness.adminKey)", "--header", "Content-Type: application/json",
                "--data",
                body, "https://localhost:\(port)\(target)",
            ])
            var lines: [String] = []
            while let line = try process.readLine() { lines.append(line) }
            return lines
        }
        return (lines.last ?? "", lines.first ?? "")
    }

    @Test func `lets a client in while its key exists and its authority is accepted`() async throws {
        try writeAuthorities([clients.authority])
        let port = try PostgresServer.freePort()
        let process = try await BrokerProcess.start(port: port, variables(authorities))
        #expect(try await administer(port, "PUT", "/tenants/t1", #"{"client_id": "c1"}"#).status == "201")
        let path = "/tenants/t1/api-keys"
        let body = #"{"name": "cart", "identity": "dns:service.example", "permissions": ["credentials:read"]}"#
        let made = try await administer(port, "POST", path, body)
        #expect(made.status == "201", "\(made.body)")
        let id = try #require(try JSONValue(parsing: Array(made.body.utf8))["id"]?.string?.text)
        #expect(try await administer(port, "POST", "\(path)/\(id)/rotate", "{}").status == "409")

        let client = try await TLSCertificateClient(port: port)
        func status(_ name: String, _ certificate: ClientCertificates.Name?) async throws -> Int? {
            _ = try await client.connect(name, certificate)
            return try await client.get(name, "/credentials")?.status
        }
        #expect(try await status("own", .dns) == 200)
        #expect(try await status("without", nil) == 401)
        #expect(try await status("stranger", .wrongAuthority) == nil)

        // The program compares the files every few seconds.
        try writeAuthorities([clients.otherAuthority, server.root])
        _ = try await process.line { $0.contains("tls_certificate_loaded") && $0.contains(#""client_authorities":2"#) }
        #expect(try await status("later", .dns) == nil)
        #expect(try await status("later stranger", .wrongAuthority) == 200)
        try Data("spoilt".utf8).write(to: URL(filePath: authorities))
        _ = try await process.line {
            $0.contains(#""event":"tls_certificate_refused","variable":"TOKEN_BROKER_TLS_CLIENT_CA""#)
        }
        #expect(try await status("last stranger", .wrongAuthority) == 200)

        #expect(try await administer(port, "DELETE", "\(path)/\(id)").status == "204")
        for name in ["own", "last stranger"] {
            #expect(try await client.get(name, "/credentials")?.status == 401)
        }
        #expect(await process.terminate() == 0)
        #expect(!process.lines.contains { $0.contains("PRIVATE KEY") })
    }

    /// The file, whether there is a certificate of the server, and what `config check` says.
    @Test(
        arguments: [
            ("authority.crt", true, 0, "valid"), ("third.crt", true, 0, "valid"),
            ("authority.crt", false, 78, "TOKEN_BROKER_TLS_CLIENT_CA requires TOKEN_BROKER_TLS_CERTIFICATE"),
            ("dns.crt", true, 78, "TOKEN_BROKER_TLS_CLIENT_CA names a file"),
            ("dns.key", true, 78, "TOKEN_BROKER_TLS_CLIENT_CA names a file"),
            ("nowhere", true, 78, "TOKEN_BROKER_TLS_CLIENT_CA names a file"),
        ] as [(String, Bool, Int32, String)])
    func `checks the file of the authorities before it starts`(
        file: String, hasCertificate: Bool, status: Int32, text: String
    ) async throws {
        var variables = variables(clients.directory + "/" + file)
        if !hasCertificate { (variables["TLS_CERTIFICATE"], variables["TLS_KEY"]) = (nil, nil) }
        let checked = try await BrokerProcess.run(["config", "check"], variables)
        #expect(checked.status == status)
        #expect(checked.output.contains(text), "\(checked.output)")
    }

    @Test func `has the doctor tell of the authorities`() async throws {
        var variables = variables(clients.authority)
        variables["ADMIN_KEY"] = BrokerHarness.adminKey
        let found = try await BrokerProcess.run(["doctor"], variables)
        #expect(
            found.output.contains(
                "good    clients may show certificates of 1 authorities (TOKEN_BROKER_TLS_CLIENT_CA)"),
            "\(found.output)")
    }
}
