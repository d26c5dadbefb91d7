internal import CredentialStore
internal import Cryptography
internal import ExternalText
package import JOSE
internal import JSON
package import OAuth

/// Hands out whole sets of credentials, refresh tokens too, each sealed for a key of the operator: for a move to another broker.
package final class CredentialsExporter: Sendable {
    /// What is exported, and for whom.
    package final class Order: Sendable {
        package let tenant: Tenant
        let key: EncryptionKey

        package init(_ tenant: Tenant, for key: EncryptionKey) {
            self.tenant = tenant
            self.key = key
        }
    }

    /// Sets of some storage keys.
    package struct Page: Sendable {
        /// One JWE (RFC 7516 §3.1) for each storage key with credentials, in the order of the keys.
        package let sealed: [[UInt8]]
        /// How many of them say only that the record of their storage key cannot be read.
        package let unreadable: Int
        /// Where the next page begins; nil where the export ends with this one.
        package let next: StorageKey?
    }

    private let records: CredentialsRecords

    init(records: CredentialsRecords) {
        self.records = records
    }

    /// How many records are read at once.
    private static let pageCount = 50

    /// The sets of the next storage keys behind `place`. Client credentials, which are granted again, and what is left of
    /// ended sessions are left out.
    /// - Parameter place: `Page.next`; nil for the beginning.
    package func page(of order: Order, after place: StorageKey?) async throws(BrokerError) -> Page {
        let tenant = order.tenant
        let stored: [StoredRecord]
        do throws(StoreError) {
            stored = try await records.vault.listSealed(
                .credentials, tenant: tenant.name,
                after: place.map { RecordID(.credentials, tenant.name, key: $0.description) }, limit: Self.pageCount)
        } catch {
            records.log.storeFailed(error, [.tenant(tenant.name)])
            throw BrokerError(error)
        }
        let rows = stored.compactMap { record in CredentialsID(record.id).map { (id: $0, record: record) } }
        let (vault, configuration) = (records.vault, tenant.configuration)
        // A grant that waits to be stored is newer than what is stored.
        let newer = rows.map { records.unpublished($0.id)?.record }
        let sealed = await InputReading.runOnGlobalPool {
            zip(rows, newer).map { row, newer -> (jwe: [UInt8]?, isReadable: Bool) in
                let record = newer ?? Self.opened(row.record, by: vault)
                let document =
                    record.map { Self.document($0, row.id.storageKey, configuration) }
                    ?? Self.unreadable(row.id.storageKey)
                return (document.flatMap { try? order.key.seal($0) }, record != nil)
            }
        }
        for (row, sealed) in zip(rows, sealed) where !sealed.isReadable {
            records.log.error(
                "credentials_unreadable", LogField.credentials(row.id) + [.version(row.record.version)])
        }
        return Page(
            sealed: sealed.compactMap(\.jwe), unreadable: sealed.count { !$0.isReadable },
            next: stored.count < Self.pageCount ? nil : rows.last?.id.storageKey)
    }

    private static func opened(_ stored: StoredRecord, by vault: Vault) -> CredentialRecord? {
        (try? vault.open(stored)).flatMap { CredentialRecord(decoding: $0.content.revealedBytes) }
    }

    private static func unreadable(_ storageKey: StorageKey) -> [UInt8]? {
        JSONWriter.object { json in
            json.member("storage_key", storageKey.description)
            json.member("unreadable", true)
        }
    }

    /// The document that an import reads; nil where there is nothing to take over.
    private static func document(
        _ record: CredentialRecord, _ storageKey: StorageKey, _ configuration: TenantConfiguration
    ) -> [UInt8]? {
        // Where a login waits for its verification, what was there before, with the newest refresh token.
        let held = GrantVerification.record(refusing: record).held ?? record.granted
        guard let held, held.level == .user, record.session == nil else { return nil }
        return JSONWriter.object { json in
            json.member("storage_key", storageKey.description)
            json.name("credentials")
            json.object { encode(held, to: &$0) }
            json.memberIfPresent("refresh_token", held.refreshToken?.revealedText)
            json.memberIfPresent("dpop_key", held.proofKey?.pem.revealedText)
            json.memberIfPresent("dpop_refresh_key", held.proofKey?.refreshPEM?.revealedText)
            json.memberIfPresent("granted_at", configuration.refreshTokenGranted(record, held)?.description)
        }
    }

    private static func encode(_ held: HeldCredentials, to json: inout JSONWriter) {
        json.member("level", held.level.rawValue)
        json.member("client_id", held.obtainedWith.clientID.text)
        json.member("requested_scopes", held.obtainedWith.scopes.values)
        json.memberIfPresent("client_unique_key", held.obtainedWith.clientUniqueKey?.text)
        json.member("granted_scopes", held.grantedScopes.values)
        json.memberIfPresent("user_id", held.userID?.text)
        if !held.accessToken.isEmpty {
            json.memberIfPresent("expires", held.expiry?.description)
            json.member("token_type", held.tokenType)
            json.member("token", held.accessToken.revealedText)
        }
        if let extra = held.extra {
            json.name("extra")
            extra.encode(to: &json)
        }
    }
}

extension TenantConfiguration {
    /// From when the life of a refresh token counts, as far as this is known.
    fileprivate func refreshTokenGranted(_ record: CredentialRecord, _ held: HeldCredentials) -> Timestamp? {
        let isFixed = preset.lives.isFixed || (consentLifetime ?? preset.lives.consent) != nil
        return isFixed ? held.grantBegan : record.renewed ?? held.grantBegan
    }
}
