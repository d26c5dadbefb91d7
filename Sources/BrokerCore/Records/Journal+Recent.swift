import Containers
import CredentialStore
import Cryptography
import ExternalText
import JSON
import OAuth

/// What was committed lately, in case the store loses the commits; see `RecentCommits`.
extension Journal {
    /// Writes records, each in place of one with a lower version. They are durable when this returns.
    func keep(_ records: [OpenRecord]) async throws(StoreError) {
        try await retryingConflicts { () async throws(StoreError) in
            let versions = try await self.vault.versions(of: records.map(\.id))
            let changes = zip(records, versions).compactMap { record, present -> VaultChange? in
                guard let present else { return .insert(record) }
                return present < record.version ? .replace(record, version: present) : nil
            }
            if !changes.isEmpty { try await self.vault.commit(changes) }
        }
    }

    private static var storeID: RecordID { RecordID(.lineage, .broker, key: "store") }

    /// Writes what the shared store looks like now, so that the next process notices where it has gone back.
    func remember(_ lineage: StoreLineage, at now: Timestamp) async throws(StoreError) {
        let content = JSONWriter.object { json in
            json.member("system", lineage.system)
            json.member("timeline", lineage.timeline)
            json.member("position", lineage.position)
            json.member("seen", now.milliseconds)
        }
        try await retryingConflicts { () async throws(StoreError) in
            let present = try await self.vault.version(of: Self.storeID)
            let record = OpenRecord(id: Self.storeID, version: (present ?? 0) + 1, content: SecretBytes(content))
            try await self.vault.commit([present.map { .replace(record, version: $0) } ?? .insert(record)])
        }
    }

    /// What an earlier process has seen of the shared store last; nil where none has written that.
    func rememberedStore() async throws(StoreError) -> (lineage: StoreLineage, at: Timestamp)? {
        guard let record = try await vault.read(Self.storeID),
            let json = try? JSONValue(parsing: record.content.revealedBytes), let system = json["system"]?.integer,
            let timeline = json["timeline"]?.integer, let position = json["position"]?.integer,
            let seen = json["seen"]?.integer
        else { return nil }
        return (
            StoreLineage(system: system, timeline: timeline, position: position), Timestamp(milliseconds: seen)
        )
    }

    /// Removes these records, each if it has that version or a lower one.
    /// - Throws: `.conflict` where one of them was replaced just now.
    func remove(_ records: [RecordID: Int64]) async throws(StoreError) {
        for batch in Array(records).inBatches(of: Self.batch) {
            let versions = try await vault.versions(of: batch.map(\.key))
            let removals = zip(batch, versions).compactMap { record, version -> VaultChange? in
                version.flatMap { $0 <= record.value ? .remove(record.key, version: $0) : nil }
            }
            if !removals.isEmpty { try await vault.commit(removals) }
        }
    }

    private static var batch: Int { 200 }

    /// All commits, and where each of them is. Earlier builds wrote those of sessions under a kind of their own. A record that this
    /// build cannot read is left where it is.
    func recent() async throws(StoreError) -> [(commit: RecentCommit, place: RecentCommit.Place)] {
        let limit = 500
        var recent: [(commit: RecentCommit, place: RecentCommit.Place)] = []
        for kind in [RecordKind.recent, .keptSession] {
            var last: RecordID?
            while true {
                let page = try await vault.list(kind, tenant: nil, after: last, limit: limit)
                for record in page {
                    guard let commit = RecentCommit(record) else { continue }
                    recent.append((commit, RecentCommit.Place(id: record.id, version: record.version)))
                }
                if page.count < limit { break }
                last = page.last?.id
            }
        }
        return recent
    }
}
