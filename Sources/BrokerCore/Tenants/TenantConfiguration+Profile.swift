package import ExternalText
import HTTPSClient
package import JSON
import OAuth

/// The operator's profile that a tenant uses, and that its record bears; see `OperatorProfiles`.
extension TenantConfiguration {
    /// The operator's profile that a record bears; nil where it uses a shipped one.
    static func storedProfile(_ reader: inout ObjectReader) -> ProviderPreset? {
        guard let document = reader.passOver(profileMember) else { return nil }
        let profile = ProviderPreset.stored(document)
        if profile == nil { reader.note(profileMember, "cannot be read by this version") }
        return profile
    }

    /// The member of a record that has the document of an operator's profile.
    static let profileMember: WireText = "profile"

    /// The members of the record, without an operator's profile that it bears.
    package var storedMembers: [WireText: JSONValue] {
        var members = (try? JSONValue(parsing: encoded))?.object ?? [:]
        members[Self.profileMember] = nil
        return members
    }

    /// The same configuration with another profile of the same name.
    /// - Throws: `invalid_request` where the profile does not fit, so that the tenant could not be used with it.
    func with(_ profile: ProviderPreset) throws(BrokerError) -> TenantConfiguration {
        let changed = try TenantConfiguration(
            .object(storedMembers), rules: .everything, isStored: true, profile: profile)
        var faults = FaultList()
        for missing in changed.missingParameters {
            faults.add(.init("/parameters/\(missing)", "is required with this profile"))
        }
        try faults.check(in: "The tenant") { $0.pointer }
        return changed
    }
}
