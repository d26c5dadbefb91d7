package import CredentialStore
import Cryptography
import ExternalText
import JSON
import OAuth
import Reactor
import Renewal

/// The grants that the store did not take, sealed and durable on this process's own disk.
///
/// The journal is an embedded store: each entry is a record, which is whole or absent after a crash at any moment, and one
/// process at a time has the directory.
package final class Journal: Sendable {
    let vault: Vault
    /// The name of the machine that has its directory, for operators.
    let host: String

    /// - Parameter vault: over a store that only this process uses, with the keys of the broker's store.
    package init(vault: Vault, host: String = "-") {
        self.vault = vault
        self.host = host
    }

    /// Writes an entry, in place of an older one for the same credentials. It is durable when this returns.
    func write(_ entry: JournalEntry) async throws(StoreError) {
        let id = Self.recordID(entry.id)
        try await retryingConflicts { () async throws(StoreError) in
            let present = try await self.vault.version(of: id)
            let record = OpenRecord(id: id, version: (present ?? 0) + 1, content: SecretBytes(entry.encoded))
            try await self.vault.commit([present.map { .replace(record, version: $0) } ?? .insert(record)])
        }
    }

    /// The identity of the journal, which is made at the first call. A process that has the journal open knows that every
    /// earlier process with the same identity has ended.
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

    /// All entries.
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
package struct JournalEntry: Sendable, Equatable {
    /// What the credentials were exchanged for.
    struct Exchange: Sendable, Equatable {
        /// The version of the record that they are to replace.
        let base: Int64
        /// The holder of the lease under which they were granted; nil where there was none.
        let holder: String?
        /// The digest of the refresh token that was exchanged.
        let spent: [UInt8]
        /// For how long after its first use the provider accepts that refresh token again, by the tenant's configuration when
        /// the entry was made: the store, which has the configuration, may not answer when the entry is taken up. Earlier
        /// builds did not write this.
        let grace: Duration
    }

    let id: CredentialsID
    let record: CredentialRecord
    let exchange: Exchange
    /// The cause that the event of the credentials names. An entry of an earlier build has none, and counts as a refresh.
    let origin: BrokerEvent.Origin
    /// Whether the record's user was compared with the user of the record that it replaces. Earlier builds did not do so.
    let isOfSameUser: Bool

    init(
        id: CredentialsID, record: CredentialRecord, exchange: Exchange, origin: BrokerEvent.Origin, isOfSameUser: Bool
    ) {
        self.id = id
        self.record = record
        self.exchange = exchange
        self.origin = origin
        self.isOfSameUser = isOfSameUser
    }

    package var encoded: [UInt8] {
        JSONWriter.object { json in
            json.member("base", exchange.base)
            json.memberIfPresent("holder", exchange.holder)
            json.member("spent", Base64URL.encode(exchange.spent))
            // Earlier builds serve an entry as this version.
            json.member("version", exchange.base + 1)
            json.member("record", Base64URL.encode(record.encoded))
            json.member("grace", exchange.grace.milliseconds)
            json.member("cause", origin.rawValue)
            json.member("same_user", isOfSameUser)
        }
    }

    /// Nil where this build cannot read the record.
    package init?(_ record: OpenRecord) {
        guard let json = try? JSONValue(parsing: record.content.revealedBytes), let base = json["base"]?.integer,
            let spent = (json["spent"]?.string?.text).flatMap(Base64URL.decode),
            let content = (json["record"]?.string?.text).flatMap(Base64URL.decode),
            let credentials = CredentialRecord(decoding: content),
            let storageKey = StorageKey(record.id.key)
        else { return nil }
        self.init(
            id: CredentialsID(tenant: record.id.tenant, storageKey: storageKey), record: credentials,
            exchange: Exchange(
                base: base, holder: json["holder"]?.string?.text, spent: spent,
                grace: json["grace"]?.integer.map { .milliseconds($0) } ?? RenewalRules.usualGrace),
            origin: (json["cause"]?.string?.text).flatMap { BrokerEvent.Origin(rawValue: $0) } ?? .refresh,
            isOfSameUser: json["same_user"]?.bool ?? false)
    }
}
