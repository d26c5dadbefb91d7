internal import BrokerCore
internal import CredentialStore
internal import OAuth
internal import Reactor

/// Has tombstones that an operator has restored from a backup deliberately taken for the newest ones, and exits.
func acceptRestored() -> Never {
    let configuration = loadConfiguration(for: .acceptRestored)
    runCommand { () async throws(CommandFailure) in
        let opened = try await CommandStore(configuration)
        try await acceptRestored(opened)
        await opened.close()
        return 0
    }
}

private func acceptRestored(_ opened: CommandStore) async throws(CommandFailure) {
    do throws(VaultError) {
        try await opened.store.vault.unlock()
    } catch {
        throw CommandFailure(text: "\(error)")
    }
    let tombstones = opened.tombstones
    var (tenants, pages, last) = (0, 0, RecordID?.none)
    do throws(StoreError) {
        // Those of API keys of several tenants.
        let accepted = try await tombstones.accept(.broker)
        if accepted > 0 {
            Console.print("API keys of several tenants: \(accepted) records of tombstones accepted as they are")
        }
        pages += accepted
        while true {
            let records = try await opened.store.vault.list(.tenant, tenant: nil, after: last, limit: 100)
            for record in records {
                let accepted = try await tombstones.accept(record.id.tenant)
                if accepted == 0 { continue }
                Console.print("\(record.id.tenant): \(accepted) records of tombstones accepted as they are")
                (tenants, pages) = (tenants + 1, pages + accepted)
            }
            guard records.count == 100, let id = records.last?.id else { break }
            last = id
        }
    } catch {
        throw CommandFailure(error)
    }
    Console.print("done: \(pages) records of tombstones of \(tenants) tenants accepted")
}
