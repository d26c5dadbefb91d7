import CredentialStore
import Cryptography
import ExternalText
package import JOSE
import JSON
import OAuth

/// Hands out whole sets of credentials, refresh tokens too, each sealed for a key of the operator: for a move to another broker.
package final class CredentialsExporter: Sendable {
    /// What is exported, and for whom.
    package final class Order: Sendable {
        package let tenant: Tenant
        let seal: Seal

        /// Seals a document for the receiver; nil where that fails.
        package typealias Seal = @Sendable (_ document: [UInt8]) -> [UInt8]?

        package convenience init(_ tenant: Tenant, for key: EncryptionKey) {
            self.init(tenant) { try? key.seal($0) }
        }

        package init(_ tenant: Tenant, sealing seal: @escaping Seal) {
            self.tenant = tenant
            self.seal = seal
        }
    }

    /// A place between two pages.
    package struct Place: Sendable {
        fileprivate let record: RecordID
    }

    /// Sets of some storage keys.
    package struct Page: Sendable {
        /// One JWE (RFC 7516 §3.1) for each storage key with credentials, in the order of the keys.
        package let sealed: [[UInt8]]
        /// How many of them say only that the record of their storage key cannot be read.
        package let unreadable: Int
        /// Where the next page begins; nil where the export ends with this one.
        package let next: Place?
    }

    /// What becomes of the record of one storage key.
    private enum Sealed: Sendable {
        case done([UInt8])
        /// It has nothing to take over.
        case nothing
        case failed
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
    /// - Throws: `storage_unavailable`; `internal_error` where a set cannot be sealed: an export without it would look complete.
    package func page(of order: Order, after place: Place?) async throws(BrokerError) -> Page {
        let tenant = order.tenant
        let stored: [StoredRecord]
        do throws(StoreError) {
            stored = try await records.vault.listSealed(
                .credentials, tenant: tenant.name, after: place?.record, limit: Self.pageCount)
        } catch {
            records.log.storeFailed(error, [.tenant(tenant.name)])
            throw BrokerError(error)
        }
        let rows = stored.compactMap { record in CredentialsID(record.id).map { (id: $0, record: record) } }
        let (vault, configuration) = (records.vault, tenant.configuration)
        // A grant that waits to be stored is newer than what is stored.
        let newer = rows.map { records.unpublished($0.id)?.record }
        let sealed = await InputReading.runOnGlobalPool {
            zip(rows, newer).map { row, newer -> (jwe: Sealed, isReadable: Bool) in
                let record = newer ?? Self.opened(row.record, by: vault)
                let document =
                    record.map { Self.document($0, row.id.storageKey, configuration) }
                    ?? Self.unreadable(row.id.storageKey)
                let jwe: Sealed = document.map { order.seal($0).map { .done($0) } ?? .failed } ?? .nothing
                return (jwe, record != nil)
            }
        }
        var lines: [[UInt8]] = []
        for (row, sealed) in zip(rows, sealed) {
            let fields = LogField.credentials(row.id) + [.version(row.record.version)]
            if !sealed.isReadable { records.log.error("credentials_unreadable", fields) }
            switch sealed.jwe {
            case .done(let jwe): lines.append(jwe)
            case .nothing: break
            case .failed:
                records.log.error("credentials_not_sealed", fields)
                throw BrokerError(.internalError, "A set of credentials cannot be sealed, so the export ends here.")
            }
        }
        let hasMore = stored.count == Self.pageCount
        return Page(
            sealed: lines, unreadable: sealed.count { !$0.isReadable },
            next: hasMore ? stored.last.map { Place(record: $0.id) } : nil)
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
            // Empty for a set that asks for nothing beside the client's scopes, whatever the other broker's tenant asks for.
            json.name("asked")
            if let asked = held.asked { asked.encode(to: &json) } else { json.object { _ in } }
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
