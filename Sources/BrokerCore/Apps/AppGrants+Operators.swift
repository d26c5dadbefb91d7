import CredentialStore
package import ExternalText
package import OAuth

/// Sessions as operators see and end them.
extension AppGrants {
    /// Sessions of the tenant with their ends, in the order of their identifiers.
    /// - Parameters:
    ///   - storageKey: nil for the sessions of all storage keys.
    ///   - clientID: nil for the sessions of all clients.
    ///   - most: how many sessions are read at most.
    /// - Returns: up to `limit` sessions, and the identifier behind which to go on; nil where there are no more.
    package func list(
        of tenant: TenantName, storageKey: StorageKey?, clientID: WireText?, after: String?, limit: Int,
        reading most: Int
    ) async throws(BrokerError) -> (found: [(AppSession, end: Timestamp)], next: String?) {
        var (found, place, read): ([(AppSession, end: Timestamp)], String?, Int) = ([], after, 0)
        while read < most {
            let (page, next): ([AppSession], String?)
            do throws(StoreError) {
                (page, next) = try await sessions.list(
                    of: tenant, storageKey: storageKey, after: place, limit: Self.page)
            } catch {
                throw BrokerError(error)
            }
            for session in page {
                if found.count == limit { return (found, place) }
                place = session.id
                if let clientID, clientID != WireText(session.clientID) { continue }
                guard let client = try await clients.client(WireText(session.clientID), of: tenant) else { continue }
                found.append((session, sessions.end(of: session, client)))
            }
            guard let next else { return (found, nil) }
            place = next
            read += Self.page
        }
        return (found, place)
    }

    private static let page = 500

    /// Ends a session for an operator, and the biometric key that it has.
    /// - Returns: false where there is none.
    package func end(session id: String, of tenant: TenantName) async throws(BrokerError) -> Bool {
        do throws(StoreError) {
            let id = RecordID(.session, tenant, key: id)
            if let session = try await sessions.reread(id), let key = session.biometricKey {
                try await sessions.remove(
                    BiometricKey.recordID(session.credentialsID, WireText(key.keyID)))
            }
            return try await sessions.end(id, by: .revoked, isKnown: true)
        } catch {
            throw BrokerError(error)
        }
    }

    // MARK: Biometric keys

    /// Biometric keys of the tenant, in the order of their records.
    /// - Parameters:
    ///   - storageKey: nil for the keys of all storage keys.
    ///   - clientID: nil for the keys of all clients.
    ///   - most: how many keys are read at most.
    /// - Returns: up to `limit` keys, and the record's key behind which to go on; nil where there are no more.
    package func biometricKeys(
        of tenant: TenantName, storageKey: StorageKey?, clientID: WireText?, after: String?, limit: Int,
        reading most: Int
    ) async throws(BrokerError) -> (found: [BiometricKey], next: String?) {
        let prefix = storageKey.map(PendingSessionEnding.keyPrefix)
        var (found, place, read): ([BiometricKey], String?, Int) = ([], after ?? prefix, 0)
        while read < most {
            let page: [OpenRecord]
            do throws(StoreError) {
                page = try await vault.list(
                    .biometricKey, tenant: tenant, after: place.map { RecordID(.biometricKey, tenant, key: $0) },
                    limit: Self.page)
            } catch {
                throw BrokerError(error)
            }
            for record in page {
                if let prefix, !WireText(record.id.key).starts(with: WireText(prefix)) { return (found, nil) }
                guard let key = try? BiometricKey(record) else {
                    log.error("biometric_key_unreadable", [.tenant(tenant), .version(record.version)])
                    place = record.id.key
                    continue
                }
                let isWanted = clientID.map { $0 == WireText(key.clientID) } ?? true
                if isWanted, found.count == limit { return (found, place ?? "") }
                if isWanted { found.append(key) }
                place = record.id.key
            }
            if page.count < Self.page { return (found, nil) }
            read += page.count
        }
        return (found, place)
    }

    /// Removes a biometric key, and ends the sessions that were begun with it.
    /// - Returns: false where the tenant has no such key.
    package func removeBiometricKey(_ keyID: WireText, of tenant: TenantName) async throws(BrokerError) -> Bool {
        do throws(StoreError) {
            guard let record = try await vault.find(.biometricKey, lookup: BiometricKey.lookup(tenant, keyID)),
                record.id.tenant == tenant
            else { return false }
            let key = try BiometricKey(record)
            // Before the key, so that a process which ends here leaves the key for another try.
            try await endSessions(begunWith: keyID, key, of: tenant)
            try await sessions.remove(record.id)
            // Those that began with the key meanwhile.
            try await endSessions(begunWith: keyID, key, of: tenant)
            return true
        } catch {
            throw BrokerError(error)
        }
    }

    private func endSessions(
        begunWith keyID: WireText, _ key: BiometricKey, of tenant: TenantName
    ) async throws(StoreError) {
        var after: String?
        repeat {
            let (page, next) = try await sessions.list(
                of: tenant, storageKey: key.storageKey, after: after, limit: Self.page)
            for session in page where session.begunWith.map({ WireText($0) == keyID }) ?? false {
                _ = try await sessions.end(session.recordID, by: .revoked)
            }
            after = next
        } while after != nil
    }
}
