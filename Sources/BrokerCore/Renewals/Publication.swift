import CredentialStore
import OAuth
import Reactor

/// A record that is to be stored in place of exactly one version, and the state of the tries to do so.
struct Publication: Sendable {
    let id: CredentialsID
    var record: CredentialRecord
    /// The version that the renewal started from.
    let firstBase: Int64
    /// The version that the record replaces: another one than the first after a conflict.
    var base: Int64
    /// What brought the credentials of the record; nil for the end of a session.
    let origin: BrokerEvent.Origin?
    var events: CredentialsRecords.Events
    /// The version that the tenant must have where the record is new; nil for any.
    var tenantVersion: Int64?
    /// The holder of the lease under which the record came to be; nil where no lease was needed.
    var holder: String?
    /// The digest of the refresh token that was exchanged for the record's; nil where none was.
    var spent: [UInt8]?
    /// The stored record where a login's set waits for its verification over the set that was renewed; nil elsewhere. The grant
    /// takes the place of the set before the login's.
    var waitingLogin: CredentialRecord?
    /// Whether the record is that of a login which came first, with the refresh token that was granted.
    var isBehindLogin = false
    /// The user's login that ends with the record, `HeldCredentials.loggedInSince`, and why the sessions of apps end with it; nil
    /// where it goes on.
    var ends: (login: Timestamp, cause: BrokerEvent.SessionEnd)?
    /// What becomes of the quarantined credentials in the same commit.
    var quarantine: CredentialsRecords.QuarantineChange = .none
    /// The changes that count the session's end among the tenant's refusals; see `Waves`.
    var counting: [VaultChange] = []
    /// Whether the record's user is known to be the user of the record that it replaces.
    var isOfSameUser = true
    var prepared: (change: CredentialsRecords.Prepared, for: Terms)?
    var tries = 0
    var conflicts = 0
    /// Since when the store has taken nothing; nil if it has not failed.
    var awaySince: MonotonicInstant?
    /// Whether the store has failed in a way that an operator has to correct.
    var needsOperator = false
    /// What was stored; nil before.
    var stored: CredentialsSnapshot?
    /// The newest version that this process knew of when it last read the store because of this publication.
    var readUpTo: Int64 = 0

    init(
        id: CredentialsID, record: CredentialRecord, base: Int64, origin: BrokerEvent.Origin? = nil,
        events: @escaping CredentialsRecords.Events
    ) {
        self.id = id
        self.record = record
        (firstBase, self.base) = (base, base)
        self.origin = origin
        self.events = events
    }

    /// What a prepared change depends on.
    struct Terms: Equatable {
        /// Whether another attempt's lease makes the commit fail.
        let heedsLease: Bool
        /// Whether the record has the digest of the token that its refresh token was exchanged for.
        let tellsExchange: Bool
    }
}
