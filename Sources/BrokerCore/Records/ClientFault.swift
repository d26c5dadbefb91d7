internal import CredentialStore
internal import Cryptography
internal import ExternalText
internal import JSON
package import OAuth
internal import Reactor

/// What all replicas know of a client that its provider does not accept. Each tenant has one record of it at most, which
/// lasts until the provider accepts the client, or until another tenant configuration replaces the one that was refused.
package struct ClientFault: Sendable, Equatable {
    /// The version of the tenant whose client the provider refused: a tenant that is put again has another one.
    var configuration: Int64
    /// When the provider first refused the client.
    package let since: Timestamp
    /// When the provider was last asked.
    package var last: Timestamp
    /// As callers get it (`BrokerError.Code`).
    package let code: String
    /// What the provider called it; nil where it sent no code.
    package let errorCode: String?
    /// The version of the record; nil where the store has not taken one.
    var version: Int64?

    /// For how long a provider that does not accept a client is not asked again.
    static let pause: Duration = .seconds(30)
    /// A fault that no replica has met for so long after its last pause is told of again when it is met again.
    static let memory: Duration = .seconds(600)
    /// For how long a record is kept of a client that no replica shows to the provider any more.
    fileprivate static let life: Duration = .seconds(30 * 86_400)

    /// Until when the provider is not asked again.
    var until: Timestamp { last.advanced(by: Self.pause) }

    func isOf(_ tenant: Tenant) -> Bool { configuration == tenant.version }

    /// How long the provider is not asked again; zero or less for over. No pause leaves more than `pause` to wait for: the
    /// clock that it was written by was another.
    func rest(at now: Timestamp) -> Duration {
        let rest = now.duration(to: until)
        return rest > Self.pause ? .zero : rest
    }

    /// Whether the provider has renewed a user's credentials since, by which it has accepted the client.
    func isRefuted(by record: CredentialRecord) -> Bool {
        record.held?.level == .user && record.renewed.map { $0 > last } ?? false
    }

    /// Whether these credentials cannot be renewed because of it.
    func concerns(_ record: CredentialRecord) -> Bool {
        record.held?.level == .user && record.held?.refreshToken != nil
    }

    /// As the failure of one user's renewals: one user's renewal meets the fault for all of them.
    /// - Parameter own: what that user's own renewals have failed with; nil where they have not.
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

    /// Whether it is the record of a tenant's client.
    static func isClientFault(_ id: RecordID) -> Bool { id == faultID(id.tenant) }

    /// What the store has of a tenant's client, with the version of the record; nil where it has none. Without a fault where
    /// the record does not tell one.
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
            // A build before this one writes no code.
            code: json["code"]?.string?.text ?? BrokerError.Code.illegalConfiguration.rawValue,
            errorCode: json["error_code"]?.string?.text, version: stored.version)
        return (fault, stored.version)
    }

    /// The change that has the record say so.
    /// - Parameter version: of the record as it stands; nil where there is none.
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

    /// The change that ends it.
    func changeRemovingClientFault(_ tenant: TenantName, version: Int64) -> VaultChange {
        .remove(Self.faultID(tenant), version: version)
    }
}
