internal import Containers
internal import CredentialStore
internal import Reactor
internal import Synchronization

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
        fileprivate let stored: MonotonicInstant
    }

    private static let span: Duration = .seconds(120)

    private let isEnabled: Bool
    private let time: any Time
    private let entries = Mutex(BoundedTable<RecordID, Entry>(capacity: 8192))

    init(isEnabled: Bool, time: any Time) {
        self.isEnabled = isEnabled
        self.time = time
    }

    /// - Parameter session: nil for a session that has ended.
    func keep(_ session: AppSession?, _ id: RecordID, version: Int64) {
        guard isEnabled else { return }
        let entry = Entry(id: id, session: session, version: version, stored: time.monotonic)
        entries.withLock { _ = $0.setNewest(entry, forKey: id) }
    }

    /// Another process has changed the session, or ended it.
    /// - Parameter version: nil for an end.
    func forget(_ id: RecordID, olderThan version: Int64?) {
        guard isEnabled else { return }
        entries.withLock { entries in
            guard let entry = entries[id], entry.session != nil else { return }
            if version.map({ $0 > entry.version }) ?? true { _ = entries.removeValue(forKey: id) }
        }
    }

    /// What was stored within the span.
    var recent: [Entry] {
        guard isEnabled else { return [] }
        let now = time.monotonic
        return entries.withLock { $0.all }.map(\.value).filter { $0.stored.advanced(by: Self.span) > now }
    }
}
