import OAuth

/// The members of a record that can be read without opening it.
package struct RecordMark: Sendable, Equatable {
    package let id: RecordID
    package let version: Int64
}

extension Vault {
    /// Up to `limit` records that have a due mark, with any time, the earliest first. None is opened, so that a record
    /// which does not open any more hides no other.
    package func marked(_ kind: RecordKind, limit: Int) async throws(StoreError) -> [RecordMark] {
        try await asking(.read, await store.due(kind, before: .latest, limit: limit)).map {
            RecordMark(id: $0.id, version: $0.version)
        }
    }
}
