import CredentialStore

/// Writes the progress of logins to a store that may not answer. Has no state of its own, so that many tasks may use it at once.
struct LoginRecords: Sendable {
    let vault: Vault
    let bus: EventBus
    let memory: RecentCommits
    let time: any Time

    /// Replaces exactly the version of a login that was read, and adds events in the same commit.
    /// - Parameter events: entries of the log.
    /// - Throws: `.conflict` when the login was changed meanwhile; `.unavailable` when the store did not answer or the task was
    ///   cancelled, and it is not known whether the login was written.
    func replace(
        _ record: OpenRecord, version: Int64, telling events: [VaultChange], retrying retries: CommitRetries
    ) async throws(StoreError) {
        let commit = try vault.prepare([.replace(record, version: version)] + events)
        try await time.retrying(retries) { () async throws(StoreError) in
            // The vault tells the memory of what this call has written, but not of what an earlier one has.
            if try await vault.commit(commit) == .earlier, try await vault.version(of: record.id) == record.version {
                await memory.note(commit.changes)
            }
        }
        if !events.isEmpty { bus.announce(record.id.tenant) }
    }
}
