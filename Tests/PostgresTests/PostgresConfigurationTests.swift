import Testing

@testable import Postgres

@Suite struct `PostgreSQL configuration` {
    private static func value(_ keyword: String, _ configuration: PostgresConfiguration) -> String? {
        configuration.attempts(at: configuration.targets[0], address: "")[0].options.last { $0.keyword == keyword }?
            .value
    }

    @Test func `hosts, addresses and ports are split into targets`() throws {
        let configuration = try PostgresConfiguration("postgresql://one:5433,two,[::1]:5435/db")
        #expect(
            configuration.targets == [
                .init(host: "one", address: "", port: "5433"), .init(host: "two", address: "", port: ""),
                .init(host: "::1", address: "", port: "5435"),
            ])
        let addressed = try PostgresConfiguration("host=one,two hostaddr=127.0.0.1,127.0.0.2 port=5433")
        #expect(
            addressed.targets == [
                .init(host: "one", address: "127.0.0.1", port: "5433"),
                .init(host: "two", address: "127.0.0.2", port: "5433"),
            ])
    }

    @Test(arguments: [
        ("database.example", true), ("127.0.0.1", false), ("::1", false), ("fe80::1%eth0", false), ("/run/x", false),
        ("@abstract", false), ("", false), ("127.1", true),
    ])
    func `only names are looked up`(host: String, isLookedUp: Bool) {
        #expect(PostgresConfiguration.Target(host: host, address: "", port: "").needsLookup == isLookedUp)
        #expect(!PostgresConfiguration.Target(host: host, address: "127.0.0.1", port: "").needsLookup)
    }

    @Test func `what is not given is set`() throws {
        let configuration = try PostgresConfiguration("postgresql://one/db")
        #expect(Self.value("application_name", configuration) == "token-broker")
        #expect(Self.value("client_encoding", configuration) == "UTF8")
        #expect(Self.value("target_session_attrs", configuration) == "primary")
        #expect(Self.value("keepalives_idle", configuration) == "10")
        #expect(Self.value("tcp_user_timeout", configuration) == "10000")
        #expect(Self.value("gssencmode", configuration) == "disable")
        #expect(configuration.connectTimeout == .seconds(5))
    }

    @Test func `what is given stays, but for the encoding`() throws {
        let configuration = try PostgresConfiguration(
            "postgresql://one/db?application_name=x&client_encoding=LATIN1&gssencmode=prefer&connect_timeout=7"
                + "&options=-csearch_path%3Dbroker")
        #expect(Self.value("application_name", configuration) == "x")
        #expect(Self.value("client_encoding", configuration) == "UTF8")
        #expect(Self.value("gssencmode", configuration) == "prefer")
        #expect(Self.value("connect_timeout", configuration) == nil)
        #expect(configuration.connectTimeout == .seconds(7))
        #expect(
            Self.value("options", configuration)
                == "-c statement_timeout=5000 -c idle_in_transaction_session_timeout=5000 -c row_security=off -csearch_path=broker"
        )
    }

    @Test func `among several hosts one is wanted that takes writes`() throws {
        #expect(
            Self.value("target_session_attrs", try PostgresConfiguration("postgresql://one,two/db")) == "read-write")
        let given = try PostgresConfiguration("postgresql://one,two/db?target_session_attrs=primary")
        #expect(Self.value("target_session_attrs", given) == "primary")
    }

    @Test func `a pooler is sent no session settings`() throws {
        var configuration = try PostgresConfiguration("postgresql://one/db")
        configuration.usesPooler = true
        #expect(Self.value("options", configuration) == nil)
        #expect(Self.value("target_session_attrs", configuration) == "any")
    }

    @Test(arguments: [
        "postgresql://user:hunter2@host:port/db", "postgresql://user:hunter2@host/db?nonsense=1", "password=hunter2 x",
        "host=a,b hostaddr=127.0.0.1 password=hunter2", "host=a,b port=1,2,3 password=hunter2",
        "host=a port=65536 password=hunter2", "host=a port=0 password=hunter2", "service=x password=hunter2",
        "postgresql://user:hunter2@host/db\0",
    ])
    func `what cannot be used is refused without being quoted`(text: String) {
        let error = #expect(throws: PostgresError.self) { try PostgresConfiguration(text) }
        guard case .misconfigured = error else {
            Issue.record("not misconfigured")
            return
        }
        #expect(!String(reflecting: error!).contains("hunter2"))
        #expect(!String(describing: error!).contains("hunter2"))
    }

    @Test func `neither configuration nor options show their values`() throws {
        let configuration = try PostgresConfiguration("postgresql://user:hunter2@host/db")
        #expect(Self.value("password", configuration) == "hunter2")
        #expect(!"\(configuration)".contains("hunter2"))
        #expect(!"\(configuration.attempts(at: configuration.targets[0], address: "")[0].options)".contains("hunter2"))
    }
}

@Suite struct `PostgreSQL errors` {
    @Test(arguments: [
        ("25006", true), ("57P01", true), ("57P03", true), ("08006", true), ("57014", false), ("23505", false),
        ("40001", false), ("25P02", false),
    ])
    func `a server that went away or takes no writes is suspect`(sqlstate: String, isSuspect: Bool) {
        #expect(PostgresError.server(sqlstate: sqlstate).makesServerSuspect == isSuspect)
    }

    @Test(arguments: [
        (PostgresError.connectionLost, true), (.timedOut, true), (.cancelled, true), (.server(sqlstate: "57P01"), true),
        (.server(sqlstate: "40003"), true), (.server(sqlstate: "08007"), true), (.server(sqlstate: "57014"), false),
        (.server(sqlstate: "40001"), false), (.exhausted, false), (.closed, false),
        (.connectionFailed(sqlstate: nil, detail: ""), false),
    ])
    func `only what was sent and not answered has an unknown outcome`(error: PostgresError, isUnknown: Bool) {
        #expect(error.leavesOutcomeUnknown == isUnknown)
    }
}
