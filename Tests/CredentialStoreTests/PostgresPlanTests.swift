import BrokerTesting
import OAuth
import Reactor
import Testing

@testable import CredentialStore
@testable import Postgres

/// The server must use an index for every statement of the store when there are many records, for all parameters.
@Suite(.timeLimit(.minutes(3)), .serialized) struct `PostgreSQL plans` {
    /// 200,000 sets of credentials and 2000 logins under 2000 tenants, and 100,000 entries of the log.
    private static let fill = [
        """
        INSERT INTO token_broker_records (kind, tenant, key, version, sealed, lookup, expires, due, lease_holder,
            lease_expires)
        SELECT 'credentials', 't' || n % 2000, 'k' || n, 1, '\\x00', decode(md5(n::text), 'hex'),
            CASE WHEN n % 10 = 0 THEN n END, CASE WHEN n % 4 = 0 THEN n END,
            CASE WHEN n % 100 = 0 THEN 'holder' END,
            CASE WHEN n % 200 = 0 THEN (extract(epoch FROM now()) * 1000)::bigint + 60000 - n * 10 END
        FROM generate_series(1, 200000) AS n
        """,
        """
        INSERT INTO token_broker_records (kind, tenant, key, version, sealed, due)
        SELECT kind, 't' || n, CASE WHEN kind = 'login' THEN 'l' ELSE '' END, 1, '\\x00',
            CASE WHEN kind = 'login' THEN n END
        FROM generate_series(1, 2000) AS n, unnest(ARRAY['tenant', 'login']) AS kind
        """,
        """
        INSERT INTO token_broker_events (sequence, tenant, key, version, time, sealed)
        SELECT CASE WHEN n <= 99990 THEN n END, 't' || n % 2000, 'k' || n, 1, n, decode(md5(n::text), 'hex')
        FROM generate_series(1, 100000) AS n
        """,
        """
        INSERT INTO token_broker_audit (chain, first_entry, last_entry, time, body, hash)
        SELECT 'c' || n % 5000, 1 + n / 5000, 1 + n / 5000, n, '{}', '\\x00' FROM generate_series(0, 99999) AS n
        """,
        "UPDATE token_broker_log SET last = 99990",
        "ANALYZE token_broker_records", "ANALYZE token_broker_events",
        "ANALYZE token_broker_audit",
    ]

    private static let store = Task {
        let server = try await PostgresServer.shared.value
        let database = try await server.makeDatabase()
        let configuration = try PostgresServer.configuration(server.uri(database: database))
        let store = try await PostgresRecordStore.open(
            configuration, on: PostgresServer.loop, resolver: PostgresServer.resolver)
        await store.close()
        let connection = try await PostgresServer.connect(configuration)
        for statement in fill {
            _ = try await connection.execute(PostgresStatement(trusted: statement), until: .after(.seconds(100)))
        }
        return connection
    }

    struct Use: Sendable, CustomTestStringConvertible {
        let testDescription: String
        let statement: PostgresStatement
        let parameters: [PostgresValue]
    }

    private static let names: [PostgresValue] = [.text("credentials"), .text("t7"), .text("k7")]
    private static let values: [PostgresValue] =
        names + [.integer(2), .bytes([1]), .bytes([2]), .integer(nil), .integer(5)]

    /// The names of credentials, of which every tenth does not exist.
    private static let manyNames: [PostgresValue] = {
        let numbers = (1...500).map { $0 * 444 % 222_222 }
        return [
            .texts(numbers.map { _ in "credentials" }), .texts(numbers.map { "t\($0 % 2000)" }),
            .texts(numbers.map { "k\($0)" }),
        ]
    }()

    static let uses: [Use] = {
        let credentials = PostgresValue.text("credentials")
        let position: [PostgresValue] = [credentials, .text("t1000"), .text("k5000"), .integer(100)]
        var uses = [
            Use(testDescription: "read", statement: Statements.read, parameters: names),
            Use(testDescription: "find", statement: Statements.find, parameters: [credentials, .bytes([1, 2])]),
            Use(testDescription: "versions", statement: Statements.versions, parameters: manyNames),
            Use(
                testDescription: "read with versions", statement: Statements.readWithVersions,
                parameters: names + manyNames),
            Use(testDescription: "list", statement: Statements.list, parameters: position),
            Use(
                testDescription: "list of tenant", statement: Statements.listOfTenant,
                parameters: position + [.text("t1000")]),
            Use(
                testDescription: "due", statement: Statements.due,
                parameters: [credentials, .integer(150_000), .integer(100)]),
            Use(testDescription: "next due", statement: Statements.nextDue, parameters: [credentials]),
            Use(testDescription: "next due of none", statement: Statements.nextDue, parameters: [.text("device")]),
            Use(
                testDescription: "count due", statement: Statements.countDue(.login),
                parameters: [.text("t7"), .integer(1), .integer(10_000)]),
            Use(testDescription: "lapsed", statement: Statements.lapsed, parameters: [credentials, .integer(100)]),
            Use(
                testDescription: "remove expired", statement: Statements.removeExpired,
                parameters: [.integer(150_000), .integer(100)]),
            Use(testDescription: "require", statement: Statements.require, parameters: names),
            Use(
                testDescription: "remove tenant", statement: Statements.removeTenant,
                parameters: [.text("t7"), .text("tenant")]),
            Use(
                testDescription: "remove tenant's records", statement: Statements.removeTenantRecords,
                parameters: [.text("t7"), .text("tenant")]),
            Use(
                testDescription: "notify", statement: Statements.notifyUnless,
                parameters: [.text("notice")] + names + [.integer(1)]),
            Use(
                testDescription: "notify of a claim", statement: Statements.notifyIfHeld,
                parameters: [.text("notice")] + names + [.text("holder")]),
            Use(testDescription: "log", statement: Statements.log, parameters: []),
            Use(testDescription: "number", statement: Statements.number, parameters: [.integer(1000)]),
            Use(
                testDescription: "entries", statement: Statements.entries,
                parameters: [.integer(50_000), .integer(100)]),
            Use(
                testDescription: "entries of tenant", statement: Statements.entriesOfTenant,
                parameters: [.integer(50_000), .integer(100), .text("t7")]),
            Use(
                testDescription: "appended", statement: Statements.appended,
                parameters: [.text("t7"), .text("k7"), .bytes([1])]),
            Use(testDescription: "oldest", statement: Statements.oldest, parameters: [.integer(1000)]),
            Use(testDescription: "trim", statement: Statements.trim, parameters: [.integer(500)]),
            Use(
                testDescription: "count of entries", statement: Statements.countEntries,
                parameters: [.text("t7"), .integer(5), .integer(1000)]),
            Use(
                testDescription: "tenants with a marker", statement: Statements.markedTenants,
                parameters: [.texts((1...200).map { "\($0)" })]),
            Use(
                testDescription: "entry before", statement: Statements.entryBefore,
                parameters: [.text("t7"), .integer(50_000), .integer(10)]),
            Use(
                testDescription: "surplus", statement: Statements.surplus,
                parameters: [.text("t7"), .integer(50_000), .integer(10)]),
            Use(
                testDescription: "remove before", statement: Statements.removeBefore,
                parameters: [.text("t7"), .integer(20_000)]),
            Use(
                testDescription: "mark", statement: Statements.mark, parameters: [.text("t7"), .integer(20_007)]),
            Use(
                testDescription: "remove tenant's entries", statement: Statements.removeTenantEntries,
                parameters: [.text("t7")]),
            Use(
                testDescription: "chains by name", statement: Statements.auditChains,
                parameters: [.text("c7"), .integer(50)]),
            Use(
                testDescription: "newest chains", statement: Statements.newestAuditChains,
                parameters: [.integer(3000), .text("c3000"), .integer(50)]),
            Use(
                testDescription: "blocks of a chain", statement: Statements.auditBlocks,
                parameters: [.text("c7"), .integer(5), .integer(100)]),
        ]
        let changes: [(String, Statements.RowChange, [PostgresValue])] = [
            ("insert", Statements.insert, values), ("replace", Statements.replace, values + [.integer(1)]),
            ("replace keeping the lease", Statements.replaceKeepingLease, values + [.integer(1)]),
            ("replace fenced", Statements.replaceFenced, values + [.integer(1), .text("h")]),
            ("remove", Statements.remove, names + [.integer(1)]),
            ("settle due", Statements.settleDue, names + [.integer(1), .integer(nil), .integer(9)]),
            (
                "claim", Statements.claim,
                names + [
                    .integer(1), .text("h"), .text(nil), .integer(1000), .integer(0), .integer(1), .integer(0),
                    .integer(nil), .integer(0),
                ]
            ),
            ("release", Statements.release, names + [.integer(1), .text("h")]),
            (
                "end of a lease", Statements.endLease,
                names + [
                    .integer(1), .text("h"), .integer(1000), .integer(2), .text("retryable_error"), .integer(2000),
                ]
            ),
        ]
        for (name, change, parameters) in changes {
            uses.append(Use(testDescription: name, statement: Statements.alone(change), parameters: parameters))
            let shape = Statements.CommitShape(hasRequirement: true, entryCount: 1, isAudited: true)
            guard let statement = Statements.complete(change, shape) else { continue }
            let entry: [PostgresValue] = [.text("t7"), .text("k7"), .integer(1), .integer(1), .bytes([1])]
            let block: [PostgresValue] = [
                .text("c-1"), .integer(1), .integer(2), .integer(1), .text("[]"), .bytes([1]), .bytes([2]),
            ]
            uses.append(
                Use(
                    testDescription: name + " under a tenant, with an entry and a block of the audit log",
                    statement: statement,
                    parameters: parameters + [.text("tenant"), .text("t7"), .text("")] + entry + block))
        }
        return uses
    }()

    /// The value as an SQL literal.
    private static func literal(_ value: PostgresValue) -> String {
        switch value {
        case .text(let text): text.map { "'\($0)'" } ?? "NULL"
        case .bytes(let bytes):
            bytes.map { bytes in
                let digits = bytes.map { ($0 < 16 ? "0" : "") + String($0, radix: 16) }
                return "'\\x\(digits.joined())'"
            } ?? "NULL"
        case .integer(let integer): integer.map { "\($0)" } ?? "NULL"
        case .texts(let texts): "'{\(texts.joined(separator: ","))}'"
        }
    }

    private static func type(_ value: PostgresValue) -> String {
        switch value {
        case .text: "text"
        case .bytes: "bytea"
        case .integer: "bigint"
        case .texts: "text[]"
        }
    }

    @Test(arguments: uses, ["force_custom_plan", "force_generic_plan"])
    func `use an index and read little besides what they return`(use: Use, mode: String) async throws {
        let connection = try await Self.store.value
        func run(_ text: String) async throws -> PostgresResult {
            try await connection.execute(PostgresStatement(trusted: text), until: .after(.seconds(60)))
        }
        let list = { (parts: [String]) in parts.isEmpty ? "" : "(\(parts.joined(separator: ", ")))" }
        _ = try await run("BEGIN")
        _ = try await run("SET LOCAL plan_cache_mode = \(mode)")
        _ = try await run("PREPARE use\(list(use.parameters.map(Self.type))) AS \(use.statement.sql)")
        let result = try await run(
            "EXPLAIN (ANALYZE, BUFFERS) EXECUTE use\(list(use.parameters.map(Self.literal)))")
        _ = try await run("DEALLOCATE use")
        _ = try await run("ROLLBACK")
        let plan = try result.rows.map { try $0.text(0) ?? "" }
        let text = "\(use.testDescription), \(mode)\n" + plan.joined(separator: "\n")
        for table in ["token_broker_records", "token_broker_events"] {
            #expect(!text.contains("Seq Scan on \(table)"), "\(text)")
        }
        // 0.1 % of all rows, and the rows that a limit or a tenant selects.
        for line in plan where line.contains("Rows Removed by") {
            let removed = Int(line.split(separator: " ").last ?? "") ?? 0
            #expect(removed <= 300, "\(text)")
        }
        #expect(!text.contains("external"), "\(text)")
    }
}
