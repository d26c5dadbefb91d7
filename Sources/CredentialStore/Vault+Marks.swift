package import OAuth

/// What a record tells without being opened.
package struct RecordMark: Sendable, Equatable {
    package let id: RecordID
    package let version: Int64
    package let due: Timestamp?
}

extension Vault {
    /// The marks of up to `limit` records in the order of `list`, those after `after` (exclusive) only: nothing is
    /// opened, so that a record which does not open any more hides no other.
    package func marks(
        _ kind: RecordKind, tenant: TenantName? = nil, after: RecordID? = nil, limit: Int
    ) async throws(StoreError) -> [RecordMark] {
        try await store.list(kind, tenant: tenant, after: after, limit: limit).map {
            RecordMark(id: $0.id, version: $0.version, due: $0.due)
        }
    }
}
