internal import Postgres

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

    /// Whether a block with these numbers exists, and whether it has hash $3.
    static let hasAudit = PostgresStatement(
        "SELECT hash = $3 FROM token_broker_audit WHERE chain = $1 AND first_entry = $2")

    /// Goes from one chain to the next in the index of the primary key, because the table has many blocks and few chains.
    /// $1 is the earliest time of a chain's last block, or NULL.
    static let auditChains = PostgresStatement(
        """
        WITH RECURSIVE chains AS (
            (SELECT chain FROM token_broker_audit ORDER BY chain LIMIT 1)
            UNION ALL
            SELECT (
                SELECT next.chain FROM token_broker_audit AS next
                WHERE next.chain > chains.chain ORDER BY next.chain LIMIT 1
            ) FROM chains WHERE chains.chain IS NOT NULL
        )
        SELECT newest.chain, newest.last_entry, newest.hash, oldest.time, newest.time FROM chains
        CROSS JOIN LATERAL (
            SELECT block.chain, block.last_entry, block.hash, block.time FROM token_broker_audit AS block
            WHERE block.chain = chains.chain ORDER BY block.first_entry DESC LIMIT 1
        ) AS newest
        CROSS JOIN LATERAL (
            SELECT block.time FROM token_broker_audit AS block
            WHERE block.chain = chains.chain ORDER BY block.first_entry LIMIT 1
        ) AS oldest
        WHERE newest.time >= coalesce($1, newest.time) ORDER BY newest.chain
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
