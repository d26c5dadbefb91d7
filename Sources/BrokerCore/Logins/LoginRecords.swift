internal import CredentialStore

/// Writes the progress of logins to a store that may not answer. Has no state of its own, so that many tasks may use it at once.
struct LoginRecords: Sendable {
    let vault: Vault
    let bus: EventBus
    let time: any Time

    /// Replaces exactly the version of a login that was read, and adds events in the same commit.
    /// - Parameters:
    ///   - events: entries of the log.
    ///   - retries: how often a store that does not answer is asked again, after the pauses of
    ///     `CredentialsRecords.pause(beforeTry:)`; nil asks until it answers or the task is cancelled.
    /// - Throws: `.conflict` when the login was changed meanwhile; `.unavailable` when the store did not answer or the task was
    ///   cancelled, and it is not known whether the login was written.
    func replace(
        _ record: OpenRecord, version: Int64, telling events: [VaultChange], retries: Int?
    ) async throws(StoreError) {
        // An earlier try may have been carried out although its answer was lost, before the next try or during it.
        func hasArrived() async throws(StoreError) -> Bool {
            let standing = try await vault.read(record.id)
            return standing?.version == record.version && standing?.content == record.content
        }
        var tries = 0
        while true {
            do throws(StoreError) {
                var isWritten = false
                if tries > 0 { isWritten = try await hasArrived() }
                if !isWritten {
                    do throws(StoreError) {
                        try await vault.commit([.replace(record, version: version)] + events)
                    } catch {
                        guard error == .conflict, tries > 0, try await hasArrived() else { throw error }
                    }
                }
                if !events.isEmpty { bus.announce(record.id.tenant) }
                return
            } catch {
                guard error == .unavailable, retries.map({ tries < $0 }) ?? true else { throw error }
            }
            tries += 1
            do {
                try await time.sleep(for: CredentialsRecords.pause(beforeTry: tries))
            } catch {
                throw .unavailable
            }
        }
    }
}
