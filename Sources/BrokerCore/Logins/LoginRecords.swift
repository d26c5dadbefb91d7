internal import CredentialStore

/// Writes down how far logins are, over a store that may be away.
///
/// Has no state of its own: safe to use from any task and by many at once.
struct LoginRecords: Sendable {
    let vault: Vault
    let bus: EventBus
    let time: any Time

    /// Writes a login over the version that it was read at, and tells of it in the same commit.
    /// - Parameters:
    ///   - events: entries of the log.
    ///   - retries: how often a store that is away is asked again, after the pauses of
    ///     `CredentialsRecords.pause(beforeTry:)`; nil asks until it answers or the task is cancelled.
    /// - Throws: `.conflict` when somebody else has written the login meanwhile; `.unavailable` when the store stayed
    ///   away or the task was cancelled, and it is not known whether the login was written.
    func replace(
        _ record: OpenRecord, version: Int64, telling events: [VaultChange], retries: Int?
    ) async throws(StoreError) {
        // An earlier try may have arrived although its answer did not, before the next one or while that was under way.
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
