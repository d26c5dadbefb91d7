import BrokerTesting
import CredentialStore
import Cryptography
import OAuth
import Testing

@testable import BrokerCore

/// A commit that is sent again to a store that does not answer.
@Suite struct `Commit retries` {
    private let store = FaultyStore()
    private let time = ManualTime()
    private let vault: Vault

    init() throws {
        vault = Vault(store: store, keyring: try Keyring(parsing: BrokerHarness.masterKeys))
    }

    private func insertion() throws -> PreparedCommit {
        let id = RecordID(.credentials, TenantName("t1")!, key: "k")
        return try vault.prepare([.insert(OpenRecord(id: id, version: 1, content: SecretBytes([1])))])
    }

    @Test func `send it as often as they say, with longer and longer pauses`() async throws {
        store.setDown(true)
        for (retries, count) in [(CommitRetries.times(0), 1), (.times(1), 2), (.times(3), 4)] {
            let commit = try insertion()
            let commits = store.commits
            await #expect(throws: StoreError.unavailable) {
                try await vault.commit(commit, retrying: retries, by: time)
            }
            // A repetition looks first whether the try before it was carried out, so only the first one commits here.
            #expect(store.commits == commits + 1)
            #expect(
                time.slept.suffix(count - 1)
                    == [.milliseconds(200), .milliseconds(400), .milliseconds(800)].prefix(count - 1))
        }
    }

    @Test func `send it until the store answers`() async throws {
        let commit = try insertion()
        for _ in 0..<20 { store.onCommit(of: .credentials, .refuse(.unavailable)) }
        #expect(try await vault.commit(commit, retrying: .untilAnswered, by: time) == .now)
        #expect(time.slept.count == 20 && time.slept.last == .seconds(5))
    }

    @Test func `find out that a try was carried out whose answer was lost`() async throws {
        let commit = try insertion()
        store.onCommit(of: .credentials, .loseAnswer)
        let commits = store.commits
        #expect(try await vault.commit(commit, retrying: .times(1), by: time) == .earlier)
        #expect(store.commits == commits + 1)
    }

    @Test func `do not send it again after another answer`() async throws {
        for error in [StoreError.conflict, .damaged("a record")] {
            store.onCommit(of: .credentials, .refuse(error))
            let commit = try insertion()
            await #expect(throws: error) { try await vault.commit(commit, retrying: .untilAnswered, by: time) }
        }
        #expect(time.slept.isEmpty)
    }

    @Test func `end with their task`() async throws {
        store.setDown(true)
        let commit = try insertion()
        let waiting = ManualTime(skipsSleeps: false)
        let task = Task { [vault] in try await vault.commit(commit, retrying: .untilAnswered, by: waiting) }
        await waiting.sleepers(of: .milliseconds(200))
        task.cancel()
        await #expect(throws: StoreError.unavailable) { try await task.value }
    }
}
