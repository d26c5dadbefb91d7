import CredentialStore
import Cryptography
import OAuth
import Synchronization
import Testing

extension StoreConformance {
    /// Commits that are sent again because the answer to the first try was lost.
    static let repeats: [StoreConformance] =
        repeatsOfOneChange + [
            repeating("a repeated commit of several changes is made once") { trial in
                let (insert, replaced, removed) = (trial.open("new"), trial.open("old", version: 2), trial.open("gone"))
                try await trial.store.commit([
                    .insert(trial.stored("old")), .insert(trial.stored("gone")),
                ])
                let commit = try trial.vault.prepare([
                    .insert(insert), .replace(replaced, version: 1), .remove(removed.id, version: 1),
                    .append(trial.entry("e")),
                ])
                try await trial.expectLost(commit)
                #expect(try await trial.vault.commit(commit) == .earlier)
                #expect(try await trial.contents() == ["new 1", "old 2"])
                #expect(try await trial.store.logKeys() == ["e"])
            },
            repeating("a commit that was not carried out is made by its repetition") { trial in
                try await trial.store.commit([.insert(trial.stored("k"))])
                let commit = try trial.vault.prepare([
                    .replace(trial.open("k", version: 2), version: 1), .append(trial.entry("e")),
                ])
                trial.link.lose(request: true)
                await #expect(throws: StoreError.unavailable) { try await trial.vault.commit(commit) }
                #expect(try await trial.contents() == ["k 1"])
                #expect(try await trial.vault.commit(commit) == .now)
                #expect(try await trial.contents() == ["k 2"])
                #expect(try await trial.store.logKeys() == ["e"])
            },
            repeating("a first try that arrives during its repetition counts") { trial in
                try await trial.store.commit([.insert(trial.stored("k"))])
                let commit = try trial.vault.prepare([.replace(trial.open("k", version: 2), version: 1)])
                trial.link.delayRequest()
                await #expect(throws: StoreError.unavailable) { try await trial.vault.commit(commit) }
                #expect(try await trial.vault.commit(commit) == .earlier)
                #expect(try await trial.contents() == ["k 2"])
            },
            repeating("an entry proves its commit after the record has moved on") { trial in
                try await trial.store.commit([.insert(trial.stored("k"))])
                let commit = try trial.vault.prepare([
                    .replace(trial.open("k", version: 2), version: 1), .append(trial.entry("e")),
                ])
                try await trial.expectLost(commit)
                try await trial.store.commit([.replace(trial.stored("k", version: 3), version: 2)])
                #expect(try await trial.vault.commit(commit) == .earlier)
                try await trial.expectRemovalProven("r", by: "e2")
                #expect(try await trial.contents() == ["k 3"])
                #expect(try await trial.store.logKeys() == ["e", "e2"])
            },
            repeating("without an entry, a record that has moved on is a conflict") { trial in
                try await trial.store.commit([.insert(trial.stored("k"))])
                let commit = try trial.vault.prepare([.replace(trial.open("k", version: 2), version: 1)])
                try await trial.expectLost(commit)
                try await trial.store.commit([.replace(trial.stored("k", version: 3), version: 2)])
                await #expect(throws: StoreError.conflict) { try await trial.vault.commit(commit) }
                #expect(try await trial.contents() == ["k 3"])
            },
            repeating("another writer's change is no proof, even with the same version and content") { trial in
                try await trial.store.commit([.insert(trial.stored("k"))])
                let next = trial.open("k", version: 2)
                let commit = try trial.vault.prepare([.replace(next, version: 1), .append(trial.entry("e"))])
                trial.link.lose(request: true)
                await #expect(throws: StoreError.unavailable) { try await trial.vault.commit(commit) }
                let other = Vault(store: trial.store, keyring: trial.vault.keyring)
                try await other.commit([.replace(next, version: 1)])
                await #expect(throws: StoreError.conflict) { try await trial.vault.commit(commit) }
                #expect(try await trial.contents() == ["k 2"])
                #expect(try await trial.store.logKeys() == [])
            },
            repeating("another holder's lease is no proof of a release") { trial in
                let id = trial.stored("k").id
                try await trial.store.commit([.insert(trial.stored("k"))])
                try await trial.store.commit([.claim(id, version: 1, LeaseClaim(holder: "a", for: .seconds(60)))])
                let commit = try trial.vault.prepare([
                    .release(id, version: 1, holder: "a", LeaseRelease(.unknown(recovery: nil)))
                ])
                trial.link.lose(request: true)
                await #expect(throws: StoreError.unavailable) { try await trial.vault.commit(commit) }
                let claim = LeaseClaim(holder: "b", replacing: "a", replacesStanding: true, for: .seconds(60))
                try await trial.store.commit([.claim(id, version: 1, claim)])
                try await trial.store.commit([
                    .release(id, version: 1, holder: "b", LeaseRelease(.unknown(recovery: nil)))
                ])
                await #expect(throws: StoreError.conflict) { try await trial.vault.commit(commit) }
            },
            repeating("a commit is told of unless it was only found to have been carried out") { trial in
                let told = Mutex(0)
                let vault = trial.vault.telling { _ in told.withLock { $0 += 1 } }
                let commit = try vault.prepare([.insert(trial.open("k"))])
                trial.link.lose(request: false)
                await #expect(throws: StoreError.unavailable) { try await vault.commit(commit) }
                #expect(told.withLock { $0 } == 0)
                for _ in 0..<3 { #expect(try await vault.commit(commit) == .earlier) }
                #expect(told.withLock { $0 } == 0)
                try await vault.commit([.insert(trial.open("other"))])
                #expect(told.withLock { $0 } == 1)
            },
        ]

    private static let repeatsOfOneChange: [StoreConformance] = [
        repeating("a repeated insertion is made once") { trial in
            let commit = try trial.vault.prepare([.insert(trial.open("k"))])
            try await trial.expectLost(commit)
            #expect(try await trial.vault.commit(commit) == .earlier)
            #expect(try await trial.contents() == ["k 1"])
        },
        repeating("a repeated replacement is made once") { trial in
            try await trial.store.commit([.insert(trial.stored("k"))])
            let commit = try trial.vault.prepare([.replace(trial.open("k", version: 2), version: 1)])
            try await trial.expectLost(commit)
            #expect(try await trial.vault.commit(commit) == .earlier)
            #expect(try await trial.contents() == ["k 2"])
        },
        repeating("a repeated removal is a conflict, unless an entry proves it") { trial in
            let record = trial.stored("k")
            try await trial.store.commit([.insert(record)])
            let commit = try trial.vault.prepare([.remove(record.id, version: 1)])
            try await trial.expectLost(commit)
            await #expect(throws: StoreError.conflict) { try await trial.vault.commit(commit) }
            try await trial.expectRemovalProven("other", by: "e")
            #expect(try await trial.contents() == [])
        },
        repeating("a repeated entry is appended once") { trial in
            let commit = try trial.vault.prepare([.append(trial.entry("e"))])
            try await trial.expectLost(commit)
            #expect(try await trial.vault.commit(commit) == .earlier)
            #expect(try await trial.store.logKeys() == ["e"])
        },
        repeating("a repeated claim is made once, with its entries") { trial in
            let record = trial.stored("k")
            try await trial.store.commit([.insert(record)])
            for (name, entries) in [("a", []), ("a", [VaultChange.append(trial.entry("e"))])] {
                let claim = LeaseClaim(holder: name, for: .seconds(60))
                let commit = try trial.vault.prepare([.claim(record.id, version: 1, claim)] + entries)
                // The second claim extends the holder's own lease, which proves nothing about the entry.
                trial.link.lose(request: true)
                await #expect(throws: StoreError.unavailable) { try await trial.vault.commit(commit) }
                try await trial.expectLost(commit)
                #expect(try await trial.vault.commit(commit) == .earlier)
            }
            #expect(try await trial.store.read(record.id)?.lease?.holder == "a")
            #expect(try await trial.store.logKeys() == ["e"])
        },
        repeating("a repeated release is made once, with its entries") { trial in
            let record = trial.stored("k")
            try await trial.store.commit([.insert(record)])
            for (holder, entries) in [("a", []), ("b", [VaultChange.append(trial.entry("e"))])] {
                let claim = LeaseClaim(holder: holder, replacing: holder == "b" ? "a" : nil, for: .seconds(60))
                try await trial.store.commit([.claim(record.id, version: 1, claim)])
                let commit = try trial.vault.prepare(
                    [.release(record.id, version: 1, holder: holder, LeaseRelease(.unknown(recovery: nil)))] + entries)
                try await trial.expectLost(commit)
                #expect(try await trial.vault.commit(commit) == .earlier)
            }
            #expect(try await trial.store.read(record.id)?.lease?.wasGivenUp == true)
            #expect(try await trial.store.logKeys() == ["e"])
        },
    ]

    private static func repeating(
        _ name: String, _ body: @escaping @Sendable (RepeatTrial) async throws -> Void
    ) -> StoreConformance {
        StoreConformance(name) { store in
            let link = LosingStore(store)
            try await body(
                RepeatTrial(
                    store: store, link: link,
                    vault: Vault(store: link, keyring: try Keyring(parsing: Keyring.generate(id: "a")))))
        }
    }
}

/// A store behind a link that loses one commit or its answer, and a vault that uses the link.
private struct RepeatTrial: Sendable {
    let store: any RecordStore
    let link: LosingStore
    let vault: Vault

    func open(_ key: String, version: Int64 = 1) -> OpenRecord {
        OpenRecord(
            id: stored(key).id, version: version, content: SecretBytes(utf8: "content of \(key)"))
    }

    func stored(_ key: String, version: Int64 = 1) -> StoredRecord {
        StoreSample.record(.credentials, StoreSample.alpha, key, version: version)
    }

    func entry(_ key: String) -> OpenLogEntry {
        OpenLogEntry(
            tenant: StoreSample.alpha, key: key, version: 1, time: Timestamp(seconds: 1),
            content: SecretBytes(utf8: "content of \(key)"))
    }

    /// The keys and versions of the records.
    func contents() async throws -> [String] {
        try await store.everything().map { "\($0.id.key) \($0.version)" }
    }

    /// Sends a commit that is carried out, and whose answer is lost.
    func expectLost(_ commit: PreparedCommit) async throws {
        link.lose(request: false)
        await #expect(throws: StoreError.unavailable) { try await vault.commit(commit) }
    }

    /// Inserts a record, and removes it by a commit whose answer is lost and that an entry proves.
    func expectRemovalProven(_ key: String, by name: String) async throws {
        let record = stored(key)
        try await store.commit([.insert(record)])
        let commit = try vault.prepare([.remove(record.id, version: 1), .append(entry(name))])
        try await expectLost(commit)
        #expect(try await vault.commit(commit) == .earlier)
    }
}

/// Loses one commit, or the answer to it.
private final class LosingStore: ForwardingStore {
    private enum Fault {
        case losesRequest
        case losesAnswer
        case delaysRequest
    }

    private struct State {
        var fault: Fault?
        /// Reaches the store before the next commit does.
        var delayed: [RecordChange] = []
    }

    let inner: any RecordStore
    private let state = Mutex(State())

    init(_ inner: any RecordStore) { self.inner = inner }

    var revalidateAfter: Duration? { inner.revalidateAfter }

    func admit() throws(StoreError) {}

    func lose(request: Bool) { state.withLock { $0.fault = request ? .losesRequest : .losesAnswer } }

    func delayRequest() { state.withLock { $0.fault = .delaysRequest } }

    func commit(_ changes: [RecordChange]) async throws(StoreError) {
        let (fault, delayed) = state.withLock { state in
            let fault = state.fault.take()
            let delayed = state.delayed
            state.delayed = fault == .delaysRequest ? changes : []
            return (fault, delayed)
        }
        if !delayed.isEmpty { try await inner.commit(delayed) }
        switch fault {
        case .losesRequest, .delaysRequest: throw .unavailable
        case .losesAnswer:
            try await inner.commit(changes)
            throw .unavailable
        case nil: try await inner.commit(changes)
        }
    }
}
