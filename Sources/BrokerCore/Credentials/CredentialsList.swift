internal import CredentialStore
internal import Cryptography
package import ExternalText
package import OAuth

/// What a list tells of one storage key.
package struct ListedCredentials: Sendable {
    package let storageKey: StorageKey
    package let state: CredentialsState
    /// Of what is stored, or kept aside; `basic` where there is neither.
    package let level: CredentialsLevel
    package let userID: WireText?
    package let expires: Timestamp?
    package let isRefreshable: Bool
    /// When a renewal granted what is stored; nil where a login did.
    package let lastRefresh: Timestamp?
    /// What the last attempt to refresh what is stored failed with; nil where it went well.
    package let lastError: RenewalTrouble.Failure?
    /// How the user's session ended that is over; nil where one lasts, after a logout, and where an earlier build ended it.
    package let session: EndedSession?
    /// Until when it is kept aside.
    package let keptUntil: Timestamp?
}

/// Which storage keys a list is to have.
package struct CredentialsFilter: Sendable {
    package var state: CredentialsState?
    package var expiresBefore: Timestamp?

    package init(state: CredentialsState? = nil, expiresBefore: Timestamp? = nil) {
        self.state = state
        self.expiresBefore = expiresBefore
    }

    var letsAll: Bool { state == nil && expiresBefore == nil }

    func lets(_ listed: ListedCredentials) -> Bool {
        if let state, listed.state != state { return false }
        guard let expiresBefore else { return true }
        return listed.expires.map { $0 < expiresBefore } ?? false
    }
}

/// A part of a list.
package struct CredentialsPage: Sendable {
    package var listed: [ListedCredentials] = []
    /// The last storage key that was looked at; nil where the list ends with this page.
    package var next: StorageKey?
}

/// Lists what stands under a tenant's storage keys.
package struct CredentialsList: Sendable {
    private let records: CredentialsRecords
    private let clientFaults: ClientFaults
    private let log: Log
    private let time: any Time

    init(records: CredentialsRecords, clientFaults: ClientFaults) {
        self.records = records
        self.clientFaults = clientFaults
        (log, time) = (records.log, records.time)
    }

    /// How many storage keys are read at once, and how many are looked at for one page: what they hold is sealed, so that
    /// each one has to be opened to know whether a filter lets it through.
    private static let listedAtOnce = 200
    private static let lookedAtForPage = 1000
    /// Those of a narrowed API key are read one by one.
    private static let readForPage = 100

    /// What stands under up to `limit` storage keys of the tenant, in their order, those after `place` (exclusive) only.
    ///
    /// A page may have fewer and not be the last: it ends as well when enough storage keys were looked at. Those whose
    /// records do not open are left out, and told of in the log.
    /// - Parameter storageKeys: the only ones to list; nil for all.
    package func list(
        _ tenant: Tenant, only storageKeys: [StorageKey]?, _ filter: CredentialsFilter, after place: StorageKey?,
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

    /// - Parameter fault: of the tenant's client.
    /// - Returns: nil where a user's credentials show that the fault is over.
    private func list(
        _ tenant: Tenant, only storageKeys: [StorageKey]?, _ filter: CredentialsFilter, after place: StorageKey?,
        limit: Int, _ fault: ClientFault?
    ) async throws(BrokerError) -> CredentialsPage? {
        var page = CredentialsPage(next: place)
        var left = storageKeys == nil ? Self.lookedAtForPage : Self.readForPage
        do throws(StoreError) {
            while left > 0 {
                // One more than is wanted tells whether there is a next page; how many a filter takes is not known.
                let wanted = filter.letsAll ? limit + 1 - page.listed.count : Self.listedAtOnce
                let count = min(left, Self.listedAtOnce, wanted)
                let rows = try await rows(of: tenant.name, only: storageKeys, after: page.next, limit: count)
                left -= rows.count
                let opened = await open(rows)
                if let fault, opened.contains(where: { $0.map { fault.isRefuted(by: $0.record) } ?? false }) {
                    return nil
                }
                for (row, opened) in zip(rows, opened) {
                    if page.listed.count == limit { return page }
                    page.next = row.storageKey
                    let listed = opened.map { Self.listed(row.storageKey, $0, of: tenant, fault) }
                    if let listed, filter.lets(listed) { page.listed.append(listed) }
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

    /// The storage keys of up to `limit` sets of credentials that are kept aside and that `isWanted` takes, in their order.
    package func aside(
        _ tenant: TenantName, after place: StorageKey?, limit: Int,
        where isWanted: @escaping @Sendable (QuarantinedCredentials) -> Bool
    ) async throws(BrokerError) -> (storageKeys: [StorageKey], next: StorageKey?) {
        var (found, next, left): ([StorageKey], StorageKey?, Int) = ([], place, Self.lookedAtForPage)
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
                    if isWanted == nil { tellUnreadable(stored) }
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
        var aside: StoredRecord?
        var trouble: StoredRecord?

        var bytes: Int { [stored, aside, trouble].reduce(0) { $0 + ($1?.sealed.count ?? 0) } }
    }

    private func rows(
        of tenant: TenantName, only storageKeys: [StorageKey]?, after place: StorageKey?, limit: Int
    ) async throws(StoreError) -> [Row] {
        let vault = records.vault
        guard let storageKeys else {
            let stored = try await vault.listSealed(
                .credentials, tenant: tenant, after: Self.place(.credentials, tenant, place), limit: limit)
            // What is kept aside, and what renewals failed with, stands under a storage key that has a record of credentials.
            // (The one of the whole tenant, which has no storage key, comes before all others.)
            let aside = try await vault.listSealed(
                .quarantine, tenant: tenant, after: Self.place(.quarantine, tenant, place), limit: limit)
            let trouble = try await vault.listSealed(
                .trouble, tenant: tenant, after: Self.place(.trouble, tenant, place), limit: limit + 1)
            let (asideByKey, troubleByKey) = (Self.byKey(aside), Self.byKey(trouble))
            return stored.compactMap { record in
                let key = WireText(record.id.key)
                return StorageKey(key).map {
                    Row(storageKey: $0, stored: record, aside: asideByKey[key], trouble: troubleByKey[key])
                }
            }
        }
        var rows: [Row] = []
        for storageKey in storageKeys.sorted().drop(while: { key in place.map { key <= $0 } ?? false }).prefix(limit) {
            let id = CredentialsID(tenant: tenant, storageKey: storageKey)
            rows.append(
                Row(
                    storageKey: storageKey, stored: try await vault.readSealed(CredentialsRecords.recordID(id)),
                    aside: try await vault.readSealed(CredentialsRecords.asideID(id)),
                    trouble: try await vault.readSealed(CredentialsRecords.troubleID(id))))
        }
        return rows
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

    /// What the records of one storage key hold.
    private struct OpenRow {
        let record: CredentialRecord
        let version: Int64
        let aside: QuarantinedCredentials?
        let trouble: RenewalTrouble?
    }

    /// Opens the rows, many of them on Swift's global pool; nil for one that has no record, or one that does not open.
    private func open(_ rows: [Row]) async -> [OpenRow?] {
        let (vault, now) = (records.vault, time.now)
        let bytes = rows.reduce(0) { $0 + $1.bytes }
        let opened = await InputReading.run(bytes: bytes) {
            rows.map { row in
                (
                    record: row.stored.flatMap { Self.opened($0, by: vault, CredentialRecord.init(decoding:)) },
                    aside: row.aside.flatMap { Self.opened($0, by: vault, QuarantinedCredentials.init(decoding:)) },
                    trouble: row.trouble.flatMap { Self.opened($0, by: vault, RenewalTrouble.init(decoding:)) }
                )
            }
        }
        return zip(rows, opened).map { row, opened -> OpenRow? in
            guard let stored = row.stored, let id = CredentialsID(stored.id) else { return nil }
            if let sealed = row.aside, opened.aside == nil { tellUnreadable(sealed) }
            // What waits in the journal for the store is what callers are given.
            guard let record = records.unpublished(id)?.record ?? opened.record else {
                tellUnreadable(stored)
                return nil
            }
            let aside = opened.aside.flatMap { $0.until > now ? $0 : nil }
            return OpenRow(record: record, version: stored.version, aside: aside, trouble: opened.trouble)
        }
    }

    private static func opened<Content>(
        _ stored: StoredRecord, by vault: Vault, _ decode: ([UInt8]) -> Content?
    ) -> Content? {
        guard let record = try? vault.open(stored) else { return nil }
        return decode(record.content.revealedBytes)
    }

    private func tellUnreadable(_ record: StoredRecord) {
        guard let id = CredentialsID(record.id) else { return }
        log.error("credentials_unreadable", LogField.credentials(id) + [.version(record.version)])
    }

    private static func listed(
        _ storageKey: StorageKey, _ row: OpenRow, of tenant: Tenant, _ fault: ClientFault?
    ) -> ListedCredentials {
        let record = row.record
        var state = record.state(
            after: row.trouble, of: row.version, configuration: tenant.version, isQuarantined: row.aside != nil)
        // A user's credentials are told before what is kept aside of an earlier session, and that before the client's.
        if state == .quarantined, let aside = row.aside {
            return ListedCredentials(
                storageKey: storageKey, state: .quarantined, level: aside.credentials.level,
                userID: aside.credentials.userID, expires: aside.credentials.expiry,
                isRefreshable: aside.credentials.refreshToken != nil, lastRefresh: nil, lastError: nil,
                session: aside.session, keptUntil: aside.until)
        }
        var failure = row.trouble?.version == row.version ? row.trouble?.failure : nil
        if let fault, fault.concerns(record) {
            state = .degraded
            failure = fault.failure(after: failure)
        }
        let held = record.held
        return ListedCredentials(
            storageKey: storageKey, state: state ?? (held == nil ? .ended : .active), level: held?.level ?? .basic,
            userID: held?.userID, expires: held?.expiry, isRefreshable: held?.refreshToken != nil,
            lastRefresh: record.renewed, lastError: failure, session: record.session, keptUntil: nil)
    }
}
