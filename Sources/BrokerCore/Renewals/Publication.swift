internal import CredentialStore
internal import OAuth

/// Something to be stored in place of exactly what it came from, and how far that has got.
struct Publication: Sendable {
    let id: CredentialsID
    /// The version that the tenant must have where the record is new.
    let tenantVersion: Int64?
    /// The holder of the lease under which the record came to be; nil where none was needed.
    let holder: String?
    var record: CredentialRecord
    /// The digest of the refresh token that was exchanged for the record's; nil where none was.
    var spent: [UInt8]?
    var events: CredentialsRecords.Events
    /// The version that is to be replaced.
    var base: Int64
    var aside: CredentialsRecords.AsideChange = .none
    /// Whether it is known that the record's user is that of what it replaces.
    var isOfSameUser = true
    var prepared: (change: CredentialsRecords.Prepared, for: Terms)?
    var tries = 0
    var conflicts = 0
    /// The version of a later change that this process knew of when it read last what stands in the store.
    var heeded: Int64 = 0

    /// What a change that is prepared goes by.
    struct Terms: Equatable {
        /// Whether another attempt's lease stands in the way.
        let heedsLease: Bool
        /// Whether the record is to tell what its refresh token was exchanged for.
        let tellsExchange: Bool
    }
}
