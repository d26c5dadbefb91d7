package import OAuth

package enum StoreError: Error, Equatable, Sendable {
    /// A record does not have the version or the state that a change names, or a look-up digest is taken. Nothing was
    /// changed. The caller must read again and decide again.
    case conflict
    /// The store did not answer in time, refused, or cannot write now. Retrying later may help, once an operator has put right
    /// what the store lacks. `commit` throws this only after it has tried to find out whether its changes arrived; they may
    /// have arrived all the same.
    case unavailable
    /// Records cannot be opened with the configured keys, or the store's own files or tables are damaged. Retrying
    /// cannot help before an operator has looked. The text says where to look and contains no secret.
    case damaged(String)
}

/// Sealed, versioned records, and a log of events that is written in the same commits. The memory, file and PostgreSQL
/// stores implement it.
///
/// The log has one order for all readers. A reader that has read up to a sequence never sees a new entry at or before
/// that sequence. The entries of a commit that was complete before another commit began stand before the other one's.
///
/// Implementations may be used from any task and by many tasks at once. None of them reads the sealed content or the
/// wall clock; leases are measured by the store's own clock. Every write is durable before its call returns, except in
/// memory.
package protocol RecordStore: AuditReading {
    /// How long a read value may be used before it must be revalidated. Nil when this process is the store's only
    /// writer, and so knows of every change.
    var revalidateAfter: Duration? { get }

    /// The record, or nil.
    func read(_ id: RecordID) async throws(StoreError) -> StoredRecord?

    /// The record, with the versions of `others` in their order, nil for those that do not exist; nil where there is no record.
    /// Each version was current when the record was read, or later.
    /// - Parameter others: of any kinds; a few.
    func read(_ id: RecordID, with others: [RecordID]) async throws(StoreError) -> (
        record: StoredRecord, versions: [Int64?]
    )?

    /// The record of the kind with this look-up digest, or nil.
    func find(_ kind: RecordKind, lookup: [UInt8]) async throws(StoreError) -> StoredRecord?

    /// The versions of the records, in their order; nil for a record that does not exist. Reads nothing else, because
    /// it is meant for many records of which few have changed.
    ///
    /// Each version was current at some time after the call began, not necessarily at the same time as the others.
    /// - Parameter ids: of any kinds, 0 to 10,000; the same one may occur more than once.
    func versions(of ids: [RecordID]) async throws(StoreError) -> [Int64?]

    /// Up to `limit` records, ordered by tenant and key, those after `after` (exclusive) only.
    /// - Parameter tenant: nil for the records of all tenants.
    func list(
        _ kind: RecordKind, tenant: TenantName?, after: RecordID?, limit: Int
    ) async throws(StoreError) -> [StoredRecord]

    /// Makes all the changes, or none and throws `.conflict`. No two changes name the same record.
    func commit(_ changes: [RecordChange]) async throws(StoreError)

    /// Writes other octets for sealed contents, each where the store still has the octets that were read (and, for a record,
    /// the version). The rest of a record stays: its version, marks and lease. Nothing is reported to other replicas, because
    /// the contents are the same.
    ///
    /// Not all or nothing: items that have changed are left as they are. After an error, some of the octets may have been
    /// written; the caller reads the items again.
    /// - Parameter changes: of one kind of record in the order of `list`, or of the log in its order.
    /// - Returns: how many were written; fewer than were written where the store repeated the call.
    func reseal(_ changes: [Reseal]) async throws(StoreError) -> Int

    /// Up to `limit` leases that a replica should take over: those that have expired without being given up, and those
    /// that were given up with a time for it. Those whose time came first come first.
    func lapsed(_ kind: RecordKind, limit: Int) async throws(StoreError) -> [LapsedLease]

    /// Removes up to `limit` records that expire before `now`. Returns how many were removed.
    func removeExpired(before now: Timestamp, limit: Int) async throws(StoreError) -> Int

    /// Up to `limit` records whose due mark is before `now`, ordered by mark, tenant and key.
    func due(_ kind: RecordKind, before now: Timestamp, limit: Int) async throws(StoreError) -> [StoredRecord]

    /// The earliest due mark of the kind; nil when no record has one.
    func nextDue(_ kind: RecordKind) async throws(StoreError) -> Timestamp?

    /// How many records of the tenant have a due mark after `now`; counts up to `limit`.
    func countDue(_ kind: RecordKind, tenant: TenantName, after now: Timestamp, limit: Int) async throws(StoreError)
        -> Int

    /// Up to `limit` entries of the log, in its order, those after `sequence` (exclusive) only. Includes every entry
    /// whose commit was complete before the call.
    ///
    /// When fewer than `limit` are returned, the reader has seen everything up to the bounds that `logBounds` returned
    /// before this call. A reader of one tenant can continue from those bounds, and so does not scan the entries of
    /// other tenants again.
    /// - Parameter tenant: nil for the entries of all tenants.
    func entries(
        after sequence: Int64, tenant: TenantName?, limit: Int
    ) async throws(StoreError) -> [PlacedLogEntry]

    /// Whether the log has this entry, with exactly its sealed octets. May read the whole log.
    func contains(_ entry: StoredLogEntry) async throws(StoreError) -> Bool

    /// The bounds of the log, including the entries whose commit was complete before the call.
    func logBounds() async throws(StoreError) -> LogBounds

    /// Removes up to `limit` entries that are too old or too many, and returns how many were removed.
    ///
    /// Too old are those at the old end of the log whose time is before `time`, up to the first one that is not. Then,
    /// while the log has more than `count` entries, the tenant that has the most loses its oldest ones; so a tenant with
    /// few entries keeps them, whatever others write. The newest one that a tenant loses so stays as its only marker
    /// (`StoredLogEntry.isMarker`), for the readers that it was removed from; a marker is not counted, and goes when it
    /// is too old. Only the removal of old entries moves a bound. The removal of a tenant's entries moves none, and
    /// removes its marker.
    func trimLog(before time: Timestamp, keeping count: Int, limit: Int) async throws(StoreError) -> Int

    /// Removes a chain of the audit log, whole. Does nothing when there is none. For an operator: a role that only inserts
    /// may not do so.
    func removeAuditChain(_ chain: String) async throws(StoreError)

    /// Reports every commit of other replicas to `notify`, and whether the reports are complete, until the store is
    /// closed. To be called at most once. `notify` is called in order and must not block.
    ///
    /// A store whose only writer is this process reports nothing.
    ///
    /// When the store has lost commits, `notify` is told before a result that shows the loss is returned.
    func watch(_ notify: @escaping @Sendable (StoreNotification) -> Void)

    /// The time of day by the clock that all replicas share; nil when this process is the only user of the store.
    func clock() async throws(StoreError) -> Timestamp?

    /// The history of commits that the store shows now; nil when the store does not tell. When it differs from the
    /// known one, watchers are told before this returns.
    func lineage() async throws(StoreError) -> StoreLineage?

    /// Has the log of events go on after every sequence that was assigned before the store lost its last commits. To be
    /// called by a process that finds that the store has gone back before the process knew the store's lineage.
    func resumeLog() async throws(StoreError)

    /// Checks that the store can be reached and written to, and that this build knows its schema.
    func check() async throws(StoreError)

    /// Closes connections, ends threads and releases locks. No other call may follow.
    func close() async
}

extension RecordStore {
    package func read(_ id: RecordID, with others: [RecordID]) async throws(StoreError) -> (
        record: StoredRecord, versions: [Int64?]
    )? {
        guard let record = try await read(id) else { return nil }
        return (record, try await versions(of: others))
    }

    package func lineage() async throws(StoreError) -> StoreLineage? { nil }

    /// A store that has no lineage does not go back.
    package func resumeLog() async throws(StoreError) {}
}
