import Postgres
import Reactor

/// One step in the history of the schema.
struct Migration: Sendable {
    /// The position in the list, from 1.
    let version: Int64
    /// The lowest version that a build must know to work with the schema after this step. During an upgrade replicas of
    /// two builds run side by side: a step that only adds keeps the number of the step before it. A step that removes
    /// has its own number, and is released after the last build that uses what it removes.
    let compatible: Int64
    let statements: [PostgresStatement]
}

/// The history of the schema. Append only: databases have applied these steps, so none may be changed.
enum Migrations {
    static let all = [
        Migration(
            version: 1, compatible: 1,
            statements: [
                // The "C" collation has the octet order of `RecordID`, also in a database with another locale.
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
                // Sealed content cannot be compressed.
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
                // assigns the sequences afterwards. An identity column, unlike a default of nextval, needs no privilege
                // on the sequence object behind it.
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
                // Milliseconds by the database's clock, so that the clocks of the replicas need not agree.
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
                // For counting the pending logins of one tenant.
                PostgresStatement(
                    """
                    CREATE INDEX token_broker_records_pending ON token_broker_records (kind, tenant, due)
                    WHERE due IS NOT NULL AND kind IN ('login', 'device')
                    """)
            ]),
        Migration(
            version: 5, compatible: 1,
            statements: [
                // A constant default does not rewrite the table.
                PostgresStatement(
                    """
                    ALTER TABLE token_broker_records ADD COLUMN lease_first_use bigint,
                        ADD COLUMN lease_state bigint NOT NULL DEFAULT 0, ADD COLUMN lease_failure text,
                        ADD COLUMN lease_retry bigint, ADD COLUMN lease_state_of text
                    """)
            ]),
        Migration(
            version: 6, compatible: 1,
            statements: [
                PostgresStatement(
                    """
                    CREATE TABLE token_broker_audit (
                        chain text COLLATE "C" NOT NULL,
                        first_entry bigint NOT NULL,
                        last_entry bigint NOT NULL,
                        time bigint NOT NULL,
                        body text NOT NULL,
                        hash bytea NOT NULL,
                        signature bytea,
                        PRIMARY KEY (chain, first_entry)
                    )
                    """),
                // Whatever privileges a role has, it can only insert, unless it owns the table; and the owner removes
                // nothing by mistake. Without the search path, a temporary table of the caller could stand for pg_class.
                PostgresStatement(
                    """
                    CREATE FUNCTION token_broker_audit_kept() RETURNS trigger LANGUAGE plpgsql
                    SET search_path = pg_catalog, pg_temp AS $$
                    BEGIN
                        IF TG_OP = 'DELETE' AND current_setting('token_broker.removes_audit', true) = 'on'
                            AND pg_has_role((SELECT relowner FROM pg_catalog.pg_class WHERE oid = TG_RELID), 'USAGE')
                        THEN
                            RETURN NULL;
                        END IF;
                        RAISE EXCEPTION 'entries of the audit log are not changed or removed'
                            USING ERRCODE = 'insufficient_privilege';
                    END
                    $$
                    """),
                PostgresStatement(
                    """
                    CREATE TRIGGER token_broker_audit_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON token_broker_audit
                    FOR EACH STATEMENT EXECUTE FUNCTION token_broker_audit_kept()
                    """),
            ]),
        Migration(
            version: 7, compatible: 1,
            statements: [
                // One row for each chain, since every chain begins with entry 1.
                PostgresStatement(
                    """
                    CREATE INDEX token_broker_audit_begun ON token_broker_audit (time, chain) WHERE first_entry = 1
                    """)
            ]),
    ]

    /// How the schema of the database compares with the schema that this build knows.
    enum SchemaState: Equatable {
        /// The same, or newer and compatible with this build.
        case usable
        /// Steps are missing. The value is the version; 0 when there is no schema.
        case behind(Int64)
        /// Steps were taken with which this build cannot work.
        case tooNew(Int64)
    }

    /// The key of the advisory lock for migrations: "tokenbrk" in ASCII.
    private static let lock: Int64 = 0x746f_6b65_6e62_726b

    /// Compares the schema with `migrations`. Needs the privilege to read only.
    static func state(
        of connection: PostgresConnection, against migrations: [Migration] = all, until deadline: MonotonicInstant
    ) async throws(PostgresError) -> SchemaState {
        let exists = try await connection.execute(Statements.hasSchema, until: deadline)
        guard try exists.first?.boolean(0) == true else { return .behind(0) }
        let known = migrations.last?.version ?? 0
        let result = try await connection.execute(Statements.schemaVersion, [.integer(known)], until: deadline)
        guard let version = try result.first?.integer(0), let needed = try result.first?.integer(1) else {
            throw .unexpectedResult("the version of the schema is missing")
        }
        if version < known { return .behind(version) }
        return needed > known ? .tooNew(version) : .usable
    }

    /// Takes the missing steps, each in a transaction of its own. Several processes may call this at once: one takes
    /// the steps, and the others wait for it. A schema that is up to date or too new is not changed, and then the role
    /// needs no privilege but to read and write the tables.
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
        // After an error the pool closes the connection, because a transaction is open on it.
        _ = try await connection.execute(Statements.begin, until: deadline)
        _ = try await connection.execute(Statements.allowLongStatements, until: deadline)
        _ = try await connection.execute(Statements.lockSchema, [.integer(lock)], until: deadline)
        _ = try await connection.execute(Statements.createSchema, until: deadline)
        let result = try await connection.execute(
            Statements.schemaVersion, [.integer(migration.version)], until: deadline)
        // Another process may have taken the step while this one waited for the lock.
        if let version = try result.first?.integer(0), version < migration.version {
            for statement in migration.statements { _ = try await connection.execute(statement, until: deadline) }
            _ = try await connection.execute(
                Statements.recordMigration, [.integer(migration.version), .integer(migration.compatible)],
                until: deadline)
        }
        _ = try await connection.pipeline(StoreDurability.commit, until: deadline)
    }
}
