import BrokerCore
import CredentialStore
import OAuth
import Reactor

/// Removes the registration of a journal whose replica will not start again, and exits. Replicas that wait for it go on at once.
func forgetJournal(_ id: String) -> Never {
    let configuration = loadConfiguration(for: .forgetJournal(id: id))
    runCommand { () async throws(CommandFailure) in
        let opened = try await CommandStore(configuration)
        let result = await forget(id, in: opened)
        await opened.close()
        try result.get()
        return 0
    }
}

private func forget(_ id: String, in opened: CommandStore) async -> Result<Void, CommandFailure> {
    let vault = opened.store.vault
    do throws(VaultError) {
        try await vault.unlock()
    } catch {
        return .failure(CommandFailure(text: "\(error)"))
    }
    do throws(StoreError) {
        let journals = try await vault.list(.journal, tenant: .broker, limit: 1000).compactMap { record in
            RegisteredJournal(record).map { (record, $0) }
        }
        guard let (record, journal) = journals.first(where: { $0.1.id == id }) else {
            let known = journals.map { "\n  \($0.1.id)  host \($0.1.host), last seen \($0.1.seen)" }.joined()
            return .failure(
                CommandFailure(
                    text: "there is no journal \(id); "
                        + (known.isEmpty ? "none is registered" : "registered are" + known)))
        }
        try await retryingConflicts { () async throws(StoreError) in
            guard let version = try await vault.version(of: record.id) else { return }
            try await vault.commit([.remove(record.id, version: version)])
        }
        Console.print("forgotten: journal \(id) of host \(journal.host), last seen \(journal.seen)")
        return .success(())
    } catch {
        return .failure(CommandFailure(error))
    }
}
