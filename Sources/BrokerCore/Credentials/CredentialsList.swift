import CredentialStore
import Cryptography
package import ExternalText
package import OAuth

/// The entry of a list for one storage key.
package struct ListedCredentials: Sendable {
    package let storageKey: StorageKey
    package let state: CredentialsState
    /// The level of the stored or quarantined credentials; `basic` where there are none.
    package let level: CredentialsLevel
    package let userID: WireText?
    package let expires: Timestamp?
    package let isRefreshable: Bool
    /// When a renewal granted the stored credentials; nil where a login did.
    package let lastRefresh: Timestamp?
    /// The failure of the last attempt to refresh the stored credentials, or why the session ended; nil where it succeeded.
    package let lastError: RenewalTrouble.Failure?
    /// How the user's session ended; nil during a session, after a logout, and where an earlier build ended it.
    package let session: EndedSession?
    /// Until when the credentials are quarantined; nil where they are not.
    package let quarantinedUntil: Timestamp?
    /// The names of the members of the tenant's configuration that were different when the stored credentials were granted.
    package var differences: [String] = []
    /// When the stored credentials end; nil where that is not known.
    package var end: ForeseenEnd?
}

extension EndedSession {
    /// The failure that a list shows; nil where no renewal has found the end, and where an earlier build stored it.
    fileprivate var failure: RenewalTrouble.Failure? {
        code.map { RenewalTrouble.Failure(first: time, last: time, code: $0, errorCode: errorCode) }
    }
}

/// Selects the storage keys of a list.
package struct CredentialsFilter: Sendable {
    package var state: CredentialsState?
    package var expiresBefore: Timestamp?

    package init(state: CredentialsState? = nil, expiresBefore: Timestamp? = nil) {
        self.state = state
        self.expiresBefore = expiresBefore
    }

    var includesAll: Bool { state == nil && expiresBefore == nil }

    func includes(_ listed: ListedCredentials) -> Bool {
        if let state, listed.state != state { return false }
        guard let expiresBefore else { return true }
        return listed.expires.map { $0 < expiresBefore } ?? false
    }
}

/// A page of a list.
package struct CredentialsPage: Sendable {
    package var listed: [ListedCredentials] = []
    /// The last storage key that was examined; nil where the list ends with this page.
    package var next: StorageKey?
}

/// Lists the credentials of a tenant's storage keys.
package struct CredentialsList: Sendable {
    private let records: CredentialsRecords
    private let clientFaults: ClientFaults
    private let waves: Waves
    private let servers: ProviderServers
    private let log: Log
    private let time: any Time

    init(records: CredentialsRecords, clientFaults: ClientFaults, waves: Waves, servers: ProviderServers) {
        self.records = records
        self.clientFaults = clientFaults
        self.waves = waves
        self.servers = servers
        (log, time) = (records.log, records.time)
    }

    /// How many storage keys are read at once.
    private static let listedAtOnce = 200
    /// How many storage keys are examined for one page. The records are sealed, so each has to be opened before the filter.
    private static let examinedForPage = 1000
    /// The same for an API key that is restricted to some storage keys, whose records are read one by one.
    private static let readForPage = 100

    /// The credentials of up to `limit` storage keys of the tenant, in the order of the keys, from the key after `place` on.
    ///
    /// A page may be shorter and not the last one: it also ends when enough storage keys were examined. Storage keys whose
    /// records cannot be opened are left out, and logged.
    /// - Parameter storageKeys: the only ones to list; nil for all.
    package func list(
        _ tenant: Tenant, only storageKeys: StorageKeyLimit?, _ filter: CredentialsFilter, after place: StorageKey?,
        limit: Int
    ) async throws(BrokerError) -> CredentialsPage {
        if let fault = await clientFaults.current(of: tenant) {
            if let page = try await list(tenant, only: storageKeys, filter, after: place, limit: limit, fault) {
                return page
            }
            await clientFaults.lift(fault, of: tenant)
        }
        return try await list(tenant, only: storageKeys, filter, after: place, limit: limit, nil)
            ?? CredentialsPage()
    }

    /// - Parameter fault: the fault of the tenant's client; nil where there is none.
    /// - Returns: nil where a user's credentials show that the fault has ended.
    private func list(
        _ tenant: Tenant, only storageKeys: StorageKeyLimit?, _ filter: CredentialsFilter, after place: StorageKey?,
        limit: Int, _ fault: ClientFault?
    ) async throws(BrokerError) -> CredentialsPage? {
        var page = CredentialsPage(next: place)
        var left = storageKeys == nil ? Self.examinedForPage : Self.readForPage
        do throws(StoreError) {
            let wave = try await waves.current(tenant.name)
            while left > 0 {
                // One more than fits the page tells whether there is a next page. With a filter, the number is not known.
                let wanted = filter.includesAll ? limit + 1 - page.listed.count : Self.listedAtOnce
                let count = min(left, Self.listedAtOnce, wanted)
                let rows = try await rows(of: tenant.name, only: storageKeys, after: page.next, limit: count)
                left -= rows.count
                let opened = await open(rows)
                if let fault, opened.contains(where: { $0.map { fault.isRefuted(by: $0.record, of: tenant) } ?? false })
                {
                    return nil
                }
                for (row, opened) in zip(rows, opened) {
                    if page.listed.count == limit { return page }
                    page.next = row.storageKey
                    let listed = opened.map { self.listed(row.storageKey, $0, of: tenant, fault, wave) }
                    if let listed, filter.includes(listed) { page.listed.append(listed) }
                }
                if rows.count < count {
                    page.next = nil
                    return page
                }
            }
            return page
        } catch {
            log.storeFailed(error, [.tenant(tenant.name)])
            throw BrokerError(error)
        }
    }

    /// The storage keys of up to `limit` quarantined credentials for which `isWanted` returns true, in the order of the keys.
    package func quarantined(
        _ tenant: TenantName, after place: StorageKey?, limit: Int,
        where isWanted: @escaping @Sendable (QuarantinedCredentials) -> Bool
    ) async throws(BrokerError) -> (storageKeys: [StorageKey], next: StorageKey?) {
        var (found, next, left): ([StorageKey], StorageKey?, Int) = ([], place, Self.examinedForPage)
        do throws(StoreError) {
            while left > 0 {
                let count = min(left, Self.listedAtOnce)
                let sealed = try await records.vault.listSealed(
                    .quarantine, tenant: tenant, after: Self.place(.quarantine, tenant, next), limit: count)
                left -= sealed.count
                let (vault, now) = (records.vault, time.now)
                let wanted = await InputReading.run(bytes: Self.bytes(of: sealed)) {
                    sealed.map { stored in
                        Self.opened(stored, by: vault, QuarantinedCredentials.init(decoding:))
                            .map { $0.until > now && isWanted($0) }
                    }
                }
                for (stored, isWanted) in zip(sealed, wanted) {
                    if isWanted == nil { logUnreadable(stored) }
                    guard let storageKey = StorageKey(stored.id.key) else { continue }
                    if found.count == limit { return (found, next) }
                    next = storageKey
                    if isWanted == true { found.append(storageKey) }
                }
                if sealed.count < count { return (found, nil) }
            }
            return (found, next)
        } catch {
            log.storeFailed(error, [.tenant(tenant)])
            throw BrokerError(error)
        }
    }

    /// The records of one storage key, sealed.
    private struct Row: Sendable {
        let storageKey: StorageKey
        var stored: StoredRecord?
        var quarantined: StoredRecord?
        var trouble: StoredRecord?
        var held: StoredRecord?

        var bytes: Int { [stored, quarantined, trouble, held].reduce(0) { $0 + ($1?.sealed.count ?? 0) } }
    }

    private func rows(
        of tenant: TenantName, only storageKeys: StorageKeyLimit?, after place: StorageKey?, limit: Int
    ) async throws(StoreError) -> [Row] {
        guard let storageKeys else { return try await rows(of: tenant, after: place, limit: limit) }
        var rows: [Row] = []
        for pattern in storageKeys.patterns where rows.count < limit {
            let isAhead = place.map { $0 < pattern.key } ?? true
            // A storage key of that name begins with it, too.
            if isAhead { rows.append(try await row(of: CredentialsID(tenant: tenant, storageKey: pattern.key))) }
            guard pattern.isPrefix, isAhead || place.map(pattern.matches) ?? true else { continue }
            // The place is at the first or at a later storage key that begins with it.
            let start = isAhead ? pattern.key : place
            if rows.count == limit { break }
            let found = try await self.rows(of: tenant, after: start, limit: limit - rows.count)
            rows += found.prefix { pattern.matches($0.storageKey) }
        }
        return rows
    }

    /// The rows of up to `limit` storage keys that have a record, in the order of the keys.
    private func rows(
        of tenant: TenantName, after place: StorageKey?, limit: Int
    ) async throws(StoreError) -> [Row] {
        let vault = records.vault
        let stored = try await vault.listSealed(
            .credentials, tenant: tenant, after: Self.place(.credentials, tenant, place), limit: limit)
        // Quarantined credentials and failures exist only for storage keys that have a record of credentials. (The record of
        // the tenant's client fault has no storage key and comes before all others.)
        let quarantined = try await vault.listSealed(
            .quarantine, tenant: tenant, after: Self.place(.quarantine, tenant, place), limit: limit)
        let trouble = try await vault.listSealed(
            .trouble, tenant: tenant, after: Self.place(.trouble, tenant, place), limit: limit + 1)
        let held =
            waves.isOn(tenant)
            ? try await vault.listSealed(.held, tenant: tenant, after: Self.place(.held, tenant, place), limit: limit)
            : []
        let (quarantinedByKey, troubleByKey) = (Self.byKey(quarantined), Self.byKey(trouble))
        let heldByKey = Self.byKey(held)
        return stored.compactMap { record in
            let key = WireText(record.id.key)
            return StorageKey(key).map {
                Row(
                    storageKey: $0, stored: record, quarantined: quarantinedByKey[key],
                    trouble: troubleByKey[key], held: heldByKey[key])
            }
        }
    }

    private func row(of id: CredentialsID) async throws(StoreError) -> Row {
        let vault = records.vault
        return Row(
            storageKey: id.storageKey, stored: try await vault.readSealed(CredentialsRecords.recordID(id)),
            quarantined: try await vault.readSealed(CredentialsRecords.quarantineID(id)),
            trouble: try await vault.readSealed(CredentialsRecords.troubleID(id)),
            held: waves.isOn(id.tenant) ? try await vault.readSealed(CredentialsRecords.heldID(id)) : nil)
    }

    private static func byKey(_ records: [StoredRecord]) -> [WireText: StoredRecord] {
        var byKey: [WireText: StoredRecord] = [:]
        for record in records { byKey[WireText(record.id.key)] = record }
        return byKey
    }

    private static func place(_ kind: RecordKind, _ tenant: TenantName, _ place: StorageKey?) -> RecordID? {
        place.map { RecordID(kind, tenant, key: $0.description) }
    }

    private static func bytes(of records: [StoredRecord]) -> Int { records.reduce(0) { $0 + $1.sealed.count } }

    /// The records of one storage key, opened.
    private struct OpenRow {
        let record: CredentialRecord
        let version: Int64
        let quarantined: QuarantinedCredentials?
        let trouble: RenewalTrouble?
        let mark: HeldMark?
    }

    /// Opens the rows, many of them on Swift's global pool. Nil for a row that has no record, or whose record cannot be opened.
    private func open(_ rows: [Row]) async -> [OpenRow?] {
        let (vault, now) = (records.vault, time.now)
        let bytes = rows.reduce(0) { $0 + $1.bytes }
        let opened = await InputReading.run(bytes: bytes) {
            rows.map { row in
                (
                    record: row.stored.flatMap { Self.opened($0, by: vault, CredentialRecord.init(decoding:)) },
                    quarantined: row.quarantined.flatMap {
                        Self.opened($0, by: vault, QuarantinedCredentials.init(decoding:))
                    },
                    trouble: row.trouble.flatMap { Self.opened($0, by: vault, RenewalTrouble.init(decoding:)) },
                    mark: row.held.flatMap { Self.opened($0, by: vault, HeldMark.init(decoding:)) }
                )
            }
        }
        return zip(rows, opened).map { row, opened -> OpenRow? in
            guard let stored = row.stored, let id = CredentialsID(stored.id) else { return nil }
            if let sealed = row.quarantined, opened.quarantined == nil { logUnreadable(sealed) }
            // A grant that waits to be stored is what callers get.
            guard let record = records.unpublished(id)?.record ?? opened.record else {
                logUnreadable(stored)
                return nil
            }
            let quarantined = opened.quarantined.flatMap { $0.until > now ? $0 : nil }
            return OpenRow(
                record: record, version: stored.version, quarantined: quarantined, trouble: opened.trouble,
                mark: opened.mark)
        }
    }

    private static func opened<Content>(
        _ stored: StoredRecord, by vault: Vault, _ decode: ([UInt8]) -> Content?
    ) -> Content? {
        guard let record = try? vault.open(stored) else { return nil }
        return decode(record.content.revealedBytes)
    }

    private func logUnreadable(_ record: StoredRecord) {
        guard let id = CredentialsID(record.id) else { return }
        log.error("credentials_unreadable", LogField.credentials(id) + [.version(record.version)])
    }

    /// - Parameter wave: the number of the tenant's wave; nil where there is none.
    private func listed(
        _ storageKey: StorageKey, _ row: OpenRow, of tenant: Tenant, _ fault: ClientFault?, _ wave: Int64?
    ) -> ListedCredentials {
        let record = row.record
        var state = record.state(
            after: row.trouble, of: row.version, in: tenant, isQuarantined: row.quarantined != nil)
        // A user's credentials are listed rather than the quarantined ones, and those rather than the client's.
        if state == .quarantined, let quarantined = row.quarantined {
            let held = quarantined.credentials
            return ListedCredentials(
                storageKey: storageKey, state: .quarantined, level: held.level, userID: held.userID,
                expires: held.expiry, isRefreshable: held.refreshToken != nil, lastRefresh: nil,
                lastError: quarantined.session?.failure, session: quarantined.session,
                quarantinedUntil: quarantined.until)
        }
        var failure = row.trouble?.version == row.version ? row.trouble?.failure : nil
        if let fault, fault.concerns(record, of: tenant) {
            state = .degraded
            failure = fault.failure(after: failure)
        }
        if record.held?.level != .user || record.isOver { failure = failure ?? record.session?.failure }
        if let wave, let mark = row.mark, mark.holds(record.held, in: wave) { (state, failure) = (.held, mark.failure) }
        let held = record.held
        var listed = ListedCredentials(
            storageKey: storageKey, state: state ?? (held == nil ? .ended : .active), level: held?.level ?? .basic,
            userID: held?.userID, expires: held?.expiry, isRefreshable: held?.refreshToken != nil,
            lastRefresh: record.renewed, lastError: failure, session: record.session, quarantinedUntil: nil)
        listed.end = tenant.configuration.end(of: record)
        listed.differences = held.map { servers.differences(of: $0, from: tenant) } ?? []
        return listed
    }
}
