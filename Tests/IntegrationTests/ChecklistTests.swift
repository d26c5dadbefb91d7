import BrokerTesting
import Cryptography
import FoundationEssentials
import HTTPCodec
import Postgres
import Reactor
import Testing

/// `token-broker doctor`: what it finds of an installation, and its exit status.
@Suite(.timeLimit(.minutes(3))) struct `The doctor of installations` {
    private let directory = StoreFixtureDirectory()

    private func run(_ variables: [String: String]) async throws -> (status: Int32, lines: [String]) {
        let process = try await BrokerProcess.start(command: ["doctor"], variables)
        return (await process.exitStatus(), process.lines)
    }

    /// What a careful operator sets, with keys outside the data directory.
    private var careful: [String: String] {
        [
            "DATA_DIR": directory.path, "MASTER_KEYS": BrokerHarness.masterKeys, "API_KEY_DAYS": "90",
            "PUBLIC_BASE_URL": "https://broker.example.com", "AUDIT_CHANGES": "true", "AUDIT_READS": "all",
        ]
    }

    @Test func `finds nothing in a careful configuration, and makes no store`() async throws {
        let (status, lines) = try await run(careful)
        #expect(status == 0, "\(lines.joined(separator: "\n"))")
        #expect(lines.last == "0 faults, 0 warnings, 1 note")
        #expect(lines.contains("good    a secret was kept out of the log"))
        #expect(!FileManager.default.fileExists(atPath: directory.path))
    }

    /// A change of the configuration, the status, and the beginning of the line that tells of it.
    private static let changes: [(variables: [String: String], status: Int32, line: String)] = [
        (["ALLOW_INSECURE_PROVIDERS": "true"], 65, "fault   TOKEN_BROKER_ALLOW_INSECURE_PROVIDERS"),
        (["ALLOW_HTTP_PROVIDERS": "true"], 65, "fault   TOKEN_BROKER_ALLOW_HTTP_PROVIDERS"),
        (["PROVIDER_NETWORKS": "10.0.0.0/8"], 0, "note    providers may be in 1 private networks"),
        (["LISTEN": "0.0.0.0:8080"], 10, "warning TOKEN_BROKER_LISTEN has no TLS"),
        (["PUBLIC_BASE_URL": "http://broker.example.com"], 65, "fault   TOKEN_BROKER_PUBLIC_BASE_URL is http"),
        (["PUBLIC_BASE_URL": "http://localhost:8080"], 0, "note    TOKEN_BROKER_PUBLIC_BASE_URL is http"),
        (["AUTHENTICATION_FAILURE_RATE": "0"], 10, "warning TOKEN_BROKER_AUTHENTICATION_FAILURE_RATE is 0"),
        (["LISTEM": "x"], 10, "warning TOKEN_BROKER_LISTEM is not a variable"),
        (["LOG_LEVEL": "debug"], 10, "warning TOKEN_BROKER_LOG_LEVEL is debug"),
        (["MASTER_KEYS": ""], 10, "warning the master keys are in TOKEN_BROKER_DATA_DIR"),
        (["API_KEY_DAYS": "0"], 0, "note    TOKEN_BROKER_API_KEY_DAYS is 0"),
        (["API_KEY_MAX_DAYS": "89"], 78, "token-broker: TOKEN_BROKER_API_KEY_DAYS must not be more than"),
        (["API_KEY_MAX_DAYS": "90"], 0, "0 faults, 0 warnings, 1 note"),
        (["API_KEY_DAYS": "0", "API_KEY_MAX_DAYS": "90"], 0, "0 faults, 0 warnings, 1 note"),
        (
            ["ADMIN_KEY": "ops:0123456789abcdef0123456789abcdef,eve/auditor:fedcba9876543210fedcba9876543210"], 0,
            "good    the operators' keys and their roles are ops (admin), eve (auditor)"
        ),
        (
            ["ADMIN_KEY": "eve/auditor:fedcba9876543210fedcba9876543210"], 78,
            "token-broker: TOKEN_BROKER_ADMIN_KEY has no key with the role admin"
        ),
        (["AUDIT_CHANGES": "false"], 0, "note    TOKEN_BROKER_AUDIT_CHANGES is false"),
        (["AUDIT_READS": "none"], 0, "note    TOKEN_BROKER_AUDIT_READS is none"),
    ]

    @Test(arguments: changes)
    func `tells of what is not as it should be`(
        variables: [String: String], status: Int32, line: String
    ) async throws {
        let found = try await run(careful.merging(variables) { $1 })
        #expect(found.status == status, "\(found.lines.joined(separator: "\n"))")
        #expect(found.lines.contains { $0.hasPrefix(line) }, "\(found.lines.joined(separator: "\n"))")
    }

    @Test(arguments: [(6, "fault"), (8, "warning"), (29, "warning"), (31, "good")])
    func `tells when the listener's certificate expires`(days: Int, level: String) async throws {
        try FileManager.default.createDirectory(atPath: directory.path, withIntermediateDirectories: true)
        let (certificate, key) = ("\(directory.path)/tls.crt", "\(directory.path)/tls.key")
        let openssl = try await TestProcess.start([
            "/usr/bin/openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-keyout", key,
            "-out", certificate, "-days", "\(days)", "-subj", "/CN=broker", "-addext", "subjectAltName=DNS:localhost",
        ])
        #expect(await openssl.exitStatus() == 0)
        try FileManager.default.setAttributes([.posixPermissions: 0o600], ofItemAtPath: key)
        var variables = careful
        variables["DATA_DIR"] = "\(directory.path)/store"
        (variables["TLS_CERTIFICATE"], variables["TLS_KEY"]) = (certificate, key)
        let (_, lines) = try await run(variables)
        #expect(
            lines.contains { $0.hasPrefix(level) && $0.contains("TOKEN_BROKER_TLS_CERTIFICATE expires in ") },
            "\(lines)")
    }

    @Test func `looks at tenants and keys of a database while it is in use`() async throws {
        let server = try await PostgresServer(settings: ["fsync = on", "synchronous_commit = off"])
        let port = try PostgresServer.freePort()
        var variables = careful
        variables["DATA_DIR"] = nil
        variables["DATABASE_URL"] = server.uri(database: "postgres")
        variables["ADMIN_KEY"] = BrokerHarness.adminKey
        let process = try await BrokerProcess.start(port: port, variables)
        let broker = try BrokerClient(port: port)
        let tenants = [
            "t1": #"{"client_id": "c1"}"#, "t2": #"{"client_id": "c1", "certificate_pinning": false}"#,
            "t3": #"{"client_id": "c1", "browser_binding": "off"}"#,
        ]
        for (name, body) in tenants {
            #expect(try await broker.call(.put, "/tenants/\(name)", body: body).status == 201)
        }
        // One key for each side of the limits: as long as it may live, longer, without an end; about to expire, and not.
        var ids: [String] = []
        for seconds in ["7776000", "7776001", "null", "1209500", "1209700"] {
            let made = try await broker.call(
                .post, "/tenants/t1/api-keys",
                body: #"{"name": "k", "permissions": ["login"], "expires_in": \#(seconds)}"#)
            ids.append(try #require(made.json["id"]?.text))
        }
        var strict = variables
        (strict["API_KEY_DAYS"], strict["API_KEY_MAX_DAYS"]) = ("0", "90")
        let limited = try await run(strict).lines
        let unlimited = try await run(variables).lines
        #expect(
            limited.filter { $0.contains("TOKEN_BROKER_API_KEY_MAX_DAYS is") }.map { $0.contains(ids[1]) } == [true])
        #expect(unlimited.count { $0.contains("API_KEY_MAX_DAYS") } == 0)
        for lines in [limited, unlimited] {
            #expect(lines.filter { $0.contains("expires in 13 days") }.map { $0.contains(ids[3]) } == [true])
        }
        for id in ids {
            #expect(try await broker.call(.delete, "/tenants/t1/api-keys/\(id)").status == 204)
        }

        let found = try await run(variables)
        #expect(found.status == 10, "\(found.lines.joined(separator: "\n"))")
        let warnings = found.lines.filter { $0.hasPrefix("warning ") }
        #expect(warnings.count == 2, "\(warnings)")
        #expect(warnings.contains { $0.hasPrefix("warning tenant t2: certificate_pinning is off") })
        #expect(warnings.contains { $0.hasPrefix("warning tenant t3: browser_binding is off") })
        #expect(found.lines.contains { $0.hasPrefix("good    ") && $0.contains("the first master key 'k1'") })
        #expect(found.lines.contains { $0.hasPrefix("note    the database has synchronous_commit = off") })
        #expect(found.lines.contains { $0.hasPrefix("note    1 of 3 tenants pin no certificate") })

        // With a new key in front, the records are still encrypted with the earlier one; without the earlier one, they are lost.
        let newKey = "k2:" + Data((0..<32).reversed().map { UInt8($0) }).base64EncodedString()
        variables["MASTER_KEYS"] = newKey + "," + BrokerHarness.masterKeys
        #expect(
            try await run(variables).lines.contains {
                $0.contains("the earlier master key 'k1'; run token-broker keys reseal")
            })
        variables["MASTER_KEYS"] = newKey
        let lost = try await run(variables)
        #expect(lost.status == 65, "\(lost.lines.joined(separator: "\n"))")
        #expect(!lost.lines.contains { $0.contains("damaged(") }, "\(lost.lines)")
        let keys = try await BrokerProcess.run(["keys", "status"], variables)
        #expect(keys.status == 65, "\(keys.output)")
        #expect(keys.output.contains("cannot be decrypted with the configured master keys"), "\(keys.output)")
        #expect(await process.terminate() == 0)
        await broker.close()
        try await server.stop(.immediate)
    }

    @Test func `says that it cannot look at an embedded store that is in use`() async throws {
        let port = try PostgresServer.freePort()
        let process = try await BrokerProcess.start(port: port, ["DATA_DIR": directory.path])
        let used = try await run(["DATA_DIR": directory.path])
        #expect(used.lines.contains { $0.hasPrefix("note    the service uses the store") }, "\(used.lines)")
        #expect(await process.terminate() == 0)
        let free = try await run(["DATA_DIR": directory.path])
        #expect(
            free.lines.contains { $0.hasPrefix("good    ") && $0.contains("the first master key") }, "\(free.lines)")
        #expect(free.status == 10, "\(free.lines)")
    }
}
