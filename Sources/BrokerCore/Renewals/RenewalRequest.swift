internal import CredentialStore
internal import OAuth

/// What one renewal is about, and who asks for it.
struct RenewalRequest: Sendable {
    let id: CredentialsID
    /// The tenant as it was when the renewal began.
    let tenant: Tenant
    let query: CredentialsQuery
    let urgency: ProviderBudget.Urgency
    /// Why the renewal begins.
    let trigger: BrokerEvent.Trigger
    /// Whether a refresh token is presented that no user's record has (`TokenPresentation`), so that no other process makes the calls
    /// that are left.
    var isPresentation = false
    /// Names the renewal in events and in the log.
    let refreshID = RefreshID()

    /// What the events of the renewal have in common.
    func eventContext(_ grant: TokenRequest.Grant) -> BrokerEvent.Refresh {
        BrokerEvent.Refresh(id: id, refreshID: refreshID, grant: grant, trigger: trigger)
    }

    /// Whether the renewal carries credentials over to the client that is configured now, at a provider that has a grant for
    /// that: no failure of it is final. Elsewhere, client credentials for a new client are asked for like the first ones.
    func isUpgrade(_ basis: RenewalBasis) -> Bool { basis.decision.isUpgrade && tenant.terms.canUpgrade }

    var logFields: [LogField] { LogField.credentials(id) + [.refresh(refreshID)] }
}

/// What a renewal starts from: the credentials as they were read last, and the decision about them.
struct RenewalBasis {
    var snapshot = CredentialsSnapshot.nothing
    var decision = CredentialsDecision.missing
    /// What the provider is asked for; nil where it is not asked.
    var grant: TokenRequest.Grant?
    /// The lease on the record; nil where there is none.
    var lease: Lease?
    /// The holder of a lease that has ended and only reports a failure to other replicas; nil where there is none.
    var failedHolder: String?
    /// Whether `snapshot` is a cache entry that was not compared with the store. Until a claim shows that the store has the
    /// same version, no event and no line of the log tells of the renewal.
    var isAssumed = false

    var held: HeldCredentials? { snapshot.record.held }
    var spendsRefreshToken: Bool { grant?.spendsRefreshToken == true }

    /// The client that asks the provider.
    func client(of tenant: Tenant) -> ClientConfiguration {
        grant == .refreshToken ? tenant.configuration.client(of: held) : tenant.configuration.client
    }
}
