internal import CredentialStore
internal import Reactor

/// Has the sessions that this process stored or ended lately, so that it can do so again if the store loses its last commits.
///
/// Kept in memory only, for two minutes, and only where other processes write to the store. Safe to use from any task.
final class SessionMemory: Sendable {
    struct Entry: Sendable {
        let id: RecordID
        /// Nil for a session that this process has ended.
        let session: AppSession?
        /// The record's version; of an ended session, the last one.
        let version: Int64
    }

    /// Nil where no other process writes to the store.
    private let entries: ExpiringTable<RecordID, Entry>?

    init(isEnabled: Bool, time: any Time) {
        entries = isEnabled ? ExpiringTable(validity: .seconds(120), capacity: 8192, time: time) : nil
    }

    /// - Parameter session: nil for a session that has ended.
    func keep(_ session: AppSession?, _ id: RecordID, version: Int64) {
        entries?.set(id, Entry(id: id, session: session, version: version))
    }

    /// Another process has changed the session, or ended it.
    /// - Parameter version: nil for an end.
    func forget(_ id: RecordID, olderThan version: Int64?) {
        entries?.remove(id) { entry in
            entry.session != nil && (version.map { $0 > entry.version } ?? true)
        }
    }

    /// What was stored within the last two minutes.
    var recent: [Entry] { entries?.values ?? [] }
}
