internal import ExternalText
package import OAuth

/// What a record is about. The raw value stands in keys, file names and associated data: never change one.
package enum RecordKind: String, Sendable, CaseIterable, Hashable {
    /// A tenant's configuration; the key is empty.
    case tenant
    /// A caller's key; the key is its identifier, the look-up digest that of the secret.
    case apiKey = "api-key"
    /// A set of credentials, or the tombstone that a logout left; the key is the storage key.
    case credentials
    /// Shows at start that the configured keys are the ones that sealed this store; under the tenant `.broker`, the
    /// key is the sealing key's identity.
    case keyCheck = "key-check"
    /// A login between its two legs, then its outcome; the key is the login's identifier, the look-up digest that of
    /// its `state`.
    case login
    /// A device login, then its outcome; the key is the login's identifier, the look-up digest that of its handle.
    case device
    /// Credentials that a provider ended, kept until their expiry; the key is the storage key.
    case quarantine
    /// What renewals have failed with; the key is the storage key, or empty for what hits all users of a tenant.
    case trouble
    /// Credentials that a provider granted and the shared store could not take yet; in a process's own journal only.
    /// The key is the storage key.
    case unpublished
    /// The identity of a journal; under the tenant `.broker`, the key is empty.
    case process
    /// What this process stored of late, for a store that goes back; in a process's own journal only. The key is the storage
    /// key.
    case granted
    /// Under the tenant `.broker`: which history of commits the shared store showed last; see `StoreLineage`.
    case lineage
}

/// Where a record stands.
package struct RecordID: Hashable, Sendable, Comparable {
    package let kind: RecordKind
    package let tenant: TenantName
    /// 0 to 200 characters of `[A-Za-z0-9._~:@-]`.
    package let key: String

    package init(_ kind: RecordKind, _ tenant: TenantName, key: String = "") {
        self.kind = kind
        self.tenant = tenant
        self.key = key
    }

    package static func < (left: RecordID, right: RecordID) -> Bool {
        if left.kind != right.kind { return left.kind.rawValue < right.kind.rawValue }
        if left.tenant != right.tenant { return left.tenant < right.tenant }
        return left.key.utf8.lexicographicallyPrecedes(right.key.utf8)
    }

    // A key can come from a caller or from the database: it is compared by its bytes.

    package static func == (left: RecordID, right: RecordID) -> Bool {
        left.kind == right.kind && left.tenant == right.tenant && WireText(left.key) == WireText(right.key)
    }

    package func hash(into hasher: inout Hasher) {
        hasher.combine(kind)
        hasher.combine(tenant)
        hasher.combine(WireText(key))
    }
}

/// A record as a store keeps it: the content is sealed, the store cannot read it.
package struct StoredRecord: Sendable, Equatable {
    package var id: RecordID
    /// Rises with every write of the record; chosen by the writer.
    package var version: Int64
    package var sealed: [UInt8]
    /// SHA-256 of a secret by which the record is found; unique among the records of its kind.
    package var lookup: [UInt8]?
    /// When the record may be removed; nil keeps it.
    package var expires: Timestamp?
    /// When something is to be done about the record; nil when nothing is. A mark that `settleDue` takes away without a
    /// new version, so that no seal is tied to it. The store itself does nothing at that time.
    package var due: Timestamp?
    /// Who is at work on the record, or was and never said how that ended; nil for nobody. No seal is tied to it. A
    /// store takes it from `claim` alone: what a record bears that is inserted or replaced does not count.
    package var lease: Lease?

    package init(
        id: RecordID, version: Int64, sealed: [UInt8], lookup: [UInt8]? = nil, expires: Timestamp? = nil,
        due: Timestamp? = nil, lease: Lease? = nil
    ) {
        self.id = id
        self.version = version
        self.sealed = sealed
        self.lookup = lookup
        self.expires = expires
        self.due = due
        self.lease = lease
    }
}

/// One step of a commit.
package enum RecordChange: Sendable, Equatable {
    /// Writes a record that does not exist yet.
    case insert(StoredRecord)
    /// Writes a record in place of the one that has exactly this version. The new version is higher. The lease goes.
    /// - Parameter fencedFor: a holder: then it is a conflict, too, while another one's lease has not run out. Nil
    ///   heeds no lease.
    case replace(StoredRecord, version: Int64, fencedFor: String? = nil)
    /// Removes the record that has exactly this version.
    case remove(RecordID, version: Int64)
    /// Changes nothing: the commit takes place only while the record exists, whatever its version.
    case require(RecordID)
    /// Removes every record of the tenant, of every kind, and its entries in the log except those that the same commit
    /// appends. Never a conflict.
    case removeAll(TenantName)
    /// Moves the due mark of the record that has exactly this version and one to `next`, or takes it away; the record's
    /// version and content stay. What is committed together with it is done once, however many try, if the mark goes or
    /// if they all name the one that they saw.
    /// - Parameter due: the mark that the record must have; nil takes any.
    case settleDue(RecordID, version: Int64, due: Timestamp? = nil, next: Timestamp? = nil)
    /// Takes the lease on the record that has exactly this version, for a time that begins with the commit. The record
    /// must have no lease, with `replacing` nil; or the claimer's own, run out or not but not given up, which is extended
    /// and may be named in `replacing`; or one of
    /// `replacing`'s that has run out, was given up, or is taken over standing. The record's version and content stay.
    case claim(RecordID, version: Int64, LeaseClaim)
    /// Ends `holder`'s lease, run out or not, on the record that has exactly this version.
    case release(RecordID, version: Int64, holder: String, LeaseRelease)
    /// Adds an entry at the end of the log. Several of a commit keep their order. Never a conflict.
    case append(StoredLogEntry)
}

package enum StoreError: Error, Equatable, Sendable {
    /// The world moved on: a record is not at the version, or not in the state, that a change names; a look-up digest
    /// is taken. Nothing was changed. Read again and decide again.
    case conflict
    /// The store did not answer in time, refused, or cannot write now. Nothing is known to have changed; `commit`
    /// has looked whether its changes arrived, where that could be found out. Retrying later may help.
    case unavailable
    /// Records exist that the configured keys cannot open, or the store's own files are damaged. Retrying cannot help;
    /// an operator must look. The text says where to look and holds no secret.
    case damaged(String)
}

/// Sealed, versioned records, and a log that is written in the same commits: the one thing that the memory, file and
/// PostgreSQL stores have in common.
///
/// The log has one order, the same for every reader: whoever has read up to a sequence never sees another entry at or
/// before it appear, and the entries of a commit that was done before another one began stand before that one's.
///
/// Implementations are safe to use from any task and by many at once. None of them reads the sealed content or the
/// wall clock; leases are measured by the store's own clock. Every write is durable before its call returns (memory excepted).
package protocol RecordStore: Sendable {
    /// For how long what was read may be used without asking again: nil when this process is the store's only
    /// writer and so knows of every change.
    var revalidateAfter: Duration? { get }

    /// The record, or nil.
    func read(_ id: RecordID) async throws(StoreError) -> StoredRecord?

    /// The record of that kind with that look-up digest, or nil.
    func find(_ kind: RecordKind, lookup: [UInt8]) async throws(StoreError) -> StoredRecord?

    /// The version of each of these records, in their order; nil where there is no such record. Nothing else of them is
    /// read: it is for many at once, of which hardly any has changed.
    ///
    /// What is told of each record was so at some time after the call began; that need not be the same time for all.
    /// - Parameter ids: of any kinds, 0 to 10,000; one may be named more than once.
    func versions(of ids: [RecordID]) async throws(StoreError) -> [Int64?]

    /// Up to `limit` records in the order of their tenant and key, those after `after` (exclusive) only.
    /// - Parameter tenant: nil for the records of every tenant.
    func list(
        _ kind: RecordKind, tenant: TenantName?, after: RecordID?, limit: Int
    ) async throws(StoreError) -> [StoredRecord]

    /// Makes all the changes, or none and throws `.conflict`. No two changes name the same record.
    func commit(_ changes: [RecordChange]) async throws(StoreError)

    /// Up to `limit` records whose lease has run out without having been given up, or was given up for another replica to
    /// see to, those first that did so first.
    func lapsed(_ kind: RecordKind, limit: Int) async throws(StoreError) -> [LapsedLease]

    /// Removes up to `limit` records whose expiry is before `now`. Returns how many went.
    func removeExpired(before now: Timestamp, limit: Int) async throws(StoreError) -> Int

    /// Up to `limit` records whose due mark is before `now`, the earliest first, then in the order of their tenant and
    /// key.
    func due(_ kind: RecordKind, before now: Timestamp, limit: Int) async throws(StoreError) -> [StoredRecord]

    /// The earliest due mark of the kind's records; nil when none has one.
    func nextDue(_ kind: RecordKind) async throws(StoreError) -> Timestamp?

    /// How many records of the tenant have a due mark after `now`; no more than `limit` are counted.
    func countDue(_ kind: RecordKind, tenant: TenantName, after now: Timestamp, limit: Int) async throws(StoreError)
        -> Int

    /// Up to `limit` entries of the log, in its order, those after `sequence` (exclusive) only. Every entry is there
    /// whose commit was done before the call.
    ///
    /// When fewer than `limit` come back, everything has been read that `logBounds` told of before this call: a reader
    /// of one tenant who goes on from there does not pass over the others' entries again and again.
    /// - Parameter tenant: nil for the entries of every tenant.
    func entries(
        after sequence: Int64, tenant: TenantName?, limit: Int
    ) async throws(StoreError) -> [PlacedLogEntry]

    /// How far the log reaches, the entries included whose commit was done before the call.
    func logBounds() async throws(StoreError) -> LogBounds

    /// Removes up to `limit` entries from the old end of the log: those whose time is before `time`, and those whose
    /// sequence is `count` or more below the last one. It stops at the first entry that is neither. Returns how many
    /// went; what removes a tenant's entries moves no bound.
    func trimLog(before time: Timestamp, keeping count: Int, limit: Int) async throws(StoreError) -> Int

    /// Has `hear` told of every commit that others make, and of how far that can be relied on, until the store is
    /// closed. To be called once at most. `hear` is called in the order of what it tells, and must not block.
    ///
    /// A store whose only writer is this process tells nothing.
    ///
    /// That the store has gone back is told before anything is read or written that shows it.
    func watch(_ hear: @escaping @Sendable (StoreNews) -> Void)

    /// The time of day by the clock that every user of the store shares; nil where that is this process's own.
    func clock() async throws(StoreError) -> Timestamp?

    /// Which history of commits the store shows now; nil where it does not tell. One that differs from what was known is
    /// told to whoever watches before this returns.
    func lineage() async throws(StoreError) -> StoreLineage?

    /// Shows that the store can be reached and written to, and that its schema is the one that this build knows.
    func check() async throws(StoreError)

    /// Ends connections and threads and lets go of locks. No other call may follow.
    func close() async
}

extension RecordStore {
    package func lineage() async throws(StoreError) -> StoreLineage? { nil }
}
