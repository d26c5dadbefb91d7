import Cryptography
import OAuth

/// What is sealed under one key.
package struct KeyUse: Sendable, Equatable {
    /// The key's id in the keyring; nil for a key that is not configured.
    package let id: String?
    /// The key's identity in sealed octets; nil for octets that are no envelope.
    package let identity: KeyIdentity?
    /// Whether new records are sealed under it.
    package let isPrimary: Bool
    package var records = 0
    /// Entries of the log of events.
    package var entries = 0

    package var isUnused: Bool { records == 0 && entries == 0 }
}

/// Why a key is not retired. Nothing was changed.
package enum RetirementRefusal: Error, Equatable, Sendable {
    /// New records are sealed under it.
    case isPrimary
    /// The keyring has no key with this id.
    case unknown
    /// Something is sealed under it.
    case inUse(KeyUse)
    /// The store failed. A retry helps where the error says so.
    case store(StoreError)
}

/// A place in the walk over everything that is sealed in a store. The check records of keys are left out: each of them is
/// sealed under its own key for as long as the store needs the key.
package struct SealedWalk: Sendable {
    fileprivate var kinds = RecordKind.allCases.filter { $0 != .keyCheck }[...]
    fileprivate var after: RecordID?
    fileprivate var sequence: Int64 = 0
    fileprivate var isInLog = true

    package init() {}
}

extension Vault {
    /// The next items of the walk, up to `limit`, all of one kind; nil at the end. A page can be empty before the end.
    ///
    /// What is written behind the place of the walk meanwhile is left out: it is sealed under the writer's first key.
    package func next(_ walk: inout SealedWalk, limit: Int) async throws(StoreError) -> [SealedItem]? {
        if let kind = walk.kinds.first {
            let page = try await listSealed(kind, tenant: nil, after: walk.after, limit: limit)
            walk.after = page.last?.id
            if page.count < limit { (walk.kinds, walk.after) = (walk.kinds.dropFirst(), nil) }
            return page.map { .record($0) }
        }
        guard walk.isInLog else { return nil }
        let page = try await asking(.read, await store.entries(after: walk.sequence, tenant: nil, limit: limit))
        if let last = page.last { walk.sequence = last.sequence }
        walk.isInLog = page.count == limit
        // Nothing is sealed in a marker.
        return page.filter { !$0.entry.isMarker }.map { .entry($0) }
    }

    /// What is sealed under each key: those of the keyring, the first one first, and those that are found besides.
    package func keyUses() async throws(StoreError) -> [KeyUse] {
        let keyring = keyring
        var uses: [KeyIdentity?: KeyUse] = [:]
        for key in keyring.all {
            uses[key.identity] = KeyUse(
                id: key.id, identity: key.identity, isPrimary: key.identity == keyring.primary.identity)
        }
        var walk = SealedWalk()
        while let page = try await next(&walk, limit: 500) {
            for item in page {
                let identity = Sealer.keyIdentity(of: item.sealed)
                var use = uses[identity] ?? KeyUse(id: nil, identity: identity, isPrimary: false)
                if case .record = item { use.records += 1 } else { use.entries += 1 }
                uses[identity] = use
            }
        }
        func place(_ use: KeyUse) -> (Int, String) {
            (use.isPrimary ? 0 : use.id == nil ? 2 : 1, use.id ?? use.identity?.description ?? "")
        }
        return uses.values.sorted { place($0) < place($1) }
    }

    /// Seals those of the items under the keyring's first key that are sealed under another key of it.
    /// - Returns: how many were written, and a phrase for each item that does not open.
    package func reseal(_ items: [SealedItem]) async throws(StoreError) -> (count: Int, unopened: [String]) {
        var changes: [Reseal] = []
        var unopened: [String] = []
        let first = keyring.primary.identity
        for item in items where Sealer.keyIdentity(of: item.sealed) != first {
            switch item {
            case .record(let record):
                do throws(StoreError) {
                    changes.append(Reseal(item, sealed: try seal(try open(record)).sealed))
                } catch {
                    guard case .damaged(let text) = error else { throw error }
                    unopened.append(text)
                }
            case .entry(let placed):
                guard let content = open(placed).content else {
                    unopened.append("the event \(placed.sequence) of \(placed.entry.tenant) does not open")
                    continue
                }
                changes.append(Reseal(item, sealed: try seal(placed.entry.with(content: content)).sealed))
            }
        }
        return (changes.isEmpty ? 0 : try await asking(.write, await store.reseal(changes)), unopened)
    }

    /// The ids of the keys that the store needs, besides the first one of the keyring.
    package func otherKeys() async throws(VaultError) -> [String] {
        let own = Self.checkID(keyring.primary)
        return try await keyChecks().filter { $0.id != own }.map { record in
            String(decoding: record.id.key.utf8.prefix { $0 != UInt8(ascii: ".") }, as: UTF8.self)
        }
    }

    /// Removes the check record of a key, if nothing is sealed under the key, so that the store opens without it.
    ///
    /// The removal is the only write, and the last step: a call that is interrupted has changed nothing or is complete, and
    /// can be repeated in both cases. Where something is sealed under a key that has no check record, as an earlier version
    /// could leave it, the record is written again before `.inUse` is thrown.
    ///
    /// Every process that uses the store must seal under another key already: what one seals under this key later cannot be
    /// opened without it.
    package func retireKey(id: String) async throws(RetirementRefusal) {
        guard id != keyring.primary.id else { throw .isPrimary }
        guard let key = keyring.all.first(where: { $0.id == id }) else { throw .unknown }
        let check = try await check(of: key)
        do throws(RetirementRefusal) {
            try await requireUnused(key)
            // Once more: the first walk cannot see what a process has sealed behind its place.
            try await requireUnused(key)
        } catch {
            if case .inUse = error, check == nil { try await putBackCheck(of: key) }
            throw error
        }
        guard let check else { return }
        do throws(StoreError) {
            try await commit([.remove(check.id, version: check.version)])
        } catch {
            throw .store(error)
        }
    }

    /// The check record of the key; nil when there is none.
    private func check(of key: Keyring.Key) async throws(RetirementRefusal) -> OpenRecord? {
        do throws(StoreError) {
            return try await read(Self.checkID(key))
        } catch {
            throw .store(error)
        }
    }

    private func putBackCheck(of key: Keyring.Key) async throws(RetirementRefusal) {
        do throws(StoreError) {
            // Sealed under the key itself, as every check record is.
            try await with(keyring.led(by: key)).commit([.insert(Self.checkRecord(of: key))])
        } catch {
            // On a conflict, a process that starts with the key has written the record.
            if error != .conflict { throw .store(error) }
        }
    }

    private func requireUnused(_ key: Keyring.Key) async throws(RetirementRefusal) {
        let uses: [KeyUse]
        do throws(StoreError) {
            uses = try await keyUses()
        } catch {
            throw .store(error)
        }
        if let use = uses.first(where: { $0.identity == key.identity }), !use.isUnused { throw .inUse(use) }
    }
}
