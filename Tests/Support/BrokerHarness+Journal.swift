package import BrokerCore
package import CredentialStore

extension Journal {
    /// A journal in a store, with the harness's master keys.
    package convenience init(in store: any RecordStore) throws {
        self.init(vault: Vault(store: store, keyring: try Keyring(parsing: BrokerHarness.masterKeys)))
    }
}

extension StoreFixtureDirectory {
    /// A journal in this directory, as each process opens it.
    package func journal() async throws -> Journal {
        try Journal(in: try await FileRecordStore(directory: path))
    }
}
