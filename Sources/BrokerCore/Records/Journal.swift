package import CredentialStore
internal import Cryptography
internal import ExternalText
internal import JSON
internal import OAuth
internal import Reactor
internal import Renewal

/// What was granted while the store was away, sealed and durable on this process's own disk.
///
/// The files of an embedded store serve as the journal: each entry is a record there, whole or absent after a crash at
/// any moment, and one process at a time has the directory.
package final class Journal: Sendable {
    let vault: Vault

    /// - Parameter vault: over a store that nobody else uses, with the keys of the store whose journal it is.
    package init(vault: Vault) {
        self.vault = vault
    }

    /// Keeps an entry durably, in place of one for the same credentials.
    func keep(_ entry: JournalEntry) async throws(StoreError) {
        let id = Self.recordID(entry.id)
        try await retryingConflicts { () async throws(StoreError) in
            let standing = try await self.vault.version(of: id)
            let record = OpenRecord(id: id, version: (standing ?? 0) + 1, content: SecretBytes(entry.encoded))
            try await self.vault.commit([standing.map { .replace(record, version: $0) } ?? .insert(record)])
        }
    }

    /// The identity of the journal, which is made with it. A process that has the journal knows that every other process
    /// that had it is gone.
    func lineage() async throws(StoreError) -> String {
        let id = RecordID(.process, .broker)
        return try await retryingConflicts { () async throws(StoreError) in
            if let record = try await self.vault.read(id) {
                return String(decoding: record.content.revealedBytes, as: UTF8.self)
            }
            let lineage = RefreshID().text
            try await self.vault.commit([
                .insert(OpenRecord(id: id, version: 1, content: SecretBytes(Array(lineage.utf8))))
            ])
            return lineage
        }
    }

    func remove(_ id: CredentialsID) async throws(StoreError) {
        try await retryingConflicts { () async throws(StoreError) in
            guard let version = try await self.vault.version(of: Self.recordID(id)) else { return }
            try await self.vault.commit([.remove(Self.recordID(id), version: version)])
        }
    }

    /// Everything that is kept.
    func entries() async throws(StoreError) -> [JournalEntry] {
        let limit = 500
        var entries: [JournalEntry] = []
        var last: RecordID?
        while true {
            let page = try await vault.list(.unpublished, tenant: nil, after: last, limit: limit)
            for record in page {
                guard let entry = JournalEntry(record) else {
                    throw .damaged(
                        "an entry of the journal of tenant \(record.id.tenant) cannot be read by this version")
                }
                entries.append(entry)
            }
            if page.count < limit { return entries }
            last = page.last?.id
        }
    }

    package func close() async {
        await vault.close()
    }

    private static func recordID(_ id: CredentialsID) -> RecordID {
        RecordID(.unpublished, id.tenant, key: id.storageKey.description)
    }
}

/// Credentials that a provider granted in exchange for a refresh token, before they are stored.
struct JournalEntry: Sendable, Equatable {
    let id: CredentialsID
    /// The version of the record that they are to replace.
    let base: Int64
    let holder: String?
    /// The digest of the refresh token that was exchanged.
    let spent: [UInt8]
    let record: CredentialRecord
    /// For how long after its first use the provider takes that refresh token again, as the tenant had it when the entry was
    /// made: the store, which has the tenant, may be away when the entry is taken up. Builds before this one did not
    /// write it.
    let grace: Duration
    /// Whether the record's user was found to be that of what it was exchanged for. Earlier builds did not look.
    let isOfSameUser: Bool

    init(
        id: CredentialsID, base: Int64, holder: String?, spent: [UInt8], record: CredentialRecord, grace: Duration,
        isOfSameUser: Bool
    ) {
        self.id = id
        self.base = base
        self.holder = holder
        self.spent = spent
        self.record = record
        self.grace = grace
        self.isOfSameUser = isOfSameUser
    }

    var encoded: [UInt8] {
        JSONWriter.object { json in
            json.member("base", base)
            json.memberIfPresent("holder", holder)
            json.member("spent", Base64URL.encode(spent))
            // Builds before this one serve an entry as this version.
            json.member("version", base + 1)
            json.member("record", Base64URL.encode(record.encoded))
            json.member("grace", grace.milliseconds)
            json.member("same_user", isOfSameUser)
        }
    }

    /// Nil when the record is no entry of this build's.
    init?(_ record: OpenRecord) {
        guard let json = try? JSONValue(parsing: record.content.revealedBytes), let base = json["base"]?.integer,
            let spent = (json["spent"]?.string?.text).flatMap(Base64URL.decode),
            let content = (json["record"]?.string?.text).flatMap(Base64URL.decode),
            let credentials = CredentialRecord(decoding: content),
            let storageKey = StorageKey(record.id.key)
        else { return nil }
        self.init(
            id: CredentialsID(tenant: record.id.tenant, storageKey: storageKey), base: base,
            holder: json["holder"]?.string?.text, spent: spent, record: credentials,
            grace: json["grace"]?.integer.map { .milliseconds($0) } ?? RenewalRules.usualGrace,
            isOfSameUser: json["same_user"]?.bool ?? false)
    }
}
