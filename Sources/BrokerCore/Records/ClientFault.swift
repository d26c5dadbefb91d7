import CredentialStore
import Cryptography
import ExternalText
import JSON
package import OAuth
import Reactor

/// What all replicas know of a client that its provider does not accept. Each tenant has at most one record of it, which lasts
/// until the provider accepts the client, or until the tenant is configured anew.
package struct ClientFault: Sendable, Equatable {
    /// The version of the tenant whose client the provider refused: a tenant that is put again has another one.
    var configuration: Int64
    /// When the provider first refused the client.
    package let since: Timestamp
    /// When the provider was last asked.
    package var last: Timestamp
    /// The code that callers get (`BrokerError.Code`).
    package let code: String
    /// The provider's error code; nil where it sent none.
    package let errorCode: String?
    /// The version of the record; nil where there is no record.
    var version: Int64?

    /// For how long a provider that does not accept a client is not asked again.
    static let pause = ProviderHealth.Fault.pause
    /// If no replica has met the fault for so long after its last pause, the next refusal counts as a new fault.
    static let memory = ProviderHealth.Fault.memory
    /// For how long the record is kept of a client that no replica uses any more.
    fileprivate static let life: Duration = .seconds(30 * 86_400)

    /// The error code of a provider that does not know the client.
    static let unknownClient: WireText = "invalid_client"

    /// Until when the provider is not asked again.
    var until: Timestamp { last.advanced(by: Self.pause) }

    func isOf(_ tenant: Tenant) -> Bool { configuration == tenant.version }

    /// For how long the provider is not asked again; zero or less where the pause is over. A remainder longer than `pause`
    /// comes from a record that was written by another clock, and counts as zero.
    func remainingPause(at now: Timestamp) -> Duration {
        let remaining = now.duration(to: until)
        return remaining > Self.pause ? .zero : remaining
    }

    /// Whether the provider has accepted the client since, by a renewal of this user's credentials.
    func isRefuted(by record: CredentialRecord, of tenant: Tenant) -> Bool {
        isOfUser(record, of: tenant) && record.renewed.map { $0 > last } ?? false
    }

    /// Whether these credentials cannot be renewed because of the fault.
    func concerns(_ record: CredentialRecord, of tenant: Tenant) -> Bool {
        isOfUser(record, of: tenant) && record.held?.refreshToken != nil
    }

    /// Whether the record has a user's credentials that an earlier client does not refresh.
    private func isOfUser(_ record: CredentialRecord, of tenant: Tenant) -> Bool {
        record.held.map { $0.level == .user && !tenant.terms.earlierClients.contains($0.obtainedWith.clientID) }
            ?? false
    }

    /// The failure that a list shows for one user, since one user's renewal meets the fault for all users.
    /// - Parameter own: the failure of that user's own renewals; nil where there is none.
    func failure(after own: RenewalTrouble.Failure?) -> RenewalTrouble.Failure {
        var failure = RenewalTrouble.Failure(first: since, last: last, code: code, errorCode: errorCode)
        guard let own, own.last >= last else { return failure }
        guard own.code == code, own.errorCode == errorCode else { return own }
        failure.last = own.last
        return failure
    }
}

extension CredentialsRecords {
    private static func faultID(_ tenant: TenantName) -> RecordID { RecordID(.trouble, tenant) }

    /// Whether the record is that of a tenant's client.
    static func isClientFault(_ id: RecordID) -> Bool { id == faultID(id.tenant) }

    /// The fault of a tenant's client, with the version of its record; nil where there is no record. The fault is nil where this
    /// build cannot read the record.
    func clientFault(
        _ tenant: TenantName
    ) async throws(StoreError) -> (fault: ClientFault?, version: Int64)? {
        guard let stored = try await note(Self.faultID(tenant)) else { return nil }
        guard let json = stored.content.flatMap({ try? JSONValue(parsing: $0.revealedBytes) }),
            let configuration = json["configuration"]?.integer, let since = json["since"]?.integer,
            let until = json["until"]?.integer
        else { return (nil, stored.version) }
        let fault = ClientFault(
            configuration: configuration, since: Timestamp(milliseconds: since),
            last: Timestamp(milliseconds: until).advanced(by: .zero - ClientFault.pause),
            // Earlier builds wrote no code.
            code: json["code"]?.string?.text ?? BrokerError.Code.illegalConfiguration.rawValue,
            errorCode: json["error_code"]?.string?.text, version: stored.version)
        return (fault, stored.version)
    }

    /// The change that writes the record.
    /// - Parameter version: the version that is replaced; nil where there is none.
    func change(of fault: ClientFault, _ tenant: TenantName, over version: Int64?) -> VaultChange {
        let bytes = JSONWriter.object { json in
            json.member("configuration", fault.configuration)
            json.member("since", fault.since.milliseconds)
            json.member("until", fault.until.milliseconds)
            json.member("code", fault.code)
            json.memberIfPresent("error_code", fault.errorCode)
        }
        return change(
            ofNote: bytes, Self.faultID(tenant), until: fault.until.advanced(by: ClientFault.life), over: version)
    }

    /// The change that removes the record.
    func changeRemovingClientFault(_ tenant: TenantName, version: Int64) -> VaultChange {
        .remove(Self.faultID(tenant), version: version)
    }
}

extension CredentialRecord {
    /// The state of the user's session, as `state(after:of:configuration:isQuarantined:)` has it; `degraded`, too, where the provider
    /// takes the earlier client of the tenant no more that has got the credentials.
    func state(
        after trouble: RenewalTrouble?, of version: Int64, in tenant: Tenant, isQuarantined: Bool = false
    ) -> CredentialsState? {
        let state = state(
            after: trouble, of: version, configuration: tenant.version, isQuarantined: isQuarantined)
        guard state == .active, let held, let trouble, trouble.version == version,
            trouble.failure?.errorCode.map({ WireText($0) }) == ClientFault.unknownClient,
            tenant.terms.earlierClients.contains(held.obtainedWith.clientID)
        else { return state }
        return .degraded
    }
}
