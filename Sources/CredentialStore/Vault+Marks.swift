internal import OAuth

/// What a record tells without being opened.
package struct RecordMark: Sendable, Equatable {
    package let id: RecordID
    package let version: Int64
}

extension Vault {
    /// The marks of up to `limit` records that have a due mark, whenever that is, the earliest first. Nothing is opened,
    /// so that a record which does not open any more hides no other.
    package func marked(_ kind: RecordKind, limit: Int) async throws(StoreError) -> [RecordMark] {
        try await store.due(kind, before: .latest, limit: limit).map { RecordMark(id: $0.id, version: $0.version) }
    }
}
