import Postgres

/// The SQL of the record store. Tables are named without a schema; the role's `search_path` determines it.
enum Statements {
    // MARK: Records

    /// The database's clock in milliseconds at the time when a row is read. The time of the statement would not do: a
    /// claim that waited for the row's lock could take a lease that was granted meanwhile.
    private static let clock = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"

    /// Whether the lease columns other than holder and expiry belong to the current holder. Builds that do not know
    /// these columns do not change them when they take or end a lease.
    private static let isDescribed = "lease_state_of = lease_holder"

    private static let columns = """
        tenant, key, version, sealed, lookup, expires, due, lease_holder, lease_expires - \(clock),
            CASE WHEN \(isDescribed) THEN \(clock) - lease_first_use END,
            CASE WHEN \(isDescribed) THEN lease_state ELSE 0 END, lease_failure, lease_retry - \(clock)
        """

    private static let select = "SELECT \(columns) FROM token_broker_records"

    static let read = PostgresStatement(
        trusted: """
            \(select)
            WHERE kind = $1 AND tenant = $2 AND key = $3
            """, isPrepared: true)

    static let find = PostgresStatement(
        trusted: """
            \(select)
            WHERE kind = $1 AND lookup = $2
            """, isPrepared: true)

    /// The versions of the records whose kinds, tenants and keys are in three parallel arrays. Each subquery is one
    /// look-up in the index of the primary key; the plan of a join would depend on an estimate of the number of
    /// records.
    private static func versions(kinds: String, tenants: String, keys: String) -> String {
        """
        ARRAY(
            SELECT (
                SELECT record.version FROM token_broker_records AS record
                WHERE record.kind = named.kind AND record.tenant = named.tenant AND record.key = named.key
            )
            FROM unnest(\(kinds), \(tenants), \(keys)) WITH ORDINALITY AS named (kind, tenant, key, place)
            ORDER BY named.place
        )
        """
    }

    static let versions = PostgresStatement(
        trusted: "SELECT \(versions(kinds: "$1", tenants: "$2", keys: "$3"))", isPrepared: true)

    /// A record, and the versions of those in the arrays $4 to $6 as they are in the same snapshot.
    static let readWithVersions = PostgresStatement(
        trusted: """
            SELECT \(columns), \(versions(kinds: "$4", tenants: "$5", keys: "$6")) FROM token_broker_records
            WHERE kind = $1 AND tenant = $2 AND key = $3
            """, isPrepared: true)

    /// The row comparison is a range scan of the primary key's index, so every page costs the same.
    static let list = PostgresStatement(
        trusted: """
            \(select)
            WHERE kind = $1 AND (tenant, key) > ($2, $3) ORDER BY tenant, key LIMIT $4
            """, isPrepared: true)

    static let listOfTenant = PostgresStatement(
        trusted: """
            \(select)
            WHERE kind = $1 AND tenant = $5 AND (tenant, key) > ($2, $3) ORDER BY tenant, key LIMIT $4
            """, isPrepared: true)

    /// The statements for one kind of change of a record, which are composed once. $1 to $3 are the record's identity.
    struct RowChange: Sendable {
        let parameterCount: Int
        fileprivate let alone: PostgresStatement
        /// Without a requirement and with one; for each, with 0 to `entryLimit` entries; for each, without a block of the
        /// audit log and with one.
        fileprivate let complete: [[[PostgresStatement]]]

        init(sql: String, parameterCount: Int) {
            self.parameterCount = parameterCount
            alone = PostgresStatement(trusted: sql.replacing(condition, with: ""), isPrepared: true)
            complete = [false, true].map { hasRequirement in
                (0...entryLimit).map { entryCount in
                    [false, true].map { isAudited in
                        let shape = CommitShape(
                            hasRequirement: hasRequirement, entryCount: entryCount, isAudited: isAudited)
                        return makeComplete(sql, parameterCount: parameterCount, shape)
                    }
                }
            }
        }
    }

    /// The placeholder for a further condition of a change.
    private static let condition = "/* and */"

    /// A taken key or look-up digest results in no row. An error would abort the transaction, and the server would
    /// write the values to its log.
    static let insert = RowChange(
        sql: """
            INSERT INTO token_broker_records (kind, tenant, key, version, sealed, lookup, expires, due)
            SELECT $1, $2, $3, $4, $5, $6, $7, $8 WHERE true \(condition) ON CONFLICT DO NOTHING
            """, parameterCount: 8)

    private static let noLease = """
        lease_holder = NULL, lease_expires = NULL, lease_first_use = NULL, lease_state = 0, lease_failure = NULL,
            lease_retry = NULL, lease_state_of = NULL
        """

    static let replace = RowChange(
        sql: """
            UPDATE token_broker_records SET version = $4, sealed = $5, lookup = $6, expires = $7, due = $8,
                \(noLease)
            WHERE kind = $1 AND tenant = $2 AND key = $3 AND version = $9 \(condition)
            """, parameterCount: 9)

    /// Like `replace`, unless a holder other than $10 has a lease that has not expired.
    static let replaceFenced = RowChange(
        sql: """
            UPDATE token_broker_records SET version = $4, sealed = $5, lookup = $6, expires = $7, due = $8,
                \(noLease)
            WHERE kind = $1 AND tenant = $2 AND key = $3 AND version = $9
                AND (lease_holder IS NULL OR lease_holder = $10 OR \(hasRunOut()))
                \(condition)
            """, parameterCount: 10)

    /// Like `replace`, but the lease stays as it is.
    static let replaceKeepingLease = RowChange(
        sql: """
            UPDATE token_broker_records SET version = $4, sealed = $5, lookup = $6, expires = $7, due = $8
            WHERE kind = $1 AND tenant = $2 AND key = $3 AND version = $9 \(condition)
            """, parameterCount: 9)

    static let remove = RowChange(
        sql: """
            DELETE FROM token_broker_records
            WHERE kind = $1 AND tenant = $2 AND key = $3 AND version = $4 \(condition)
            """, parameterCount: 4)

    /// $5 is the mark that the record must have, or NULL for any mark; $6 is the new mark.
    static let settleDue = RowChange(
        sql: """
            UPDATE token_broker_records SET due = $6
            WHERE kind = $1 AND tenant = $2 AND key = $3 AND version = $4 AND due = coalesce($5, due) \(condition)
            """, parameterCount: 6)

    /// $5 is what was read.
    static let resealRecord = PostgresStatement(
        """
        UPDATE token_broker_records SET sealed = $6
        WHERE kind = $1 AND tenant = $2 AND key = $3 AND version = $4 AND sealed = $5
        """, isPrepared: true)

    /// $2 is what was read.
    static let resealEntry = PostgresStatement(
        "UPDATE token_broker_events SET sealed = $3 WHERE sequence = $1 AND sealed = $2", isPrepared: true)

    /// The bits of `lease_state`. A lease whose `lease_expires` is NULL was given up as well: builds that do not know
    /// `lease_state` store it that way.
    enum LeaseState {
        static let isOpen: Int64 = 1
        static let wasGivenUp: Int64 = 2
        static let isSettled: Int64 = 4
    }

    /// Whether the lease has expired or was given up.
    /// - Parameter overdue: an SQL expression: for how many milliseconds the lease must have been expired.
    private static func hasRunOut(for overdue: String = "0") -> String {
        """
        lease_expires IS NULL OR lease_expires <= \(clock) - \(overdue)
            OR \(isDescribed) AND lease_state & \(LeaseState.wasGivenUp) <> 0
        """
    }

    /// $5 takes the lease over from holder $6, or takes a free lease when $6 is NULL. The lease of $6 must have been
    /// expired for $12 milliseconds, unless $8 is 1. $7 is the term in milliseconds, $10 the state, $11 the latest time
    /// of the claim or NULL.
    ///
    /// $9 says whether the claim records its time as the time of the first use of the content: 0 for no, 1 unless an
    /// earlier claim has noted it since the lease began, 2 always. A build that does not know the column leaves an old
    /// time in it when it ends a lease, so a time counts only where `isDescribed` holds.
    static let claim = RowChange(
        sql: """
            UPDATE token_broker_records SET lease_holder = $5, lease_expires = \(clock) + $7, lease_state = $10,
                lease_state_of = $5, lease_first_use = CASE WHEN $9 = 0 THEN NULL
                    WHEN $9 = 2 OR (\(isDescribed)) IS NOT TRUE OR lease_state & \(LeaseState.isSettled) <> 0 THEN \(clock)
                    ELSE coalesce(lease_first_use, \(clock)) END,
                lease_failure = NULL, lease_retry = NULL
            WHERE kind = $1 AND tenant = $2 AND key = $3 AND version = $4 AND \(clock) <= coalesce($11, \(clock))
                AND ((lease_holder = $5 AND lease_expires IS NOT NULL AND lease_state & \(LeaseState.wasGivenUp) = 0)
                    OR (lease_holder IS NULL AND $6 IS NULL)
                    OR (lease_holder = $6 AND $6 <> $5 AND ($8 = 1 OR \(hasRunOut(for: "$12"))))) \(condition)
            """, parameterCount: 12)

    static let release = RowChange(
        sql: """
            UPDATE token_broker_records SET \(noLease)
            WHERE kind = $1 AND tenant = $2 AND key = $3 AND version = $4 AND lease_holder = $5 \(condition)
            """, parameterCount: 5)

    /// Ends the lease and keeps its row columns. $6 is after how many milliseconds `lapsed` lists the lease, or NULL
    /// for never; $7 is the state; $8 is the code of the failure, which counts for $9 milliseconds.
    static let endLease = RowChange(
        sql: """
            UPDATE token_broker_records SET lease_expires = \(clock) + $6, lease_state = $7, lease_failure = $8,
                lease_retry = \(clock) + $9, lease_state_of = $5,
                lease_first_use = CASE WHEN $7 & \(LeaseState.isSettled) <> 0 THEN NULL ELSE lease_first_use END
            WHERE kind = $1 AND tenant = $2 AND key = $3 AND version = $4 AND lease_holder = $5 \(condition)
            """, parameterCount: 9)

    /// The change as a statement of its own. It affects one row, or none when it is in conflict.
    static func alone(_ change: RowChange) -> PostgresStatement { change.alone }

    /// A whole commit in one statement. The change takes place only if the required record exists, and the entries are
    /// appended only if the change takes place, like the block of the audit log. The statement returns one row, or none
    /// when it is in conflict.
    ///
    /// The parameters are those of the change, then of the requirement, then of each entry, then of the block. Nil for
    /// more than `entryLimit` entries.
    static func complete(_ change: RowChange, _ shape: CommitShape) -> PostgresStatement? {
        guard shape.entryCount <= entryLimit else { return nil }
        return change.complete[shape.hasRequirement ? 1 : 0][shape.entryCount][shape.isAudited ? 1 : 0]
    }

    /// What a commit consists of beside the change of a record.
    struct CommitShape {
        var hasRequirement = false
        var entryCount = 0
        var isAudited = false
    }

    /// Commits with more entries are rare.
    private static let entryLimit = 4

    private static func makeComplete(
        _ change: String, parameterCount: Int, _ shape: CommitShape
    ) -> PostgresStatement {
        var last = parameterCount
        func next() -> String {
            last += 1
            return "$\(last)"
        }
        var parts: [String] = []
        if shape.hasRequirement { parts.append("required AS (\(require(kind: next(), tenant: next(), key: next())))") }
        // The condition is evaluated first, so the required row is locked before the changed row.
        let sql = change.replacing(
            condition, with: shape.hasRequirement ? "AND EXISTS (SELECT 1 FROM required)" : "")
        parts.append("changed AS (\(sql) RETURNING 1)")
        if shape.entryCount > 0 {
            let entries = (0..<shape.entryCount).map { place in
                "(\(place), \(next()), \(next()), \(next())::bigint, \(next())::bigint, \(next())::bytea)"
            }
            // The identity column numbers the rows in the order of ORDER BY.
            parts.append(
                """
                appended AS (
                    INSERT INTO token_broker_events (tenant, key, version, time, sealed)
                    SELECT entry.tenant, entry.key, entry.version, entry.time, entry.sealed
                    FROM (VALUES \(entries.joined(separator: ", ")))
                        AS entry (place, tenant, key, version, time, sealed)
                    WHERE EXISTS (SELECT 1 FROM changed) ORDER BY entry.place
                )
                """)
        }
        if shape.isAudited {
            parts.append(
                """
                audited AS (
                    INSERT INTO token_broker_audit (chain, first_entry, last_entry, time, body, hash, signature)
                    SELECT \(next()), \(next())::bigint, \(next())::bigint, \(next())::bigint, \(next()),
                        \(next())::bytea, \(next())::bytea
                    WHERE EXISTS (SELECT 1 FROM changed)
                )
                """)
        }
        return PostgresStatement(
            trusted: "WITH \(parts.joined(separator: ", ")) SELECT 1 FROM changed", isPrepared: true)
    }

    /// Compares with the time of the statement, because an index cannot serve a comparison with the time when a row is
    /// read.
    static let lapsed = PostgresStatement(
        """
        SELECT tenant, key, version, lease_holder FROM token_broker_records
        WHERE kind = $1 AND lease_expires <= (extract(epoch FROM statement_timestamp()) * 1000)::bigint
        ORDER BY lease_expires, tenant, key LIMIT $2
        """, isPrepared: true)

    /// The lock permits replacements of the record, and makes its removal wait for this commit. When a removal holds
    /// the row already, this statement waits for the removal and then finds no row.
    static let require = PostgresStatement(trusted: require(kind: "$1", tenant: "$2", key: "$3"), isPrepared: true)

    private static func require(kind: String, tenant: String, key: String) -> String {
        """
        SELECT 1 FROM token_broker_records WHERE kind = \(kind) AND tenant = \(tenant) AND key = \(key) FOR KEY SHARE
        """
    }

    /// The first half of a tenant's removal: waits for every commit that requires the tenant's record, and blocks new
    /// ones.
    static let removeTenant = PostgresStatement(
        "DELETE FROM token_broker_records WHERE tenant = $1 AND kind = $2")

    /// The second half. It is a statement of its own, because in READ COMMITTED each statement has a new snapshot: this
    /// one sees the records of the commits for which the first half had to wait. The tenant's record is excluded: if
    /// another commit creates the tenant between the halves, removing that record here would leave the records that are
    /// being written under it.
    static let removeTenantRecords = PostgresStatement(
        "DELETE FROM token_broker_records WHERE tenant = $1 AND kind <> $2")

    /// Skips locked records, so that this statement and a concurrent writer do not wait for each other. A record that
    /// is still expired after the write is removed by the next call.
    static let removeExpired = PostgresStatement(
        """
        WITH expired AS MATERIALIZED (
            SELECT kind, tenant, key FROM token_broker_records
            WHERE expires < $1 ORDER BY expires LIMIT $2 FOR UPDATE SKIP LOCKED
        )
        DELETE FROM token_broker_records AS record USING expired
        WHERE record.kind = expired.kind AND record.tenant = expired.tenant AND record.key = expired.key
            AND record.expires < $1
        """, isPrepared: true)

    static let due = PostgresStatement(
        trusted: """
            \(select)
            WHERE kind = $1 AND due < $2 ORDER BY due, tenant, key LIMIT $3
            """, isPrepared: true)

    static let nextDue = PostgresStatement(
        "SELECT min(due) FROM token_broker_records WHERE kind = $1 AND due IS NOT NULL", isPrepared: true)

    /// The kind is part of the text, because the partial index covers only some kinds, and the planner cannot use it
    /// for a parameter.
    static func countDue(_ kind: RecordKind) -> PostgresStatement { countDue[kind]! }

    private static let countDue = Dictionary(
        uniqueKeysWithValues: RecordKind.allCases.map { kind in
            (
                kind,
                PostgresStatement(
                    trusted: """
                        SELECT count(*) FROM (
                            SELECT 1 FROM token_broker_records
                            WHERE kind = '\(kind.rawValue)' AND tenant = $1 AND due > $2 LIMIT $3
                        ) AS pending
                        """, isPrepared: true)
            )
        })

    // MARK: The log

    static let append = PostgresStatement(
        "INSERT INTO token_broker_events (tenant, key, version, time, sealed) VALUES ($1, $2, $3, $4, $5)",
        isPrepared: true)

    /// Finds an entry by its sealed octets, which their nonce makes unique.
    static let appended = PostgresStatement(
        "SELECT EXISTS (SELECT 1 FROM token_broker_events WHERE tenant = $1 AND key = $2 AND sealed = $3)")

    static let entries = PostgresStatement(
        """
        SELECT sequence, tenant, key, version, time, sealed FROM token_broker_events
        WHERE sequence > $1 ORDER BY sequence LIMIT $2
        """, isPrepared: true)

    static let entriesOfTenant = PostgresStatement(
        """
        SELECT sequence, tenant, key, version, time, sealed FROM token_broker_events
        WHERE sequence > $1 AND tenant = $3 ORDER BY sequence LIMIT $2
        """, isPrepared: true)

    /// The last sequence, the trimmed sequence, and whether entries without a sequence exist.
    static let log = PostgresStatement(
        """
        SELECT last, trimmed, EXISTS (SELECT 1 FROM token_broker_events WHERE sequence IS NULL) FROM token_broker_log
        """, isPrepared: true)

    /// Locks the log until the end of the transaction. Transactions that assign sequences or remove entries need the
    /// lock; writers do not.
    static let lockLog = PostgresStatement("SELECT last, trimmed FROM token_broker_log FOR UPDATE", isPrepared: true)

    /// Assigns sequences to up to $1 entries that have none. Returns the bounds of the log and the number of entries;
    /// no row when no entry had none. Needs `lockLog`, as a separate statement before it: in READ COMMITTED this
    /// statement then has a snapshot with every sequence that was assigned before.
    ///
    /// The writer of an entry has drawn its position. An entry that was committed before a writer began has a lower
    /// position than the writer's entries, and is visible in every snapshot that shows them. An entry that is not
    /// visible yet gets a sequence later, and a higher one.
    static let number = PostgresStatement(
        """
        WITH pending AS MATERIALIZED (
            SELECT position, row_number() OVER (ORDER BY position) AS place FROM token_broker_events
            WHERE sequence IS NULL ORDER BY position LIMIT $1
        ), numbered AS (
            UPDATE token_broker_events AS event SET sequence = log.last + pending.place
            FROM pending CROSS JOIN token_broker_log AS log
            WHERE event.position = pending.position RETURNING event.sequence
        ), reached AS (
            SELECT count(*) AS count, max(sequence) AS last FROM numbered
        )
        UPDATE token_broker_log AS log SET last = reached.last FROM reached
        WHERE reached.count > 0 RETURNING log.last, log.trimmed, reached.count
        """, isPrepared: true)

    /// Raises the last sequence, which leaves a gap. Needs `lockLog`.
    static let skipSequences = PostgresStatement("UPDATE token_broker_log SET last = $1 WHERE last < $1")

    static let removeTenantEntries = PostgresStatement("DELETE FROM token_broker_events WHERE tenant = $1")

    // MARK: Notifications

    /// The server delivers the notification when the transaction commits.
    static let notify = PostgresStatement(trusted: "SELECT pg_notify('\(channel)', $1)", isPrepared: true)

    /// Notifies, unless the record of $2 to $4 has a version below $5.
    static let notifyUnless = PostgresStatement(
        trusted: """
            SELECT pg_notify('\(channel)', $1) WHERE NOT EXISTS (
                SELECT 1 FROM token_broker_records WHERE kind = $2 AND tenant = $3 AND key = $4 AND version < $5
            )
            """, isPrepared: true)

    /// Notifies if holder $5 has the lease on the record of $2 to $4.
    static let notifyIfHeld = PostgresStatement(
        trusted: """
            SELECT pg_notify('\(channel)', $1) WHERE EXISTS (
                SELECT 1 FROM token_broker_records WHERE kind = $2 AND tenant = $3 AND key = $4 AND lease_holder = $5
            )
            """, isPrepared: true)

    static let channel = "token_broker"

    // MARK: Transactions

    /// Names the level, because the database's default may be another one, in which `removeTenantRecords` and `number`
    /// would see an old snapshot.
    static let begin = PostgresStatement("BEGIN ISOLATION LEVEL READ COMMITTED")
    static let commit = PostgresStatement("COMMIT")
    static let rollback = PostgresStatement("ROLLBACK")

    /// In a transaction, before its COMMIT; see `StoreDurability`. Returns a row where the value was off.
    static let makeDurable = PostgresStatement(
        """
        SELECT set_config('synchronous_commit', 'on', true)
        WHERE current_setting('synchronous_commit', true) = 'off'
        """, isPrepared: true)
}

// MARK: The server and the schema

extension Statements {
    static let state = PostgresStatement(
        "SELECT pg_is_in_recovery(), current_setting('transaction_read_only')")

    static let isStandby = PostgresStatement("SELECT pg_is_in_recovery()")

    /// True at a standby, and the session ends, so that a pooler makes another one and does not lend this one again. One
    /// statement, because the next one may run in another session.
    static let endSessionAtStandby = PostgresStatement(
        "SELECT CASE WHEN pg_is_in_recovery() THEN pg_terminate_backend(pg_backend_pid()) ELSE false END")

    /// What the role lacks: of each table whether it is missing or not visible, and the privileges.
    static let missingPrivileges = PostgresStatement(
        """
        SELECT table_name, to_regclass(table_name) IS NULL, quote_ident(current_user), (
            SELECT string_agg(privilege, ', ') FROM unnest(string_to_array(privileges, ' ')) AS needed (privilege)
            WHERE NOT has_table_privilege(to_regclass(table_name)::oid, privilege)
        )
        FROM (
            VALUES ('token_broker_records', 'SELECT INSERT UPDATE DELETE'),
                ('token_broker_events', 'SELECT INSERT UPDATE DELETE'), ('token_broker_log', 'SELECT UPDATE'),
                ('token_broker_schema', 'SELECT'), ('token_broker_audit', $1)
        ) AS tables (table_name, privileges)
        ORDER BY table_name
        """)

    /// Whether the settings are off on which it depends that a commit outlives a crash, and the numbers, from 1, of those of the
    /// tables $1 that a crash empties.
    static let durability = PostgresStatement(
        """
        SELECT current_setting('synchronous_commit', true) IS NOT DISTINCT FROM 'off',
            current_setting('fsync', true) IS NOT DISTINCT FROM 'off',
            current_setting('full_page_writes', true) IS NOT DISTINCT FROM 'off',
            coalesce((SELECT array_agg(number ORDER BY number)
                FROM unnest($1::text[]) WITH ORDINALITY AS stored (name, number)
                JOIN pg_class ON oid = to_regclass(name) WHERE relpersistence = 'u'), '{}')
        """)

    /// The system identifier, the timeline in hexadecimal digits, and the flushed end of the write-ahead log, which
    /// survives a crash; the last two are NULL on a standby. The timeline comes from the name of the log's file,
    /// because the control file shows a new timeline only after the next checkpoint.
    static let lineage = PostgresStatement(
        """
        SELECT (SELECT system_identifier FROM pg_control_system()),
            CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_flush_lsn()), 8) END,
            CASE WHEN NOT pg_is_in_recovery() THEN (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint END
        """)

    static let time = PostgresStatement(trusted: "SELECT \(clock)", isPrepared: true)

    static let hasSchema = PostgresStatement("SELECT to_regclass('token_broker_schema') IS NOT NULL")

    /// The version of the schema, and the lowest version that a build must know to work with the migrations after $1.
    static let schemaVersion = PostgresStatement(
        """
        SELECT coalesce(max(version), 0), coalesce(max(compatible) FILTER (WHERE version > $1), 0)
        FROM token_broker_schema
        """)

    static let createSchema = PostgresStatement(
        """
        CREATE TABLE IF NOT EXISTS token_broker_schema (
            version bigint PRIMARY KEY,
            compatible bigint NOT NULL,
            applied timestamp with time zone NOT NULL DEFAULT now()
        )
        """)

    static let recordMigration = PostgresStatement(
        "INSERT INTO token_broker_schema (version, compatible) VALUES ($1, $2)")

    /// Held until the transaction ends, so it works behind a pooler in transaction mode.
    static let lockSchema = PostgresStatement("SELECT pg_advisory_xact_lock($1)")

    /// A migration may wait for another process's migration, and may rewrite a table.
    static let allowLongStatements = PostgresStatement("SET LOCAL statement_timeout = '60s'")
}
