import CredentialStore

/// The records of one kind, in the store and in memory: read from memory while their entries are valid, and written to both.
///
/// Each call of the store begins with a ticket of the cache, so that a change that is made or reported meanwhile is not lost: what
/// a slow read finds is not cached once another replica's change was reported that it does not contain.
///
/// A struct, so that a warm read follows no further reference to `cache`. Safe to use from any task.
struct CachedRecords<Key: Hashable & Sendable, Value: Cacheable>: Sendable {
    /// The values in memory, for reads that do not suspend.
    let cache: RevalidatingCache<Key, Value>
    private let vault: Vault
    private let time: any Time

    init(_ cache: RevalidatingCache<Key, Value>, vault: Vault, time: any Time) {
        self.cache = cache
        self.vault = vault
        self.time = time
    }

    // MARK: Reading

    /// The value as it was last read or written, valid or not; nil where it is not cached.
    func known(_ key: Key) -> Value? { cache.any(key) }

    /// The value, while it is valid in memory.
    func valid(_ key: Key) -> Value? { cache.fresh(key, now: time.monotonic) }

    /// The value that `read` finds in the store, nil where there is none.
    func current(
        _ key: Key, _ read: () async throws(StoreError) -> Value?
    ) async throws(StoreError) -> Value? {
        try await reading(key) { found async throws(StoreError) in
            let value = try await read()
            found(value)
            return value
        }
    }

    /// Reads from the store. `read` passes to `found` what it has found, nil for a record that does not exist; what it does not
    /// pass is not cached.
    func reading<Result>(
        _ key: Key, _ read: (_ found: (Value?) -> Void) async throws(StoreError) -> Result
    ) async throws(StoreError) -> Result {
        let ticket = cache.ticket(key, now: time.monotonic)
        return try await read { cache.fill(key, $0, ticket) }
    }

    // MARK: Writing

    /// Makes a commit that writes the value's record, and caches the value. Where it is unknown whether the commit was made, the
    /// entry goes, so that the next reader asks the store.
    func write(
        _ key: Key, _ value: Value, by commit: () async throws(StoreError) -> Void
    ) async throws(StoreError) {
        _ = try await write(
            key, value,
            sending: { () async throws(StoreError) in
                try await commit()
                return .now
            })
    }

    /// The same for a commit that may be sent again. What an earlier call has written is not cached, since the record may have
    /// gone on since, and the entry goes, since it may be what the commit replaced: the caller reads it again.
    /// - Parameter stays: whether the entry stays that is there when the commit was made.
    func write(
        _ key: Key, _ value: Value, unless stays: (Value) -> Bool = { _ in false },
        sending commit: () async throws(StoreError) -> PreparedCommit.Arrival
    ) async throws(StoreError) -> PreparedCommit.Arrival {
        let ticket = cache.ticket(key, now: time.monotonic)
        let arrival: PreparedCommit.Arrival
        do throws(StoreError) {
            arrival = try await commit()
        } catch {
            if error != .conflict { cache.remove(key) }
            throw error
        }
        if let known = known(key), stays(known) { return arrival }
        switch arrival {
        case .now: cache.put(key, value, ticket)
        case .earlier: cache.remove(key)
        }
        return arrival
    }

    /// Removes the record of `key`. Whatever becomes of that, the next reader asks the store.
    /// - Parameter removal: reads what it removes; called again after a conflict, up to 32 times.
    func remove<Result>(
        _ key: Key, _ removal: () async throws(StoreError) -> Result
    ) async throws(StoreError) -> Result {
        defer { cache.remove(key) }
        return try await retryingConflicts(removal)
    }

    /// Removes the entry, but not the record.
    func forget(_ key: Key) { cache.remove(key) }
}

/// A value that has everything that its record has.
protocol RecordValue: Cacheable {
    /// The record, under the value's version.
    var record: OpenRecord { get }
}

extension CachedRecords where Value: RecordValue {
    /// Replaces a record by what `change` makes of it, or inserts it. Reads it from the store, and after a conflict reads it again,
    /// up to 32 times.
    /// - Parameters:
    ///   - id: that of the record of `key`.
    ///   - required: records that must exist where this one is new.
    ///   - change: makes the new value, of a higher version, from the record, nil where there is none; or refuses the change.
    ///     May be called more than once.
    /// - Returns: the new value, and the record that it has replaced.
    /// - Throws: what `change` refuses with, and the store's errors.
    func update(
        _ key: Key, at id: RecordID, requiring required: [RecordID] = [],
        _ change: (_ old: OpenRecord?) async throws(StoreError) -> Result<Value, BrokerError>
    ) async throws(BrokerError) -> (new: Value, old: OpenRecord?) {
        let outcome: Result<(Value, OpenRecord?), BrokerError>
        do throws(StoreError) {
            outcome = try await retryingConflicts { () async throws(StoreError) in
                let old = try await vault.read(id)
                let new: Value
                switch try await change(old) {
                case .success(let made): new = made
                case .failure(let refusal): return .failure(refusal)
                }
                let changes: [VaultChange] =
                    if let old {
                        [.replace(new.record, version: old.version)]
                    } else {
                        required.map { .require($0) } + [.insert(new.record)]
                    }
                try await write(key, new) { () async throws(StoreError) in try await vault.commit(changes) }
                return .success((new, old))
            }
        } catch {
            throw BrokerError(error)
        }
        return try outcome.get()
    }
}
