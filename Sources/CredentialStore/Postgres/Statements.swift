internal import Postgres

/// The SQL of the record store. Tables are named without a schema: the role's `search_path` says where they are.
enum Statements {
    // MARK: Records

    /// The database's clock in milliseconds, when a row is read: whoever had to wait for the row does not take a lease
    /// that was given meanwhile.
    private static let clock = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"

    /// Whether what the row says of the lease, but for its holder and its end, is of this holder. Builds before these
    /// columns leave them as they are when they take a lease or end one.
    private static let isDescribed = "lease_state_of = lease_holder"

    private static let select = """
        SELECT tenant, key, version, sealed, lookup, expires, due, lease_holder, lease_expires - \(clock),
            CASE WHEN \(isDescribed) THEN \(clock) - lease_first_use END,
            CASE WHEN \(isDescribed) THEN lease_state ELSE 0 END, lease_failure, lease_retry - \(clock)
        FROM token_broker_records
        """

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

    /// The versions of the records whose kinds, tenants and keys stand at the same places of three arrays. A subquery for
    /// each is one look-up in the primary key's index each: a join would be planned by a guess of how many there are.
    static let versions = PostgresStatement(
        """
        SELECT ARRAY(
            SELECT (
                SELECT record.version FROM token_broker_records AS record
                WHERE record.kind = named.kind AND record.tenant = named.tenant AND record.key = named.key
            )
            FROM unnest($1, $2, $3) WITH ORDINALITY AS named (kind, tenant, key, place) ORDER BY named.place
        )
        """, isPrepared: true)

    /// The row comparison is a range of the primary key's index, however far the list has got.
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

    /// A change of one record, with $1 to $3 for its identity, and how many parameters it has. Its statements are put
    /// together once.
    struct RowChange: Sendable {
        let parameterCount: Int
        fileprivate let alone: PostgresStatement
        /// Without a requirement and with one, each with no entry and up to `entryLimit`.
        fileprivate let complete: [[PostgresStatement]]

        init(sql: String, parameterCount: Int) {
            self.parameterCount = parameterCount
            alone = PostgresStatement(trusted: sql.replacing(condition, with: ""), isPrepared: true)
            complete = [false, true].map { hasRequirement in
                (0...entryLimit).map { makeComplete(sql, parameterCount, hasRequirement, entryCount: $0) }
            }
        }
    }

    /// Where a change says what else must hold for it.
    private static let condition = "/* and */"

    /// A taken key or digest is no row instead of an error: an error would end the transaction, and the server would
    /// write the values into its log.
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

    /// Like `replace`, unless a lease stands that has not run out and is not $10's.
    static let replaceFenced = RowChange(
        sql: """
            UPDATE token_broker_records SET version = $4, sealed = $5, lookup = $6, expires = $7, due = $8,
                \(noLease)
            WHERE kind = $1 AND tenant = $2 AND key = $3 AND version = $9
                AND (lease_holder IS NULL OR lease_holder = $10 OR \(hasRunOut()))
                \(condition)
            """, parameterCount: 10)

    static let remove = RowChange(
        sql: """
            DELETE FROM token_broker_records
            WHERE kind = $1 AND tenant = $2 AND key = $3 AND version = $4 \(condition)
            """, parameterCount: 4)

    /// $5 is the mark that it must have, or NULL, and $6 the one that it gets.
    static let settleDue = RowChange(
        sql: """
            UPDATE token_broker_records SET due = $6
            WHERE kind = $1 AND tenant = $2 AND key = $3 AND version = $4 AND due = coalesce($5, due) \(condition)
            """, parameterCount: 6)

    /// What `lease_state` is put together of. A lease whose `lease_expires` is NULL was given up as well: that is how
    /// builds before these columns say it.
    enum LeaseState {
        static let isOpen: Int64 = 1
        static let wasGivenUp: Int64 = 2
        static let isSettled: Int64 = 4
    }

    /// - Parameter overdue: for how many milliseconds.
    private static func hasRunOut(for overdue: String = "0") -> String {
        """
        lease_expires IS NULL OR lease_expires <= \(clock) - \(overdue)
            OR \(isDescribed) AND lease_state & \(LeaseState.wasGivenUp) <> 0
        """
    }

    /// $5 takes the lease over from $6, or from none where that is NULL: one that has run out for $12, or any where $8 is 1. $9 is
    /// 1 where the content may be used up: the first such claim since the lease began notes the time, which a build
    /// before these columns leaves behind when it ends a lease; 2 where each notes it anew. $10 is the state, and $11 the latest time or NULL.
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

    /// Ends the lease and keeps it. $6 is after how long `lapsed` lists it, or NULL for never, $7 the state, and $8 what
    /// the holder's work failed with, for $9 milliseconds.
    static let endLease = RowChange(
        sql: """
            UPDATE token_broker_records SET lease_expires = \(clock) + $6, lease_state = $7, lease_failure = $8,
                lease_retry = \(clock) + $9, lease_state_of = $5,
                lease_first_use = CASE WHEN $7 & \(LeaseState.isSettled) <> 0 THEN NULL ELSE lease_first_use END
            WHERE kind = $1 AND tenant = $2 AND key = $3 AND version = $4 AND lease_holder = $5 \(condition)
            """, parameterCount: 9)

    /// The change by itself. It touches one row, or none and is in conflict.
    static func alone(_ change: RowChange) -> PostgresStatement { change.alone }

    /// All of a commit in one statement: the change, provided that the record exists which a requirement names, and,
    /// provided that the change took place, entries of the log. It returns one row, or none and is in conflict.
    ///
    /// The parameters are those of the change, of the requirement and of each entry. Nil for a shape of more than four
    /// entries.
    static func complete(_ shape: CommitShape) -> PostgresStatement? {
        guard shape.entryCount <= entryLimit else { return nil }
        return shape.change.complete[shape.hasRequirement ? 1 : 0][shape.entryCount]
    }

    struct CommitShape {
        var change: RowChange
        var hasRequirement = false
        /// 0 to 4: commits with more entries are rare.
        var entryCount = 0
    }

    private static let entryLimit = 4

    private static func makeComplete(
        _ change: String, _ parameterCount: Int, _ hasRequirement: Bool, entryCount: Int
    ) -> PostgresStatement {
        var last = parameterCount
        func next() -> String {
            last += 1
            return "$\(last)"
        }
        var parts: [String] = []
        if hasRequirement { parts.append("required AS (\(require(next(), next(), next())))") }
        // What the condition asks for is asked first: the requirement's row is locked before the change's.
        let sql = change.replacing(
            condition, with: hasRequirement ? "AND EXISTS (SELECT 1 FROM required)" : "")
        parts.append("changed AS (\(sql) RETURNING 1)")
        if entryCount > 0 {
            let entries = (0..<entryCount).map { place in
                "(\(place), \(next()), \(next()), \(next())::bigint, \(next())::bigint, \(next())::bytea)"
            }
            // Identities are drawn in the order of ORDER BY.
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
        return PostgresStatement(
            trusted: "WITH \(parts.joined(separator: ", ")) SELECT 1 FROM changed", isPrepared: true)
    }

    /// The time of the statement, and not of the row's reading, which could not be looked up in an index.
    static let lapsed = PostgresStatement(
        """
        SELECT tenant, key, version, lease_holder FROM token_broker_records
        WHERE kind = $1 AND lease_expires <= (extract(epoch FROM statement_timestamp()) * 1000)::bigint
        ORDER BY lease_expires, tenant, key LIMIT $2
        """, isPrepared: true)

    /// The lock lets replacements of the record through and makes its removal wait for our commit; when a removal has
    /// it already, we wait for that and then find nothing.
    static let require = PostgresStatement(trusted: require("$1", "$2", "$3"), isPrepared: true)

    private static func require(_ kind: String, _ tenant: String, _ key: String) -> String {
        """
        SELECT 1 FROM token_broker_records WHERE kind = \(kind) AND tenant = \(tenant) AND key = \(key) FOR KEY SHARE
        """
    }

    /// The first half of a tenant's removal: waits for every commit that requires the tenant's record, and stops new
    /// ones.
    static let removeTenant = PostgresStatement(
        "DELETE FROM token_broker_records WHERE tenant = $1 AND kind = $2")

    /// The second half. A statement of its own, because READ COMMITTED gives each one a new snapshot: it sees what
    /// those commits wrote for which the first half had to wait. The tenant's record is left out: were one written
    /// between the halves, its removal here would not see what is being written under it.
    static let removeTenantRecords = PostgresStatement(
        "DELETE FROM token_broker_records WHERE tenant = $1 AND kind <> $2")

    /// Records that somebody is writing just now are passed over: they will not be expired, or the next round has
    /// them, and neither waits for the other.
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

    /// The kind is part of the statement: an index is for some kinds only, and a parameter could be any.
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

    /// Sealed octets are unique by their nonce.
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

    /// The last and the trimmed sequence, and whether entries wait for theirs.
    static let log = PostgresStatement(
        """
        SELECT last, trimmed, EXISTS (SELECT 1 FROM token_broker_events WHERE sequence IS NULL) FROM token_broker_log
        """, isPrepared: true)

    /// Held by whoever gives sequences or removes entries, to the end of its transaction; writers do not need it.
    static let lockLog = PostgresStatement("SELECT last, trimmed FROM token_broker_log FOR UPDATE", isPrepared: true)

    /// Gives sequences to up to $1 entries that have none, and tells how far the log then reaches and to how many; no
    /// row where there was none. Under `lockLog`, and a statement of its own: READ COMMITTED gives it a new snapshot, in
    /// which every entry stands that was numbered before us.
    ///
    /// The position of an entry was drawn by its writer. What was committed before a writer began has a lower one and
    /// is visible wherever that writer's entry is. What is not visible yet gets a sequence later, and a higher one.
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

    /// Moves the end of the log on, which leaves a gap. Under `lockLog`.
    static let skipSequences = PostgresStatement("UPDATE token_broker_log SET last = $1 WHERE last < $1")

    /// The old end of the log.
    static let oldest = PostgresStatement(
        """
        SELECT sequence, time FROM token_broker_events WHERE sequence IS NOT NULL ORDER BY sequence LIMIT $1
        """)

    static let trim = PostgresStatement("DELETE FROM token_broker_events WHERE sequence <= $1")

    static let noteTrimmed = PostgresStatement("UPDATE token_broker_log SET trimmed = $1")

    static let removeTenantEntries = PostgresStatement("DELETE FROM token_broker_events WHERE tenant = $1")

    // MARK: What replicas tell each other

    /// The server tells it when the transaction commits, to whoever listens then.
    static let notify = PostgresStatement(trusted: "SELECT pg_notify('\(channel)', $1)", isPrepared: true)

    /// The same, unless the record of $2 to $4 is there with a version before $5.
    static let notifyUnless = PostgresStatement(
        trusted: """
            SELECT pg_notify('\(channel)', $1) WHERE NOT EXISTS (
                SELECT 1 FROM token_broker_records WHERE kind = $2 AND tenant = $3 AND key = $4 AND version < $5
            )
            """, isPrepared: true)

    /// The same, if the record of $2 to $4 has a lease of $5.
    static let notifyIfHeld = PostgresStatement(
        trusted: """
            SELECT pg_notify('\(channel)', $1) WHERE EXISTS (
                SELECT 1 FROM token_broker_records WHERE kind = $2 AND tenant = $3 AND key = $4 AND lease_holder = $5
            )
            """, isPrepared: true)

    static let channel = "token_broker"

    // MARK: Transactions

    /// The level is named because the database's default may be another one, under which `removeTenantRecords` and
    /// `number` would not see enough.
    static let begin = PostgresStatement("BEGIN ISOLATION LEVEL READ COMMITTED")
    static let commit = PostgresStatement("COMMIT")
    static let rollback = PostgresStatement("ROLLBACK")

    // MARK: The server and the schema

    static let state = PostgresStatement(
        "SELECT pg_is_in_recovery(), current_setting('transaction_read_only')")

    /// The system identifier, the timeline in hexadecimal digits, and the durable end of the log of changes, which a crash does not
    /// take back; the last two NULL on a standby. The timeline is taken from there, and not from the control file, which has it after the next checkpoint only.
    static let lineage = PostgresStatement(
        """
        SELECT (SELECT system_identifier FROM pg_control_system()),
            CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_flush_lsn()), 8) END,
            CASE WHEN NOT pg_is_in_recovery() THEN (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint END
        """)

    static let time = PostgresStatement(trusted: "SELECT \(clock)", isPrepared: true)

    static let hasSchema = PostgresStatement("SELECT to_regclass('token_broker_schema') IS NOT NULL")

    /// The schema's version, and the lowest version that a build must know to work with the migrations after $1.
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

    /// Held until the transaction ends, which a pooler in transaction mode respects.
    static let lockSchema = PostgresStatement("SELECT pg_advisory_xact_lock($1)")

    /// A migration may wait for another process's, and rewrite a table.
    static let allowLongStatements = PostgresStatement("SET LOCAL statement_timeout = '60s'")
}
