internal import CredentialStore
internal import Cryptography
internal import ExternalText
internal import JSON
internal import OAuth
internal import Reactor

/// Has the sessions that this process stored or ended lately, so that it can do so again if the store loses its last commits.
///
/// Kept for as long as grants are (`GrantMemory`), and only where other processes write to the store: in memory, and those that were begun or ended also in
/// the journal where there is one. What only goes on need not be there: the app's refresh token shows by itself that it is later
/// than what the store has. Safe to use from any task.
final class SessionMemory: Sendable {
    struct Entry: Sendable {
        let id: RecordID
        /// Nil for a session that this process has ended.
        let session: AppSession?
        /// The record's version; of an ended session, the last one.
        let version: Int64
        /// Whether another process has changed the session since, so that that process has it, too.
        fileprivate(set) var isSuperseded = false
    }

    /// Nil where no other process writes to the store.
    private let entries: ExpiringTable<RecordID, Entry>?
    private let span: Duration
    private let journal: Journal?
    private let time: any Time
    private let log: Log

    /// - Parameter span: for how long sessions are kept; zero keeps none.
    init(span: Duration, journal: Journal?, time: any Time, log: Log) {
        entries = span > .zero ? ExpiringTable(validity: span, capacity: 8192, time: time) : nil
        self.span = span
        self.journal = journal
        self.time = time
        self.log = log
    }

    // MARK: Keeping

    /// Keeps a session that goes on.
    func keep(_ session: AppSession) {
        let entry = Entry(id: session.recordID, session: session, version: session.version)
        // A session that has ended does not begin again.
        entries?.set(session.recordID) { known in known.flatMap { $0.session == nil ? $0 : nil } ?? entry }
    }

    /// Keeps a session that was begun, also in the journal.
    func keepBegun(_ session: AppSession) async {
        guard entries != nil else { return }
        keep(session)
        await write(Entry(id: session.recordID, session: session, version: session.version))
    }

    /// Keeps, also in the journal, that this process has ended a session.
    /// - Parameter version: of the session's last record.
    func keepEnded(_ id: RecordID, version: Int64) async {
        guard let entries else { return }
        let entry = Entry(id: id, session: nil, version: version)
        entries.set(id, entry)
        await write(entry)
    }

    private func write(_ entry: Entry) async {
        guard let journal else { return }
        do throws(StoreError) {
            try await journal.keep(KeptSession(entry: entry, kept: time.now).open)
        } catch {
            // The store has it. Only the next process could not store it again.
            log.warning("journal_failed", [.tenant(entry.id.tenant), .store(error)])
        }
    }

    /// Reads what an earlier process has written to the journal.
    /// - Throws: where the journal cannot be read.
    func takeUp() async throws(StoreError) {
        guard let journal, let entries else { return }
        for kept in try await journal.keptSessions().sorted(by: { $0.kept < $1.kept }) where !isOver(kept) {
            entries.set(kept.entry.id, kept.entry)
        }
    }

    // MARK: Dropping

    /// Another process has changed the session.
    func supersede(_ id: RecordID, by version: Int64) {
        entries?.change(id) { entry in
            if entry.session != nil, version > entry.version { entry.isSuperseded = true }
        }
    }

    /// Another process has ended the session.
    func forget(_ id: RecordID) {
        entries?.remove(id) { $0.session != nil }
    }

    /// Drops from the journal what is kept no longer.
    func expire() async {
        guard let journal else { return }
        do throws(StoreError) {
            let over = try await journal.keptSessions().filter { entries == nil || isOver($0) }.map(\.open)
            try await journal.remove(over.map { ($0.id, $0.version) })
        } catch {
            // `Housekeeping` tries again.
            if error != .conflict { log.warning("journal_failed", [.store(error)]) }
        }
    }

    private func isOver(_ kept: KeptSession) -> Bool { kept.kept.duration(to: time.now) >= span }

    // MARK: Looking up

    /// What was stored within the span.
    var recent: [Entry] { entries?.values ?? [] }
}

extension Journal {
    /// All sessions that are kept. A record that this build cannot read is left where it is.
    func keptSessions() async throws(StoreError) -> [KeptSession] { try await kept(.keptSession) { KeptSession($0) } }
}

/// An entry as it is in the journal.
struct KeptSession: Sendable {
    let entry: SessionMemory.Entry
    /// When it was stored, by the time of day.
    let kept: Timestamp

    fileprivate init(entry: SessionMemory.Entry, kept: Timestamp) {
        self.entry = entry
        self.kept = kept
    }

    /// The record that is sealed.
    fileprivate var open: OpenRecord {
        let content = JSONWriter.object { json in
            json.member("kept", kept.milliseconds)
            json.member("version", entry.version)
            json.memberIfPresent("session", entry.session.map { Base64URL.encode($0.encoded) })
        }
        // An end comes after everything else, also in a journal of which an entry was not removed in time.
        return OpenRecord(
            id: RecordID(.keptSession, entry.id.tenant, key: entry.id.key),
            version: entry.session == nil ? entry.version + 1 : entry.version, content: SecretBytes(content))
    }

    /// Nil where this build cannot read the record.
    init?(_ open: OpenRecord) {
        let id = RecordID(.session, open.id.tenant, key: open.id.key)
        guard let json = try? JSONValue(parsing: open.content.revealedBytes), let kept = json["kept"]?.integer,
            let version = json["version"]?.integer
        else { return nil }
        var session: AppSession?
        if let text = json["session"]?.string?.text {
            guard let content = Base64URL.decode(text) else { return nil }
            session = try? AppSession(OpenRecord(id: id, version: version, content: SecretBytes(content)))
            if session == nil { return nil }
        }
        entry = SessionMemory.Entry(id: id, session: session, version: version)
        self.kept = Timestamp(milliseconds: kept)
    }
}
