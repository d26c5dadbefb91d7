internal import CredentialStore
internal import Cryptography
internal import OAuth
internal import Reactor
internal import Synchronization

/// Has what this process stored lately, sealed under a key of its own, so that it can be stored again if the store loses its
/// last commits: a provider accepts a refresh token once, and then only the newest one is any good. In memory, and in the
/// journal where there is one.
///
/// Bounded: the oldest grant is dropped after the span, and before that where there is no room. When another replica has
/// written the same credentials since, the grant is dropped at once, and only the new version is remembered.
final class GrantMemory: Sendable {
    struct Limits: Sendable {
        /// For how long a grant is kept; zero keeps none.
        var span: Duration
        var entries = 100_000
        /// The memory that all entries may take, by an estimate.
        var bytes = 64 << 20
    }

    fileprivate struct Entry {
        let version: Int64
        /// The credentials; nil where another replica wrote that version.
        let sealed: SecretBytes?
        /// See `RecentGrant.stored`.
        var stored = Timestamp(milliseconds: 0)
        /// The digest of the record's token, and of the tokens that it has replaced.
        let own: [UInt8]?
        let replaced: [[UInt8]]
        /// Whether it is a login or a logout.
        var isAct = false
        let bytes: Int
    }

    fileprivate struct State {
        var entries: [CredentialsID: Entry] = [:]
        /// In the order in which they were stored. Has entries, too, that were replaced since.
        var queue: [(id: CredentialsID, version: Int64, stored: MonotonicInstant)] = []
        /// The index of the first element of the queue that was not dropped.
        var head = 0
        var bytes = 0
        /// What is to be removed from the journal.
        var leaving: [CredentialsID: Int64] = [:]
        /// Seals what is kept. Nil until something is.
        var own: Vault?
    }

    /// As many replaced tokens as another replica may still have stored again.
    private static let replacedLimit = 8
    /// The memory that an entry takes beside its content and digests, about, in bytes.
    private static let overhead = 400

    private let limits: Limits
    private let vault: Vault
    private let journal: Journal?
    private let time: any Time
    private let log: Log
    private let state = Mutex(State())

    /// - Parameter vault: that of the broker's store. If only this process writes to that store, the store loses no commits
    ///   while it is open, and nothing is kept.
    init(_ limits: Limits, vault: Vault, journal: Journal?, time: any Time, log: Log) {
        var limits = limits
        if vault.revalidateAfter == nil { limits.span = .zero }
        self.limits = limits
        self.vault = vault
        self.journal = journal
        self.time = time
        self.log = log
    }

    var isEnabled: Bool { limits.span > .zero }
    var span: Duration { limits.span }
    var count: Int { state.withLock { $0.entries.count } }

    // MARK: Keeping

    /// Keeps a record that was stored. Returns when the record is in the journal, too, where there is one.
    /// - Parameter replaced: the digests of the tokens that it has replaced.
    func keep(_ record: CredentialRecord, _ id: CredentialsID, version: Int64, after replaced: [[UInt8]]) async {
        guard isEnabled else { return }
        let known = state.withLock { state -> [[UInt8]] in
            guard let entry = state.entries[id], entry.sealed != nil else { return [] }
            return entry.replaced + (entry.own.map { [$0] } ?? [])
        }
        let own = record.tokenDigest
        var digests: [[UInt8]] = []
        for digest in known + replaced where digest != own {
            digests.removeAll { $0 == digest }
            digests.append(digest)
        }
        let grant = RecentGrant(
            id: id, version: version, record: record, replaced: digests.suffix(Self.replacedLimit), stored: time.now)
        guard enter(grant, identifiedBy: own, at: time.monotonic), let journal else { return }
        do throws(StoreError) {
            try await journal.write(grant)
        } catch {
            // The record is stored. Only the next process could not store it again.
            log.warning("journal_failed", LogField.credentials(id) + [.store(error)])
        }
    }

    /// - Parameter own: the digest of the record's token.
    /// - Returns: false where a newer version is known, or the record cannot be sealed.
    @discardableResult
    private func enter(_ grant: RecentGrant, identifiedBy own: [UInt8]?, at now: MonotonicInstant) -> Bool {
        let sealed: SecretBytes
        do throws(StoreError) {
            let content = OpenRecord(
                id: RecentGrant.recordID(grant.id), version: grant.version, content: SecretBytes(grant.record.encoded))
            sealed = SecretBytes(try ownVault().seal(content).sealed)
        } catch {
            log.warning("store_failed", LogField.credentials(grant.id) + [.store(error)])
            return false
        }
        return state.withLock { state in
            if let entry = state.entries[grant.id], entry.version > grant.version { return false }
            let digests = (own == nil ? 0 : 1) + grant.replaced.count
            state.set(
                grant.id,
                Entry(
                    version: grant.version, sealed: sealed, stored: grant.stored, own: own, replaced: grant.replaced,
                    isAct: grant.record.isAct, bytes: Self.overhead + sealed.count + 64 * digests), at: now)
            state.leaving[grant.id] = nil
            state.shrink(to: limits, at: now)
            return true
        }
    }

    private func ownVault() throws(StoreError) -> Vault {
        try state.withLock { state throws(StoreError) in
            if let own = state.own { return own }
            let own = try vault.withOwnKey()
            state.own = own
            return own
        }
    }

    /// Reads what an earlier process has written to the journal.
    /// - Throws: where the journal cannot be read.
    func takeUp() async throws(StoreError) {
        guard let journal else { return }
        let (now, wall) = (time.monotonic, time.now)
        for grant in try await journal.grants().sorted(by: { $0.stored < $1.stored }) {
            let age = max(.zero, grant.stored.duration(to: wall))
            if isEnabled, age < limits.span {
                enter(grant, identifiedBy: grant.record.tokenDigest, at: now.advanced(by: .zero - age))
            } else {
                state.withLock { $0.leaving[grant.id] = grant.version }
            }
        }
    }

    // MARK: Dropping

    /// Another replica has probably written that version.
    func supersede(_ id: CredentialsID, by version: Int64) {
        guard isEnabled else { return }
        let now = time.monotonic
        state.withLock { state in
            if let entry = state.entries[id] {
                guard entry.version < version else { return }
                state.leave(id, entry)
            }
            state.set(
                id, Entry(version: version, sealed: nil, own: nil, replaced: [], bytes: Self.overhead), at: now)
            state.shrink(to: limits, at: now)
        }
    }

    func drop(_ id: CredentialsID) {
        state.withLock { $0.remove(id) }
    }

    /// The tenant was removed.
    func drop(_ tenant: TenantName) {
        state.withLock { state in
            for id in state.entries.keys where id.tenant == tenant { state.remove(id) }
        }
    }

    /// Drops the grants whose span is over, in the journal as well.
    func expire() async {
        let now = time.monotonic
        let leaving = state.withLock { state in
            state.shrink(to: limits, at: now)
            return state.leaving
        }
        guard let journal, !leaving.isEmpty else { return }
        do throws(StoreError) {
            try await journal.remove(leaving)
            state.withLock { state in
                for (id, version) in leaving where state.leaving[id] == version { state.leaving[id] = nil }
            }
        } catch {
            // `Housekeeping` tries again.
            if error != .conflict { log.warning("journal_failed", [.store(error)]) }
        }
    }

    // MARK: Looking up

    /// The newest version that is known; 0 for none.
    func version(_ id: CredentialsID) -> Int64 {
        isEnabled ? state.withLock { $0.entries[id]?.version ?? 0 } : 0
    }

    /// Whether this process could store anything again.
    var hasContent: Bool { state.withLock { $0.entries.values.contains { $0.sealed != nil } } }

    /// Whether there is a record that this process could store again.
    func hasContent(_ id: CredentialsID) -> Bool {
        isEnabled && state.withLock { $0.entries[id]?.sealed != nil }
    }

    /// Whether that record was made by a login or a logout.
    func hasAct(_ id: CredentialsID) -> Bool {
        isEnabled && state.withLock { $0.entries[id]?.isAct ?? false }
    }

    /// What this process stored; nil where it stored nothing, or where another replica has written since.
    func grant(_ id: CredentialsID) throws(StoreError) -> RecentGrant? {
        let (entry, own) = state.withLock { ($0.entries[id], $0.own) }
        guard let entry, let sealed = entry.sealed, let own else { return nil }
        let stored = StoredRecord(
            id: RecentGrant.recordID(id), version: entry.version, sealed: sealed.revealedBytes)
        let content = try own.open(stored).content.revealedBytes
        return CredentialRecord(decoding: content).map {
            RecentGrant(
                id: id, version: entry.version, record: $0, replaced: entry.replaced, stored: entry.stored)
        }
    }

    /// All credentials of which a version is known, with that version and whether this process could store it again.
    var all: [(id: CredentialsID, version: Int64, hasContent: Bool)] {
        state.withLock { state in state.entries.map { ($0.key, $0.value.version, $0.value.sealed != nil) } }
    }
}

extension GrantMemory.State {
    fileprivate mutating func set(_ id: CredentialsID, _ entry: GrantMemory.Entry, at now: MonotonicInstant) {
        bytes += entry.bytes - (entries[id]?.bytes ?? 0)
        entries[id] = entry
        queue.append((id, entry.version, now))
    }

    fileprivate mutating func leave(_ id: CredentialsID, _ entry: GrantMemory.Entry) {
        if entry.sealed != nil { leaving[id] = entry.version }
    }

    fileprivate mutating func remove(_ id: CredentialsID) {
        guard let entry = entries.removeValue(forKey: id) else { return }
        bytes -= entry.bytes
        leave(id, entry)
    }

    /// Drops the oldest entries, as far as the limits ask for it.
    fileprivate mutating func shrink(to limits: GrantMemory.Limits, at now: MonotonicInstant) {
        while head < queue.count {
            let first = queue[head]
            let isCurrent = entries[first.id]?.version == first.version
            let isOver = first.stored.advanced(by: limits.span) <= now
            guard !isCurrent || isOver || bytes > limits.bytes || entries.count > limits.entries else { break }
            if isCurrent { remove(first.id) }
            head += 1
        }
        if head > 1024, head * 2 > queue.count {
            queue.removeFirst(head)
            head = 0
        }
    }
}
