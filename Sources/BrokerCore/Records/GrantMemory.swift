internal import CredentialStore
internal import Cryptography
internal import OAuth
internal import Reactor
internal import Synchronization

/// Keeps, sealed, what this process stored of late, so that it can be stored again where the store loses its last commits:
/// a provider takes a refresh token once, and then only the newest one is any good. In memory, and in the journal where
/// there is one.
///
/// Bounded: what was kept first gives way, after the span, and before that where there is no room. What another replica has
/// written since makes way at once; of that the version alone is remembered.
final class GrantMemory: Sendable {
    struct Limits: Sendable {
        /// How long something is kept; zero keeps nothing.
        var span: Duration
        var entries = 100_000
        /// Of the sealed contents and what goes with them, by estimate.
        var bytes = 64 << 20
    }

    fileprivate struct Entry {
        let version: Int64
        /// Nil where another replica wrote that version.
        let sealed: SecretBytes?
        /// The digest of what is held, and of what that came after.
        let own: [UInt8]?
        let replaced: [[UInt8]]
        /// Whether it is a login or a logout.
        var isAct = false
        let bytes: Int
    }

    fileprivate struct State {
        var entries: [CredentialsID: Entry] = [:]
        /// In the order in which they were kept; those that were replaced since are in it still.
        var queue: [(id: CredentialsID, version: Int64, kept: MonotonicInstant)] = []
        /// Those of the queue before it are gone.
        var head = 0
        var bytes = 0
        /// What is to leave the journal.
        var leaving: [CredentialsID: Int64] = [:]
    }

    /// More are not needed to know what another replica can have put back.
    private static let replacedLimit = 8
    /// What an entry takes of memory beside what it holds, about.
    private static let overhead = 400

    private let limits: Limits
    private let vault: Vault
    private let journal: Journal?
    private let time: any Time
    private let log: Log
    private let state = Mutex(State())

    /// - Parameter vault: of the store whose records are kept, for its keys. One that nobody else writes to does not go back
    ///   while this process has it open, and nothing is kept.
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

    /// Keeps what was stored. Returns when it is in the journal, too, where there is one.
    /// - Parameter replaced: digests of what it came after.
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
        let grant = KeptGrant(
            id: id, version: version, record: record, replaced: digests.suffix(Self.replacedLimit), kept: time.now)
        guard enter(grant, at: time.monotonic), let journal else { return }
        do throws(StoreError) {
            try await journal.keep(grant)
        } catch {
            // It is stored; the next process does not have it for a store that goes back.
            log.warning("journal_failed", LogField.credentials(id) + [.store(error)])
        }
    }

    /// Returns false where something later is known, or nothing can be sealed.
    @discardableResult
    private func enter(_ grant: KeptGrant, at now: MonotonicInstant) -> Bool {
        let sealed: SecretBytes
        do throws(StoreError) {
            sealed = SecretBytes(try vault.seal(grant.open).sealed)
        } catch {
            log.warning("store_failed", LogField.credentials(grant.id) + [.store(error)])
            return false
        }
        let own = grant.record.tokenDigest
        return state.withLock { state in
            if let entry = state.entries[grant.id], entry.version > grant.version { return false }
            let digests = (own == nil ? 0 : 1) + grant.replaced.count
            state.set(
                grant.id,
                Entry(
                    version: grant.version, sealed: sealed, own: own, replaced: grant.replaced,
                    isAct: grant.record.isAct, bytes: Self.overhead + sealed.count + 64 * digests), at: now)
            state.leaving[grant.id] = nil
            state.shrink(to: limits, at: now)
            return true
        }
    }

    /// Takes up what an earlier process kept in the journal.
    /// - Throws: where the journal cannot be read.
    func takeUp() async throws(StoreError) {
        guard let journal else { return }
        let (now, wall) = (time.monotonic, time.now)
        for grant in try await journal.grants().sorted(by: { $0.kept < $1.kept }) {
            let age = max(.zero, grant.kept.duration(to: wall))
            if isEnabled, age < limits.span {
                enter(grant, at: now.advanced(by: .zero - age))
            } else {
                state.withLock { $0.leaving[grant.id] = grant.version }
            }
        }
    }

    // MARK: Letting go

    /// Another replica gave the credentials that version, for all that is known.
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

    /// The tenant is gone.
    func drop(_ tenant: TenantName) {
        state.withLock { state in
            for id in state.entries.keys where id.tenant == tenant { state.remove(id) }
        }
    }

    /// Lets go of what has been kept for long enough, in the journal as well.
    func expire() async {
        let now = time.monotonic
        let leaving = state.withLock { state in
            state.shrink(to: limits, at: now)
            return state.leaving
        }
        guard let journal, !leaving.isEmpty else { return }
        do throws(StoreError) {
            try await journal.forget(leaving)
            state.withLock { state in
                for (id, version) in leaving where state.leaving[id] == version { state.leaving[id] = nil }
            }
        } catch {
            // Tried again the next time.
            if error != .conflict { log.warning("journal_failed", [.store(error)]) }
        }
    }

    // MARK: What is known

    /// The newest version that is known of; 0 for none.
    func version(_ id: CredentialsID) -> Int64 {
        isEnabled ? state.withLock { $0.entries[id]?.version ?? 0 } : 0
    }

    /// Whether there is something that this process could store again.
    func hasContent(_ id: CredentialsID) -> Bool {
        isEnabled && state.withLock { $0.entries[id]?.sealed != nil }
    }

    /// Whether that is a login or a logout.
    func hasAct(_ id: CredentialsID) -> Bool {
        isEnabled && state.withLock { $0.entries[id]?.isAct ?? false }
    }

    /// What this process stored; nil for nothing, and where another replica has written since.
    func kept(_ id: CredentialsID) throws(StoreError) -> KeptGrant? {
        guard let entry = state.withLock({ $0.entries[id] }), let sealed = entry.sealed else { return nil }
        let stored = StoredRecord(
            id: KeptGrant.recordID(id), version: entry.version, sealed: sealed.revealedBytes)
        return KeptGrant(try vault.open(stored))
    }

    /// Every set of credentials of which something is known, with its version and whether it could be stored again.
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

    /// Has those give way that were kept first.
    fileprivate mutating func shrink(to limits: GrantMemory.Limits, at now: MonotonicInstant) {
        while head < queue.count {
            let first = queue[head]
            let isCurrent = entries[first.id]?.version == first.version
            let isOver = first.kept.advanced(by: limits.span) <= now
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
