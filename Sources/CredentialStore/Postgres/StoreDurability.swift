import Postgres
import Reactor
import Synchronization

/// Why a commit that PostgreSQL has acknowledged may be gone after a crash of the server or of its machine.
package enum DurabilityFlaw: Sendable, Hashable {
    /// `synchronous_commit` is off for the sessions of the store's role. The store's own commits are durable all the same.
    case synchronousCommit
    /// `fsync` is off: the database itself may be damaged.
    case fsync
    /// `full_page_writes` is off: on most file systems the database itself may be damaged.
    case fullPageWrites
    /// A crash of the server empties this table of the store.
    case unlogged(table: String)

    /// The setting, or what is to be changed.
    package var text: String {
        switch self {
        case .synchronousCommit: "synchronous_commit = off"
        case .fsync: "fsync = off"
        case .fullPageWrites: "full_page_writes = off"
        case .unlogged(let table): "\(table) is UNLOGGED"
        }
    }
}

/// Makes the store's commits outlive a crash of the server, whatever the server, the database or the role says of that.
///
/// A token that is served must not be forgotten: the one before it is spent. So each transaction sets `synchronous_commit`
/// for itself, in the message of its COMMIT, where the value is `off`, and leaves every other value: an operator who has
/// chosen `local` or `remote_apply` has done so on purpose. Behind a pooler only what a transaction sets for itself holds.
struct StoreDurability: Sendable {
    /// Called when the value was off.
    let report: @Sendable (DurabilityFlaw) -> Void

    /// The end of a transaction.
    static let commit = [PostgresCommand(Statements.makeDurable), PostgresCommand(Statements.commit)]

    /// Notes the result of `Statements.makeDurable`.
    func note(_ result: PostgresResult) {
        if result.first != nil { report(.synchronousCommit) }
    }

    private static let tables = [
        "token_broker_records", "token_broker_events", "token_broker_log", "token_broker_audit", "token_broker_schema",
    ]

    /// What is wrong with the settings of a new transaction's session, and with the tables.
    static func flaws(in database: StoreDatabase) async throws(StoreError) -> [DurabilityFlaw] {
        try await database.query(
            Statements.durability, with: [.texts(tables)]
        ) { result throws(PostgresError) in
            guard let row = result.first, let unlogged = try row.integers(3) else {
                throw .unexpectedResult("the server does not tell its settings")
            }
            var flaws: [DurabilityFlaw] = []
            for (column, flaw) in [DurabilityFlaw.synchronousCommit, .fsync, .fullPageWrites].enumerated() {
                if try row.boolean(column) == true { flaws.append(flaw) }
            }
            for (index, table) in tables.enumerated() where unlogged.contains(Int64(index + 1)) {
                flaws.append(.unlogged(table: table))
            }
            return flaws
        }
    }
}
