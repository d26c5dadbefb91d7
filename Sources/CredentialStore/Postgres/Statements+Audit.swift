import Postgres

/// The SQL of the audit log.
extension Statements {
    private static let auditBlock = "SELECT chain, first_entry, last_entry, time, body, hash, signature"

    static let appendAudit = PostgresStatement(
        """
        INSERT INTO token_broker_audit (chain, first_entry, last_entry, time, body, hash, signature)
        VALUES ($1, $2, $3, $4, $5, $6, $7)
        """, isPrepared: true)

    /// How many parameters `appendAudit` has.
    static let auditParameterCount = 7

    /// Whether a block with this number exists.
    static let hasAudit = PostgresStatement(
        "SELECT EXISTS (SELECT 1 FROM token_broker_audit WHERE chain = $1 AND first_entry = $2)")

    private static let auditEnds = """
        SELECT newest.chain, newest.last_entry, newest.hash, chains.begun, newest.time FROM chains
        CROSS JOIN LATERAL (
            SELECT block.chain, block.last_entry, block.hash, block.time FROM token_broker_audit AS block
            WHERE block.chain = chains.chain ORDER BY block.first_entry DESC LIMIT 1
        ) AS newest
        """

    /// The first $2 chains whose names are $1 or come later. Goes from one chain to the next in the index of the primary key,
    /// because the table has many blocks and few chains.
    static let auditChains = PostgresStatement(
        trusted: """
            WITH RECURSIVE names AS (
                (SELECT chain, 1 AS number FROM token_broker_audit WHERE chain >= $1 ORDER BY chain LIMIT 1)
                UNION ALL
                SELECT (
                    SELECT next.chain FROM token_broker_audit AS next
                    WHERE next.chain > names.chain ORDER BY next.chain LIMIT 1
                ), number + 1 FROM names WHERE names.chain IS NOT NULL AND number < $2
            ),
            chains AS (
                SELECT names.chain, (
                    SELECT block.time FROM token_broker_audit AS block
                    WHERE block.chain = names.chain ORDER BY block.first_entry LIMIT 1
                ) AS begun FROM names
            )
            \(auditEnds) ORDER BY newest.chain
            """)

    /// The $3 chains that began last before the time $1, or at that time with a name before $2. Has an index of its own, with
    /// one row for each chain.
    static let newestAuditChains = PostgresStatement(
        trusted: """
            WITH chains AS (
                SELECT chain, time AS begun FROM token_broker_audit
                WHERE first_entry = 1 AND (time, chain) < ($1, $2) ORDER BY time DESC, chain DESC LIMIT $3
            )
            \(auditEnds) ORDER BY chains.begun DESC, newest.chain DESC
            """)

    static let auditBlocks = PostgresStatement(
        trusted: """
            \(auditBlock) FROM token_broker_audit
            WHERE chain = $1 AND first_entry > $2 ORDER BY first_entry LIMIT $3
            """)

    /// Tells the trigger of the table that this transaction removes a chain on purpose.
    static let permitAuditRemoval = PostgresStatement("SET LOCAL token_broker.removes_audit = 'on'")

    static let removeAuditChain = PostgresStatement("DELETE FROM token_broker_audit WHERE chain = $1")
}
