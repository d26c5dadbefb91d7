import Synchronization

/// A commit that may be sent more than once: `Vault.prepare` makes it.
///
/// Its records and entries are sealed once. So every try has the same octets, and when the answer to one was lost, the next one
/// finds out whether the store has carried it out.
///
/// To be sent by one task at a time.
package final class PreparedCommit: Sendable {
    /// When a commit was carried out that has succeeded.
    package enum Arrival: Sendable {
        /// By this call. The records are now what the commit made of them.
        case now
        /// By an earlier call, whose answer was lost. The records may have gone on since.
        case earlier
    }

    private struct State {
        var wasSent = false
        var wasCarriedOut = false
    }

    package let changes: [VaultChange]
    let sealed: [RecordChange]
    /// What the audit log is to tell of the changes.
    let entries: [AuditEntry]
    private let state = Mutex(State())

    init(_ changes: [VaultChange], sealed: [RecordChange], telling entries: [AuditEntry]) {
        self.changes = changes
        self.sealed = sealed
        self.entries = entries
    }

    var wasCarriedOut: Bool { state.withLock(\.wasCarriedOut) }

    /// To be called before each try.
    /// - Returns: whether there was one before.
    func noteSending() -> Bool {
        state.withLock { state in
            defer { state.wasSent = true }
            return state.wasSent
        }
    }

    func noteCarriedOut() { state.withLock { $0.wasCarriedOut = true } }
}
