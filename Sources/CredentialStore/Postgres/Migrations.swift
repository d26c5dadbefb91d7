internal import Postgres
internal import Reactor

/// One step of the schema.
struct Migration: Sendable {
    /// The place in the list, from 1.
    let version: Int64
    /// The lowest version that a build must know to go on working once this step is taken. Replicas of two builds run
    /// side by side during an upgrade: a step that only adds keeps the number of the step before it; one that takes
    /// away has its own, and comes after the last build that used what it takes.
    let compatible: Int64
    let statements: [PostgresStatement]
}

/// The schema's history. Append only: what a database has applied is never changed here.
enum Migrations {
    static let all = [
        Migration(
            version: 1, compatible: 1,
            statements: [
                // The "C" collation is the octet order that `RecordID` has, whatever the database's locale.
                PostgresStatement(
                    """
                    CREATE TABLE token_broker_records (
                        kind text COLLATE "C" NOT NULL,
                        tenant text COLLATE "C" NOT NULL,
                        key text COLLATE "C" NOT NULL,
                        version bigint NOT NULL,
                        sealed bytea NOT NULL,
                        lookup bytea,
                        expires bigint,
                        PRIMARY KEY (kind, tenant, key)
                    )
                    """),
                // Sealed content looks random: trying to compress it is wasted.
                PostgresStatement("ALTER TABLE token_broker_records ALTER COLUMN sealed SET STORAGE EXTERNAL"),
                PostgresStatement(
                    """
                    CREATE UNIQUE INDEX token_broker_records_lookup ON token_broker_records (kind, lookup)
                    WHERE lookup IS NOT NULL
                    """),
                PostgresStatement(
                    """
                    CREATE INDEX token_broker_records_expires ON token_broker_records (expires)
                    WHERE expires IS NOT NULL
                    """),
                PostgresStatement("CREATE INDEX token_broker_records_tenant ON token_broker_records (tenant)"),
            ]),
        Migration(
            version: 2, compatible: 1,
            statements: [
                PostgresStatement("ALTER TABLE token_broker_records ADD COLUMN due bigint"),
                PostgresStatement(
                    """
                    CREATE INDEX token_broker_records_due ON token_broker_records (kind, due)
                    WHERE due IS NOT NULL
                    """),
                // A writer inserts without a sequence, so that writers do not wait for each other; `Statements.number`
                // gives the sequences afterwards. An identity column, unlike a default of nextval, asks for no right
                // on the sequence behind it.
                PostgresStatement(
                    """
                    CREATE TABLE token_broker_events (
                        position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                        sequence bigint UNIQUE,
                        tenant text COLLATE "C" NOT NULL,
                        key text COLLATE "C" NOT NULL,
                        version bigint NOT NULL,
                        time bigint NOT NULL,
                        sealed bytea NOT NULL
                    )
                    """),
                PostgresStatement("ALTER TABLE token_broker_events ALTER COLUMN sealed SET STORAGE EXTERNAL"),
                PostgresStatement(
                    """
                    CREATE INDEX token_broker_events_pending ON token_broker_events (position)
                    WHERE sequence IS NULL
                    """),
                PostgresStatement(
                    "CREATE INDEX token_broker_events_tenant ON token_broker_events (tenant, sequence)"),
                PostgresStatement(
                    """
                    CREATE TABLE token_broker_log (
                        single boolean PRIMARY KEY DEFAULT true CHECK (single),
                        last bigint NOT NULL,
                        trimmed bigint NOT NULL
                    )
                    """),
                PostgresStatement("INSERT INTO token_broker_log (last, trimmed) VALUES (0, 0)"),
            ]),
        Migration(
            version: 3, compatible: 1,
            statements: [
                // Milliseconds of the database's clock: the replicas' clocks need not agree.
                PostgresStatement(
                    "ALTER TABLE token_broker_records ADD COLUMN lease_holder text, ADD COLUMN lease_expires bigint"),
                PostgresStatement(
                    """
                    CREATE INDEX token_broker_records_lease ON token_broker_records (kind, lease_expires)
                    WHERE lease_expires IS NOT NULL
                    """),
            ]),
        Migration(
            version: 4, compatible: 1,
            statements: [
                // For the pending logins of one tenant, of which only the number is asked for.
                PostgresStatement(
                    """
                    CREATE INDEX token_broker_records_pending ON token_broker_records (kind, tenant, due)
                    WHERE due IS NOT NULL AND kind IN ('login', 'device')
                    """)
            ]),
        Migration(
            version: 5, compatible: 1,
            statements: [
                // A default that is a constant rewrites no row.
                PostgresStatement(
                    """
                    ALTER TABLE token_broker_records ADD COLUMN lease_first_use bigint,
                        ADD COLUMN lease_state bigint NOT NULL DEFAULT 0, ADD COLUMN lease_failure text,
                        ADD COLUMN lease_retry bigint, ADD COLUMN lease_state_of text
                    """)
            ]),
    ]

    /// How the database's schema stands to what a build knows.
    enum SchemaState: Equatable {
        /// The same, or newer and still good for this build.
        case usable
        /// Steps are missing; 0 when there is no schema.
        case behind(Int64)
        /// Steps were taken that this build cannot work with.
        case tooNew(Int64)
    }

    /// The key of the advisory lock under which steps are taken: "tokenbrk" in ASCII.
    private static let lock: Int64 = 0x746f_6b65_6e62_726b

    /// Compares the schema with `migrations`. Needs no right but to read.
    static func state(
        of connection: PostgresConnection, against migrations: [Migration] = all, until deadline: MonotonicInstant
    ) async throws(PostgresError) -> SchemaState {
        let exists = try await connection.execute(Statements.hasSchema, until: deadline)
        guard try exists.first?.boolean(0) == true else { return .behind(0) }
        let known = migrations.last?.version ?? 0
        let result = try await connection.execute(Statements.schemaVersion, [.integer(known)], until: deadline)
        guard let version = try result.first?.integer(0), let needed = try result.first?.integer(1) else {
            throw .unexpectedResult("the schema's version is not there")
        }
        if version < known { return .behind(version) }
        return needed > known ? .tooNew(version) : .usable
    }

    /// Takes the steps that are missing, each in a transaction of its own. Any number of processes may do so at once:
    /// one does the work and the others wait for it. A schema that is up to date, or too new, is not touched; then a
    /// role suffices that can read and write the tables.
    static func apply(
        _ migrations: [Migration] = all, through pool: PostgresPool, until deadline: MonotonicInstant
    ) async throws(PostgresError) -> SchemaState {
        try await pool.withConnection(until: deadline) { connection throws(PostgresError) in
            for migration in migrations {
                let state = try await state(of: connection, against: migrations, until: deadline)
                guard case .behind(let version) = state else { return state }
                if migration.version > version { try await take(migration, on: connection, until: deadline) }
            }
            return try await state(of: connection, against: migrations, until: deadline)
        }
    }

    private static func take(
        _ migration: Migration, on connection: PostgresConnection, until deadline: MonotonicInstant
    ) async throws(PostgresError) {
        // An error leaves the transaction open, and the pool does not keep such a connection.
        _ = try await connection.execute(Statements.begin, until: deadline)
        _ = try await connection.execute(Statements.allowLongStatements, until: deadline)
        _ = try await connection.execute(Statements.lockSchema, [.integer(lock)], until: deadline)
        _ = try await connection.execute(Statements.createSchema, until: deadline)
        let result = try await connection.execute(
            Statements.schemaVersion, [.integer(migration.version)], until: deadline)
        // Another process may have taken the step while we waited for the lock.
        if let version = try result.first?.integer(0), version < migration.version {
            for statement in migration.statements { _ = try await connection.execute(statement, until: deadline) }
            _ = try await connection.execute(
                Statements.recordMigration, [.integer(migration.version), .integer(migration.compatible)],
                until: deadline)
        }
        _ = try await connection.execute(Statements.commit, until: deadline)
    }
}
