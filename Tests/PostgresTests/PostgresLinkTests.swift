import BrokerTesting
import Reactor
import Testing

@testable import Postgres

@Suite struct `Protection of links to PostgreSQL` {
    private static func protection(
        _ settings: [String: String] = [:], environment: [String: String] = [:]
    ) throws -> LinkProtection {
        var settings = settings
        return try LinkProtection(takenFrom: &settings, environment: environment)
    }

    private static func target(_ host: String, address: String = "") -> PostgresConfiguration.Target {
        .init(host: host, address: address, port: "")
    }

    @Test(arguments: [
        ("", "", true), ("/run/postgresql", "", true), ("@abstract", "", true), ("127.0.0.1", "", true),
        ("127.255.0.1", "", true), ("128.0.0.1", "", false), ("::1", "", true), ("::ffff:127.0.0.1", "", true),
        ("localhost", "", true), ("LocalHost", "", true), ("localhost.example", "", false), ("localhos", "", false),
        ("database", "", false), ("10.0.0.1", "", false), ("fe80::1%lo", "", false),
        // The connection is made to the address.
        ("localhost", "10.0.0.1", false), ("database", "127.0.0.1", true), ("/run/postgresql", "10.0.0.1", false),
    ])
    func `local is what goes through no network`(host: String, address: String, isLocal: Bool) {
        #expect(Self.target(host, address: address).isLocal == isLocal)
    }

    @Test(
        arguments: [
            (nil, .verifiedHost, .local), ("disable", .clear, .local), ("allow", .clear, .local),
            ("prefer", .clear, .local), ("require", .unverified, .local),
            ("verify-ca", .verifiedAuthority, .verifiedAuthority), ("verify-full", .verifiedHost, .verifiedHost),
        ] as [(String?, PostgresLink, PostgresLink)])
    func `a link is as sslmode says, and verified where nothing says`(
        mode: String?, remote: PostgresLink, local: PostgresLink
    ) throws {
        let given = try Self.protection(mode.map { ["sslmode": $0] } ?? [:])
        let fromEnvironment = try Self.protection(environment: mode.map { ["PGSSLMODE": $0] } ?? ["PGSSLMODE": ""])
        for protection in [given, fromEnvironment] {
            #expect(protection.link(to: Self.target("database.example")) == remote)
            #expect(protection.link(to: Self.target("127.0.0.1")) == local)
        }
    }

    @Test func `the connection string comes before the environment`() throws {
        let both = try Self.protection(["sslmode": "verify-ca"], environment: ["PGSSLMODE": "disable"])
        #expect(both.link(to: Self.target("database.example")) == .verifiedAuthority)
        let old = try Self.protection(environment: ["PGREQUIRESSL": "1"])
        #expect(old.link(to: Self.target("database.example")) == .unverified)
        let neither = try Self.protection(environment: ["PGREQUIRESSL": "0"])
        #expect(neither.link(to: Self.target("database.example")) == .verifiedHost)
    }

    @Test func `of several hosts the least protected counts`() throws {
        #expect(try PostgresConfiguration("host=127.0.0.1,/run/x").link == .local)
        #expect(try PostgresConfiguration("host=127.0.0.1,one.example").link == .verifiedHost)
        #expect(try PostgresConfiguration("host=127.0.0.1,one.example sslmode=disable").link == .clear)
        #expect(try PostgresConfiguration("host=127.0.0.1,/run/x sslmode=disable").link == .local)
    }

    @Test func `root certificates are those that are given, else the system's`() throws {
        let (server, mode) = (Self.target("database.example"), ["sslmode": "verify-full"])
        let file = TLSTestCertificates.shared.root
        for settings in [[:], mode] {
            let system = try #require(Self.protection(settings).attempts(at: server).first).settings
            #expect(system == ["sslmode": "verify-full", "sslrootcert": "/etc/ssl/certs/ca-certificates.crt"])
            let variable = try Self.protection(settings, environment: ["SSL_CERT_FILE": file])
            #expect(variable.attempts(at: server).first?.settings["sslrootcert"] == file)
            let given = try Self.protection(settings, environment: ["PGSSLROOTCERT": "/x"])
            #expect(given.attempts(at: server).first?.settings["sslrootcert"] == "/x")
            let system16 = try Self.protection(settings.merging(["sslrootcert": "system"]) { $1 })
            #expect(system16.attempts(at: server).first?.settings == system)
        }
        // Any host has a certificate of one of the system's authorities.
        let authority = try Self.protection(["sslmode": "verify-ca"])
        #expect(authority.attempts(at: server).first?.settings == ["sslmode": "verify-ca"])
        for mode in ["verify-ca", "require", "prefer"] {
            #expect(throws: PostgresError.self) {
                try Self.protection(["sslmode": mode, "sslrootcert": "system"])
            }
        }
        #expect(throws: PostgresError.self) { try Self.protection(["sslmode": "verify"]) }
    }

    @Test func `where nothing else proves the server, the password does`() throws {
        let server = Self.target("database.example")
        let bound = LinkProtection.Attempt(settings: ["sslmode": "require", "channel_binding": "require"])
        let clear = LinkProtection.Attempt(
            settings: ["sslmode": "disable", "gssencmode": "disable"], allowsSCRAMOnly: true)
        #expect(try Self.protection(["sslmode": "require"]).attempts(at: server) == [bound])
        #expect(try Self.protection(["sslmode": "prefer"]).attempts(at: server) == [bound, clear])
        #expect(try Self.protection(["sslmode": "allow"]).attempts(at: server) == [clear, bound])
        #expect(try Self.protection(["sslmode": "disable"]).attempts(at: server) == [clear])
        // The operator's setting.
        let unbound = try Self.protection(["sslmode": "require"], environment: ["PGCHANNELBINDING": "prefer"])
        #expect(unbound.attempts(at: server) == [.init(settings: ["sslmode": "require"])])
        let verified = try Self.protection(["sslmode": "require", "sslrootcert": "/x"])
        #expect(verified.link(to: server) == .verifiedAuthority)
        #expect(verified.attempts(at: server) == [.init(settings: ["sslmode": "require", "sslrootcert": "/x"])])
        // For a local server no setting is added.
        #expect(try Self.protection().attempts(at: Self.target("/run/x")) == [.init()])
        #expect(
            try Self.protection(["sslmode": "prefer"]).attempts(at: Self.target("::1"))
                == [.init(settings: ["sslmode": "prefer"])])
    }
}

/// Test servers at 127.0.0.1 that are reached by a name which is not local.
@Suite(.serialized) struct `Links to PostgreSQL on another host` {
    private static let password = PostgresServer.password
    private static var soon: MonotonicInstant { .after(.seconds(20)) }

    private static func open(_ settings: String, port: UInt16) async throws(any Error) -> PostgresConnection {
        let resolver = try NameResolver { _ in [.v4([127, 0, 0, 1])] }
        return try await PostgresConnection.open(
            PostgresServer.configuration(
                "host=\(PostgresServer.certifiedName) port=\(port) user=postgres password=\(password) dbname=postgres "
                    + settings), on: PostgresServer.loop, resolver: resolver)
    }

    private static func failure(_ settings: String, port: UInt16) async -> PostgresError? {
        do {
            await (try open(settings, port: port)).close()
            return nil
        } catch {
            return error as? PostgresError
        }
    }

    @Test(arguments: [
        ("", true), ("sslmode=verify-full", true), ("sslmode=verify-ca", true), ("sslmode=require", true),
        ("sslmode=prefer", true), ("sslmode=allow", false), ("sslmode=disable", false),
    ])
    func `a real server is reached with TLS where sslmode asks for it`(mode: String, isEncrypted: Bool) async throws {
        let server = try await PostgresServer.shared.value
        let roots = mode.isEmpty || mode.contains("verify") ? " sslrootcert=\(server.authority)" : ""
        let connection = try await Self.open(mode + roots, port: server.port)
        let ssl = PostgresStatement("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
        #expect(try await connection.execute(ssl, until: Self.soon).first?.boolean(0) == isEncrypted)
        // libpq has its own socket again: it sends more at once than a socket pair takes, and receives notifications.
        let value = (0..<3_000_000).map { UInt8(truncatingIfNeeded: $0) }
        let echo = try await connection.execute(
            PostgresStatement("SELECT $1::bytea"), [.bytes(value)], until: Self.soon)
        #expect(try echo.first?.bytes(0) == value)
        _ = try await connection.execute(PostgresStatement("LISTEN heard"), until: Self.soon)
        _ = try await connection.execute(PostgresStatement("NOTIFY heard, 'word'"), until: Self.soon)
        #expect(try await connection.notifications(until: Self.soon).map(\.payload) == ["word"])
        await connection.close()
    }

    @Test(arguments: ["disable", "prefer", "allow", "require"])
    func `a wrong password is the server's to refuse`(mode: String) async throws {
        let server = try await PostgresServer.shared.value
        #expect(await Self.failure("sslmode=\(mode) password=wrong", port: server.port)?.sqlstate == "28P01")
    }

    @Test func `without root certificates of its authority a server is refused`() async throws {
        let server = try await PostgresServer.shared.value
        guard case .connectionFailed(nil, _) = await Self.failure("", port: server.port) else {
            Issue.record("a server of an unknown authority was accepted")
            return
        }
    }

    /// AuthenticationCleartextPassword, AuthenticationMD5Password, AuthenticationSASL, AuthenticationOk.
    private static let inClear: [UInt8] = [0x52, 0, 0, 0, 8, 0, 0, 0, 3]
    private static let asMD5: [UInt8] = [0x52, 0, 0, 0, 12, 0, 0, 0, 5, 1, 2, 3, 4]
    private static let bySASL: [UInt8] = [0x52, 0, 0, 0, 23, 0, 0, 0, 10] + Array("SCRAM-SHA-256".utf8) + [0, 0]
    private static let accepted: [UInt8] = [0x52, 0, 0, 0, 8, 0, 0, 0, 0]

    private static func request(_ number: Int) -> [UInt8] { [0x52, 0, 0, 0, 8, 0, 0, 0, UInt8(number)] }

    // H069
    @Test(
        arguments: [
            [.hear, .sendBytes(inClear), .hear, .hold],
            [.hear, .sendBytes(asMD5), .hear, .hold],
            // Several messages that libpq would read at once.
            [.hear, .sendBytes(bySASL + inClear), .hear, .hear, .hold],
            [.hear, .sendBytes(bySASL), .hear, .sendBytes(inClear), .hear, .hold],
            // Byte by byte, so the relay does not know the request before its last byte.
            [.hear, .drip("R\u{0}\u{0}\u{0}\u{8}\u{0}\u{0}\u{0}\u{3}", milliseconds: 5), .hear, .hold],
            // Kerberos V4 and V5, crypt, SCM, SSPI, and an unknown number.
            [.hear, .sendBytes(request(1)), .hear, .hold], [.hear, .sendBytes(request(2)), .hear, .hold],
            [.hear, .sendBytes(request(4)), .hear, .hold], [.hear, .sendBytes(request(6)), .hear, .hold],
            [.hear, .sendBytes(request(9)), .hear, .hold], [.hear, .sendBytes(request(13)), .hear, .hold],
        ] as [[TLSTestServer.Step]])
    func `a server without TLS that asks for the password does not get it`(script: [TLSTestServer.Step]) async throws {
        let server = try await TLSTestServer(tls: nil, script)
        #expect(await Self.failure("sslmode=disable", port: server.port) == .insecureAuthentication)
        let report = try await server.report(afterEnds: 1)
        #expect(report.connections == 1)
        #expect(report.requests.first?.contains("postgres") == true)
        #expect(!report.requests.joined().contains(Self.password))
        #expect(!report.requests.joined().contains("md5"))
    }

    @Test(
        arguments: [
            // A length smaller than itself, a length beyond the limit, and a message that does not belong to the
            // start-up.
            [.hear, .sendBytes([0x52, 0, 0, 0, 3]), .hear, .hold],
            [.hear, .sendBytes([0x52, 0x7f, 0xff, 0xff, 0xff]), .hear, .hold],
            [.hear, .sendBytes([0x5a, 0, 0, 0, 5, 0x49]), .hear, .hold],
            [.hear, .send("HTTP/1.1 400 Bad Request\r\n\r\n"), .hear, .hold],
            [.hear, .cut], [.hear, .sendBytes([0x52, 0, 0]), .cut], [.cut],
        ] as [[TLSTestServer.Step]])
    func `what is no start of PostgreSQL is a failed connection`(script: [TLSTestServer.Step]) async throws {
        let server = try await TLSTestServer(tls: nil, script)
        guard case .connectionFailed = await Self.failure("sslmode=disable", port: server.port) else {
            Issue.record("connected, or misjudged")
            return
        }
    }

    // H069
    @Test(arguments: [inClear, asMD5, accepted])
    func `a server with TLS that proves nothing does not get the password either`(answer: [UInt8]) async throws {
        let server = try await TLSTestServer([
            .withoutHandshake, .hear, .send("S"), .handshake, .hear, .sendBytes(answer), .hear, .hold,
        ])
        guard case .connectionFailed = await Self.failure("sslmode=require", port: server.port) else {
            Issue.record("a server that proved nothing was accepted")
            return
        }
        let report = try await server.report(afterEnds: 1)
        #expect(report.handshakes == 1)
        #expect(!report.requests.joined().contains(Self.password))
        #expect(!report.requests.joined().contains("md5"))
    }

    // H069
    @Test func `a server that is not verified is told not even the user`() async throws {
        let server = try await TLSTestServer([
            .withoutHandshake, .hear, .send("S"), .handshake, .hear, .sendBytes(Self.inClear), .hear, .hold,
        ])
        guard case .connectionFailed = await Self.failure("", port: server.port) else {
            Issue.record("a server of an unknown authority was accepted")
            return
        }
        let report = try await server.report(afterEnds: 1)
        #expect(!report.requests.joined().contains("postgres"))
    }

    @Test(arguments: ["prefer", "allow"])
    func `neither way of a mode that leaves the choice gives the password away`(mode: String) async throws {
        let clear: [TLSTestServer.Step] = [.withoutHandshake, .hear, .sendBytes(Self.inClear), .hear, .hold]
        let encrypted: [TLSTestServer.Step] = [
            .withoutHandshake, .hear, .send("S"), .handshake, .hear, .sendBytes(Self.inClear), .hear, .hold,
        ]
        let scripts = mode == "prefer" ? (encrypted, clear) : (clear, encrypted)
        let server = try await TLSTestServer(scripts.0, scripts.1)
        #expect(await Self.failure("sslmode=\(mode)", port: server.port) == .insecureAuthentication)
        let report = try await server.report(afterEnds: 2)
        #expect(report.connections == 2)
        #expect(!report.requests.joined().contains(Self.password))
    }

    @Test func `a name of this machine that leads elsewhere is not connected to`() async throws {
        let resolver = try NameResolver { _ in [.v4([192, 0, 2, 1])] }
        await #expect(throws: PostgresError.self) {
            _ = try await PostgresConnection.open(
                PostgresServer.configuration("host=localhost port=1 user=postgres"), on: PostgresServer.loop,
                resolver: resolver)
        }
    }
}
