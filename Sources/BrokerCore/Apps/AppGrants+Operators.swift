internal import CredentialStore
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
}
