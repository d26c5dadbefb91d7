package import CredentialStore

extension RecordChange {
    /// A claim as most tests make it.
    package static func claim(
        _ id: RecordID, version: Int64, holder: String, replacing: String?, for duration: Duration
    ) -> RecordChange {
        .claim(id, version: version, LeaseClaim(holder: holder, replacing: replacing, for: duration))
    }

    /// A release as most tests make it.
    package static func release(_ id: RecordID, version: Int64, holder: String, isSettled: Bool) -> RecordChange {
        .release(id, version: version, holder: holder, LeaseRelease(isSettled ? .settled : .unknown(recovery: nil)))
    }
}

extension VaultChange {
    /// A claim as most tests make it.
    package static func claim(
        _ id: RecordID, version: Int64, holder: String, replacing: String?, for duration: Duration
    ) -> VaultChange {
        .claim(id, version: version, LeaseClaim(holder: holder, replacing: replacing, for: duration))
    }
}
