import CredentialStore
import Cryptography
import ExternalText
import JSON
import OAuth
import Reactor

/// An outage of a provider of which listeners were told. While its record exists, no replica tells of it again; the replica
/// that removes the record tells of its end.
struct ProviderOutage: Sendable, Equatable {
    /// When the provider's circuit opened, at the first replica.
    let since: Timestamp
    /// After this time the record counts as one that dead replicas have left: the next outage is a new one.
    var until: Timestamp

    /// For how long a record counts. Replicas whose circuit is open write it anew meanwhile.
    static let life: Duration = .seconds(3600)
    /// A record that lasts longer than this still is not written anew.
    static let rest: Duration = .seconds(2700)
}

extension CredentialsRecords {
    static func outageID(_ circuit: ProviderClient.Name) -> RecordID {
        RecordID(.outage, circuit.tenant, key: circuit.digest)
    }

    /// The outage, with the version of its record; nil where there is none. The outage is nil where this build cannot read it.
    func outage(
        _ circuit: ProviderClient.Name
    ) async throws(StoreError) -> (outage: ProviderOutage?, version: Int64)? {
        guard let stored = try await note(Self.outageID(circuit)) else { return nil }
        guard let json = stored.content.flatMap({ try? JSONValue(parsing: $0.revealedBytes) }),
            let since = json["since"]?.integer, let until = json["until"]?.integer
        else { return (nil, stored.version) }
        let outage = ProviderOutage(since: Timestamp(milliseconds: since), until: Timestamp(milliseconds: until))
        return (outage, stored.version)
    }

    /// The circuits of which replicas that have ended may have left outages.
    func outages(limit: Int) async throws(StoreError) -> [ProviderClient.Name] {
        try await vault.marked(.outage, limit: limit).map {
            ProviderClient.Name(tenant: $0.id.tenant, digest: $0.id.key)
        }
    }

    /// The change that writes the record.
    /// - Parameter version: the version that is replaced; nil where there is none.
    func change(of outage: ProviderOutage, _ circuit: ProviderClient.Name, over version: Int64?) -> VaultChange {
        let bytes = JSONWriter.object { json in
            json.member("since", outage.since.milliseconds)
            json.member("until", outage.until.milliseconds)
        }
        let record = OpenRecord(
            id: Self.outageID(circuit), version: nextVersion(after: version ?? 0), content: SecretBytes(bytes),
            expires: outage.until, due: outage.until)
        return version.map { .replace(record, version: $0) } ?? .insert(record)
    }

    /// The change that removes the record.
    func changeRemovingOutage(_ circuit: ProviderClient.Name, version: Int64) -> VaultChange {
        .remove(Self.outageID(circuit), version: version)
    }
}
