import CredentialStore
import Cryptography
package import ExternalText
package import JSON
package import OAuth
import Reactor

/// The providers' profiles that operators put, beside those that the program carries and in their place.
///
/// A tenant's record bears the profile that it uses, so that reading a tenant needs one record and no other, and a login goes on
/// with the profile that it began with. So a profile that is put or deleted is written into the record of each tenant of its
/// name, which every replica is told of as of any change of a tenant. The profile's record has a due mark until that was done
/// twice: at once, and by `settleDue` of any replica after `Self.pause`, which finds the tenants that were left by a process that
/// has died, and those whose own change was under way meanwhile.
///
/// Safe to use from any task.
package final class OperatorProfiles: Sendable {
    /// The most profiles of one broker.
    package static let most = 200
    /// How many records of deleted profiles stay. They take no place of a profile; the oldest one goes for a new one.
    package static let mostRemoved = 200
    /// After which time no request is under way that has read what the profile was before.
    static let pause: Duration = .seconds(120)
    /// For how long the record of a deleted profile stays, unless `mostRemoved` were deleted since.
    private static let removedSpan: Duration = .seconds(7 * 86_400)
    /// When a record that this process cannot read is looked at again: another replica may be able to read it.
    private static let unreadablePause: Duration = .seconds(3600)
    private static let batch = 100
    /// How many tenants an error names.
    private static let mostNamed = 5

    private let vault: Vault
    private let tenants: TenantDirectory
    private let time: any Time
    private let log: Log
    private let versions = VersionSource()

    init(vault: Vault, tenants: TenantDirectory, time: any Time, log: Log) {
        self.vault = vault
        self.tenants = tenants
        self.time = time
        self.log = log
    }

    // MARK: Reading

    /// The profile that an operator has put under that name; nil where a shipped one is meant, or none.
    package func profile(_ name: WireText) async throws(BrokerError) -> OperatorProfile? {
        guard ProviderPreset.isName(name) else { return nil }
        do throws(StoreError) {
            let found = try await read(name)
            return found.map(\.isRemoved) == false ? found : nil
        } catch {
            throw BrokerError(error)
        }
    }

    /// The profile that a tenant's `provider` names, where operators have put one; nil for a shipped one, and for none.
    /// - Parameter provider: null stands for the default.
    package func profile(named provider: JSONValue) async throws(BrokerError) -> ProviderPreset? {
        switch provider {
        case .string(let name): try await profile(name)?.profile
        case .null: try await profile(WireText(ProviderPreset.tidal.name))?.profile
        default: nil
        }
    }

    /// All that operators have put, in the order of their names.
    package func all() async throws(BrokerError) -> [OperatorProfile] {
        do throws(StoreError) {
            var (found, after): ([OperatorProfile], RecordID?) = ([], nil)
            repeat {
                let page = try await vault.list(.provider, tenant: .broker, after: after, limit: Self.batch)
                for record in page { found.append(try OperatorProfile(record)) }
                after = page.count < Self.batch ? nil : page.last?.id
            } while after != nil
            return found.filter { !$0.isRemoved }
        } catch {
            throw BrokerError(error)
        }
    }

    private func read(_ name: WireText) async throws(StoreError) -> OperatorProfile? {
        try await vault.read(OperatorProfile.id(name)).map { record throws(StoreError) in try OperatorProfile(record) }
    }

    // MARK: Writing

    /// A profile that was put.
    package struct Written: Sendable {
        package let profile: OperatorProfile
        /// Whether operators had put none of this name.
        package let isNew: Bool
        /// How many tenants have it now that had another one of this name.
        package let tenants: Int
    }

    /// How a profile is put. An object, since it is passed through asynchronous calls.
    package final class Change: Sendable {
        let profile: ProviderPreset
        let document: JSONValue
        /// Whether the profile may be written that has this version now; nil where operators have put none.
        let isWanted: @Sendable (Int64?) -> Bool

        /// - Parameter document: that of the profile, which `ProviderPreset.reading` has read.
        package init(
            _ profile: ProviderPreset, _ document: JSONValue, isWanted: @escaping @Sendable (Int64?) -> Bool
        ) {
            self.profile = profile
            self.document = document
            self.isWanted = isWanted
        }
    }

    /// Puts a profile, and writes it into the records of the tenants of its name.
    /// - Throws: `conflict` where it does not fit a tenant of its name, and where there are too many profiles;
    ///   `precondition_failed` for one that is not wanted. After `storage_unavailable` the rest may be done without another
    ///   request.
    package func put(_ change: Change) async throws(BrokerError) -> Written {
        try await requireFit(change.profile)
        let outcome: Result<Bool, BrokerError>
        do throws(StoreError) {
            outcome = try await retryingConflicts { () async throws(StoreError) in
                let record = try await self.vault.read(OperatorProfile.id(WireText(change.profile.name)))
                // One that this build cannot read is replaced, too.
                let isThere = record.map { !((try? OperatorProfile($0))?.isRemoved ?? false) } ?? false
                guard change.isWanted(isThere ? record?.version : nil) else {
                    return .failure(isThere && change.isWanted(nil) ? Self.present : Self.changed)
                }
                if !isThere, try await self.isFull() { return .failure(Self.tooMany) }
                try await self.write(change.document, of: change.profile, isRemoved: false, over: record)
                return .success(!isThere)
            }
        } catch {
            throw BrokerError(error)
        }
        let isNew = try outcome.get()
        let count = try await give(change.profile)
        guard let written = try await profile(WireText(change.profile.name)) else {
            throw BrokerError(.conflict, "The profile was deleted meanwhile.")
        }
        return Written(profile: written, isNew: isNew, tenants: count)
    }

    /// Deletes a profile. The tenants of its name get the shipped one of that name.
    /// - Returns: false where operators have put none of this name.
    /// - Throws: `conflict` where tenants use it and there is no shipped one that fits them; `precondition_failed` for one that
    ///   is not wanted.
    package func delete(
        _ name: WireText, isWanted: @escaping @Sendable (Int64?) -> Bool
    ) async throws(BrokerError) -> Bool {
        guard let present = try await profile(name) else { return false }
        guard isWanted(present.version) else { throw Self.changed }
        let shipped = ProviderPreset.named(name)
        if let shipped { try await requireFit(shipped) } else { try await requireUnused(name) }
        let isRemoved: Bool
        do throws(StoreError) {
            isRemoved = try await retryingConflicts { () async throws(StoreError) in
                guard let record = try await self.vault.read(OperatorProfile.id(name)),
                    record.version == present.version
                else { return false }
                let oldest = try await self.oldestRemoved()
                try await self.write(
                    present.document, of: present.profile, isRemoved: true, over: record, dropping: oldest)
                return true
            }
        } catch {
            throw BrokerError(error)
        }
        if !isRemoved { throw Self.changed }
        if let shipped {
            _ = try await give(shipped)
        } else if try await putBackIfUsed(name) {
            // A tenant was put meanwhile.
            try await requireUnused(name)
        }
        return true
    }

    private static let changed = BrokerError(
        .preconditionFailed,
        "The profile was changed meanwhile, or there is none: read it again, and send its new ETag.")
    private static let present = BrokerError(
        .preconditionFailed, "A profile of this name was put, which If-None-Match forbids.")
    private static let tooMany = BrokerError(
        .conflict, "This broker has \(most) profiles of its own, and no room for more: delete one.")

    private func isFull() async throws(StoreError) -> Bool {
        try await records().count { $0.expires == nil } >= Self.most
    }

    /// The records of deleted profiles that must go before one more profile is deleted, the oldest first. A tenant whose own
    /// change is under way while so many are deleted keeps the profile that it has.
    private func oldestRemoved() async throws(StoreError) -> [StoredRecord] {
        let removed = try await records().compactMap { record in record.expires.map { (record, $0) } }
        let count = removed.count - (Self.mostRemoved - 1)
        return count > 0 ? removed.sorted { $0.1 < $1.1 }.prefix(count).map(\.0) : []
    }

    /// The records of all profiles, sealed. Only that of a deleted profile expires.
    private func records() async throws(StoreError) -> [StoredRecord] {
        var (found, after): ([StoredRecord], RecordID?) = ([], nil)
        repeat {
            let page = try await vault.listSealed(.provider, tenant: .broker, after: after, limit: Self.batch)
            found += page
            after = page.count < Self.batch ? nil : page.last?.id
        } while after != nil
        return found
    }

    /// - Parameter dropped: records that go with the same commit.
    private func write(
        _ document: JSONValue, of profile: ProviderPreset, isRemoved: Bool, over record: OpenRecord?,
        dropping dropped: [StoredRecord] = []
    ) async throws(StoreError) {
        let now = time.now
        let next = OpenRecord(
            id: OperatorProfile.id(WireText(profile.name)),
            version: record.map { versions.next(after: $0.version, at: now) } ?? versions.first(at: now),
            content: SecretBytes(OperatorProfile.content(document, isRemoved: isRemoved)),
            expires: isRemoved ? now.advanced(by: Self.removedSpan) : nil, due: now.advanced(by: Self.pause))
        let change: VaultChange = record.map { .replace(next, version: $0.version) } ?? .insert(next)
        try await vault.commit([change] + dropped.map { .remove($0.id, version: $0.version) })
    }

    // MARK: Tenants

    /// A tenant that uses a profile of a name.
    private struct User: Sendable {
        let name: TenantName
        let configuration: TenantConfiguration
    }

    /// Calls `body` with the tenants that use a profile of that name, in the order of their names. One whose record cannot be
    /// read is passed over: it must be put again anyhow.
    private func forEachUser(
        of name: WireText, _ body: (User) async throws(BrokerError) -> Void
    ) async throws(BrokerError) {
        var after: RecordID?
        repeat {
            let (users, last) = try await users(of: name, after: after)
            for user in users { try await body(user) }
            after = last
        } while after != nil
    }

    /// - Returns: those of one page, and the place of the next page.
    private func users(
        of name: WireText, after: RecordID?
    ) async throws(BrokerError) -> (users: [User], next: RecordID?) {
        do throws(StoreError) {
            let page = try await vault.listSealed(.tenant, tenant: nil, after: after, limit: Self.batch)
            let users = await InputReading.runOnGlobalPool { [vault] in
                page.compactMap { stored -> User? in
                    guard let record = try? vault.open(stored),
                        let configuration = TenantConfiguration(decoding: record.content.revealedBytes),
                        WireText(configuration.preset.name) == name
                    else { return nil }
                    return User(name: stored.id.tenant, configuration: configuration)
                }
            }
            return (users, page.count < Self.batch ? nil : page.last?.id)
        } catch {
            throw BrokerError(error)
        }
    }

    /// - Throws: `conflict` where a tenant of the profile's name could not be used with it.
    private func requireFit(_ profile: ProviderPreset) async throws(BrokerError) {
        var (named, count): ([String], Int) = ([], 0)
        try await forEachUser(of: WireText(profile.name)) { (user) throws(BrokerError) in
            do throws(BrokerError) {
                _ = try user.configuration.with(profile)
            } catch {
                count += 1
                if named.count < Self.mostNamed {
                    let faults = error.faults.prefix(3).map { "\($0.pointer) \($0.detail)" }
                    named.append("\(user.name) (\(faults.joined(separator: "; ")))")
                }
            }
        }
        if count == 0 { return }
        throw BrokerError(
            .conflict,
            "\(Self.tenants(count)) of this provider could not be used with the profile: \(Self.list(named, of: count)). Nothing "
                + "was changed.")
    }

    /// - Throws: `conflict` where a tenant uses the profile.
    private func requireUnused(_ name: WireText) async throws(BrokerError) {
        var (named, count): ([String], Int) = ([], 0)
        try await forEachUser(of: name) { (user) in
            count += 1
            if named.count < Self.mostNamed { named.append(user.name.description) }
        }
        if count == 0 { return }
        throw BrokerError(
            .conflict,
            "\(Self.tenants(count)) of this provider would have no profile: \(Self.list(named, of: count)). Nothing was changed: "
                + "delete these tenants or give them another provider first.")
    }

    private static func tenants(_ count: Int) -> String { count == 1 ? "1 tenant" : "\(count) tenants" }

    private static func list(_ named: [String], of count: Int) -> String {
        named.joined(separator: ", ") + (count > named.count ? " and \(count - named.count) more" : "")
    }

    /// Writes the profile into the record of each tenant of its name that has another one.
    /// - Returns: how many tenants got it.
    private func give(_ profile: ProviderPreset) async throws(BrokerError) -> Int {
        var count = 0
        try await forEachUser(of: WireText(profile.name)) { (user) throws(BrokerError) in
            if user.configuration.preset == profile { return }
            if try await self.give(profile, to: user.name) { count += 1 }
        }
        if count > 0 { log.info("provider_profile_given", [.provider(profile), .count(count)]) }
        return count
    }

    private func give(_ profile: ProviderPreset, to tenant: TenantName) async throws(BrokerError) -> Bool {
        let isThere: @Sendable (Int64?) -> Bool = { $0 != nil }
        let change = TenantDirectory.Change(isWanted: isThere) { present in
            guard let present, WireText(present.preset.name) == WireText(profile.name), present.preset != profile else {
                return .failure(Self.changed)
            }
            do throws(BrokerError) {
                return .success(try present.with(profile))
            } catch {
                return .failure(error)
            }
        }
        do throws(BrokerError) {
            _ = try await tenants.put(tenant, change)
            return true
        } catch {
            switch error.code {
            // The tenant is gone, or has another provider or this profile now.
            case .preconditionFailed: return false
            // The tenant was changed after the profile was found to fit it. It keeps the profile that it has.
            case .invalidRequest:
                log.warning("provider_profile_unfit", [.tenant(tenant), .provider(profile)])
                return false
            default: throw error
            }
        }
    }

    /// - Returns: whether a tenant uses the profile that was deleted, which is there again then.
    private func putBackIfUsed(_ name: WireText) async throws(BrokerError) -> Bool {
        var isUsed = false
        try await forEachUser(of: name) { _ in isUsed = true }
        guard isUsed else { return false }
        do throws(StoreError) {
            try await retryingConflicts { () async throws(StoreError) in
                guard let record = try await self.vault.read(OperatorProfile.id(name)) else { return }
                let removed = try OperatorProfile(record)
                guard removed.isRemoved else { return }
                try await self.write(removed.document, of: removed.profile, isRemoved: false, over: record)
            }
            return true
        } catch {
            throw BrokerError(error)
        }
    }

    // MARK: Finishing

    /// Finishes what was put or deleted `Self.pause` ago. Any replica may do so, and doing it twice does nothing.
    func settleDue() async {
        do throws(StoreError) {
            let due = try await vault.due(.provider, before: time.now, limit: Self.batch)
            for record in due where !Task.isCancelled { try await settle(record) }
        } catch {
            log.storeFailed(error)
        }
    }

    private func settle(_ due: DueRecord) async throws(StoreError) {
        var next: Timestamp?
        do throws(StoreError) {
            guard let record = due.record else { throw .damaged("the profile \(due.id.key) does not open") }
            try await finish(try OperatorProfile(record))
        } catch .damaged(let text) {
            log.storeFailed(.damaged(text))
            next = time.now.advanced(by: Self.unreadablePause)
        }
        // Where the mark is another one, another replica has done the same, or the profile was changed again.
        try await vault.moveMark(of: due.id, due.version, from: due.mark, to: next)
    }

    private func finish(_ put: OperatorProfile) async throws(StoreError) {
        do throws(BrokerError) {
            if !put.isRemoved {
                _ = try await give(put.profile)
            } else if let shipped = ProviderPreset.named(put.name) {
                _ = try await give(shipped)
            } else if try await putBackIfUsed(put.name) {
                log.warning("provider_profile_put_back", [.provider(put.profile)])
            }
        } catch {
            // The store's: it is tried again with the next search.
            throw .unavailable
        }
    }
}
