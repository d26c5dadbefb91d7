import Postgres

/// The SQL that removes entries of the log.
extension Statements {
    // MARK: Those that are too old

    /// The oldest $1 entries of the log.
    static let oldest = PostgresStatement(
        """
        SELECT sequence, time FROM token_broker_events WHERE sequence IS NOT NULL ORDER BY sequence LIMIT $1
        """)

    static let trim = PostgresStatement("DELETE FROM token_broker_events WHERE sequence <= $1")

    static let noteTrimmed = PostgresStatement("UPDATE token_broker_log SET trimmed = $1")

    // MARK: Those that are too many

    /// Of the next $3 entries behind tenant $1 and sequence $2, in the order of the index by tenant and sequence: how many
    /// each tenant has, and the first and the last sequence of them. Reads the index only.
    static let countEntries = PostgresStatement(
        """
        SELECT tenant, count(*), min(sequence), max(sequence) FROM (
            SELECT tenant, sequence FROM token_broker_events
            WHERE (tenant, sequence) > ($1, $2) AND sequence IS NOT NULL ORDER BY tenant, sequence LIMIT $3
        ) AS part
        GROUP BY tenant ORDER BY tenant
        """)

    /// The tenants whose entry with one of these sequences is a marker.
    static let markedTenants = PostgresStatement(
        """
        SELECT tenant FROM token_broker_events
        WHERE sequence = ANY ($1::text[]::bigint[]) AND octet_length(sealed) = 0
        """)

    /// The sequence of tenant $1's entry that has $3 other ones between itself and the end of $2.
    static let entryBefore = PostgresStatement(
        """
        SELECT sequence FROM token_broker_events
        WHERE tenant = $1 AND sequence <= $2 ORDER BY sequence DESC LIMIT 1 OFFSET $3
        """)

    /// Of the oldest $3 entries of tenant $1 up to sequence $2, and the marker before them: how many entries there are, and
    /// the sequence of the newest or NULL.
    static let surplus = PostgresStatement(
        """
        SELECT count(*) FILTER (WHERE octet_length(sealed) > 0), max(sequence) FROM (
            SELECT sequence, sealed FROM token_broker_events
            WHERE tenant = $1 AND sequence <= $2 ORDER BY sequence
            LIMIT $3 + (SELECT count(*) FROM (
                SELECT sealed FROM token_broker_events
                WHERE tenant = $1 AND sequence <= $2 ORDER BY sequence LIMIT 1
            ) AS oldest WHERE octet_length(sealed) = 0)
        ) AS chosen
        """)

    /// Removes tenant $1's entries before sequence $2. In one transaction with `mark`.
    static let removeBefore = PostgresStatement(
        "DELETE FROM token_broker_events WHERE tenant = $1 AND sequence < $2")

    /// Makes tenant $1's entry with sequence $2 a marker.
    static let mark = PostgresStatement(
        "UPDATE token_broker_events SET sealed = '' WHERE tenant = $1 AND sequence = $2")
}
