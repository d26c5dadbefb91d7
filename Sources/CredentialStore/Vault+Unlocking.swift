import Cryptography
import OAuth

// The store has a check record for each key that ever sealed a record in it. Only that key opens the check record,
// whose own key is `<key id>.<key identity>` in clear, so that the operator can be told which key is missing.
extension Vault {
    private static let checkContent = SecretBytes(utf8: "token-broker key check")

    /// Checks that the keyring has every key under which records in the store may be sealed, then writes a check record
    /// for its first key. Overwrites nothing.
    ///
    /// To be called before any other use: so a wrong key is found before a caller's request fails because of it, and
    /// before a record is sealed that the other replicas cannot open.
    package func unlock() async throws(VaultError) {
        let keyring = keyring
        let own = Self.checkID(keyring.primary)
        let checks = try await verifiedChecks()
        if checks.contains(where: { $0.id == own }) { return }
        if checks.isEmpty { try await verifySamples() }
        do throws(StoreError) {
            try await commit([.insert(Self.checkRecord(of: keyring.primary))])
        } catch {
            guard error == .conflict else { throw .store(error) }
            // A replica that starts at the same time has written the check record. This key must open it.
            for record in try await keyChecks() where record.id == own { return try verify(record) }
            throw .store(.conflict)
        }
    }

    /// Uses other keys from now on, if the store does not need a key that they lack: like `unlock`, while the store is in use.
    /// Where this throws, the keys stay.
    package func adopt(_ keyring: Keyring) async throws(VaultError) {
        try await with(keyring).unlock()
        replaceKeys(keyring)
    }

    /// Checks that the keyring has every key that the store needs, without a change.
    package func verify(_ keyring: Keyring) async throws(VaultError) {
        _ = try await with(keyring).verifiedChecks()
    }

    private func verifiedChecks() async throws(VaultError) -> [StoredRecord] {
        let checks = try await keyChecks()
        for record in checks { try verify(record) }
        return checks
    }

    /// Opens the first record of each kind, for a store that has lost its check records.
    private func verifySamples() async throws(VaultError) {
        do throws(StoreError) {
            for kind in RecordKind.allCases {
                for record in try await listSealed(kind, tenant: nil, limit: 1) { _ = try open(record) }
            }
        } catch {
            throw .store(error)
        }
    }

    static func checkID(_ key: Keyring.Key) -> RecordID {
        RecordID(.keyCheck, .broker, key: "\(key.id).\(key.identity)")
    }

    static func checkRecord(of key: Keyring.Key) -> OpenRecord {
        OpenRecord(id: checkID(key), version: 1, content: checkContent)
    }

    /// All check records in the store.
    func keyChecks() async throws(VaultError) -> [StoredRecord] {
        let pageCount = 100
        var records: [StoredRecord] = []
        while true {
            let page: [StoredRecord]
            do throws(StoreError) {
                page = try await listSealed(
                    .keyCheck, tenant: .broker, after: records.last?.id, limit: pageCount)
            } catch {
                throw .store(error)
            }
            records += page
            if page.count < pageCount { return records }
        }
    }

    private func verify(_ record: StoredRecord) throws(VaultError) {
        let parts = record.id.key.split(separator: ".", omittingEmptySubsequences: false)
        guard parts.count == 2, let bytes = Hex.decode(String(parts[1])), bytes.count == KeyIdentity.count else {
            throw .store(.damaged("\(record.id.text) is not named for a key"))
        }
        let id = String(parts[0])
        guard let key = keyring.key(KeyIdentity(bytes: bytes)), key.id == id else {
            throw keyring.contains(id: id) ? .otherKey(id: id) : .missingKey(id: id)
        }
        do throws(StoreError) {
            guard try open(record).content == Self.checkContent else {
                throw .damaged("\(record.id.text) has another content than a key check")
            }
        } catch {
            throw .store(error)
        }
    }
}
