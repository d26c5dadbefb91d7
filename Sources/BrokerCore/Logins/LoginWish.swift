import CredentialStore
import Cryptography
import ExternalText
import JSON
package import OAuth

/// What a caller asks a login for, in place of what the tenant's configuration says. An object, since few logins have any.
package final class LoginWish: Sendable {
    /// Some of the tenant's scopes, in the caller's order; nil for all of them.
    private let scopes: [WireText]?
    /// Whether the scopes come beside those that the stored session was granted.
    let isUpgrade: Bool
    private let resources: [WireText]
    let audience: WireText?

    /// Reads the members `scopes`, `upgrade`, `resource` and `audience`. Nil where the caller names none.
    package init?(_ reader: inout ObjectReader) {
        scopes = reader.strings(
            "scopes", allowsEmpty: false, atMost: ScopeSet.most, check: TenantConfiguration.scopeFault)
        isUpgrade = reader.bool("upgrade") ?? false
        resources = AskedGrant.resources(&reader)
        audience = AskedGrant.audience(&reader)
        if scopes == nil, !isUpgrade, resources.isEmpty, audience == nil { return nil }
    }

    /// What the login's requests ask for.
    /// - Parameters:
    ///   - server: the provider, as the tenant's configuration has it.
    ///   - held: the stored credentials of an upgrade; nil where there are none.
    /// - Throws: `illegal_argument`, with the place, for a scope that is not one of the tenant's, and for an upgrade without scopes.
    func asked(
        of configuration: TenantConfiguration, at server: AuthorizationServer, beside held: HeldCredentials?
    ) throws(BrokerError) -> AskedGrant? {
        if isUpgrade, scopes == nil {
            let rule = "needs scopes: those that are asked for beside the ones that the session has"
            throw BrokerError(.illegalArgument, "/upgrade \(rule).", faults: [.init("/upgrade", rule)])
        }
        let tenants = Set(configuration.client.scopes.values.map { WireText($0) })
        // Where the resource names the scopes, it may name others in its answer to a call.
        let faults = (scopes ?? []).enumerated()
            .filter { configuration.hasOwnScopes && !tenants.contains($0.element) }
            .map {
                BrokerError.Fault("/scopes/\($0.offset)", "is not one of the tenant's scopes")
            }
        if let first = faults.first {
            throw BrokerError(
                .illegalArgument,
                faults.count == 1
                    ? "\(first.pointer) \(first.detail)."
                    : "\(faults.count) scopes are not among the tenant's; see errors.",
                faults: faults)
        }
        let earlier = isUpgrade ? held : nil
        let kept = Self.scopes(of: earlier, among: configuration.hasOwnScopes ? tenants : nil)
        return AskedGrant(
            scopes: scopes.flatMap { ScopeSet($0.map(\.text) + kept) },
            resources: resources.isEmpty ? (earlier?.asked ?? server.asked)?.resources ?? [] : resources,
            audience: audience ?? (earlier?.asked ?? server.asked)?.audience)
    }

    /// The scopes of a user's session that the tenant still has.
    /// - Parameter tenants: nil for any.
    private static func scopes(of held: HeldCredentials?, among tenants: Set<WireText>?) -> [String] {
        guard let held, held.level == .user else { return [] }
        let granted = held.grantedScopes.values
        guard let tenants else { return granted }
        // A provider that has told other names than it was asked for, as Google does, is asked by the names of then.
        let isRenamed = !granted.allSatisfy { tenants.contains(WireText($0)) }
        let asked = isRenamed ? (held.asked?.scopes ?? held.obtainedWith.scopes).values : []
        return (granted + asked).filter { tenants.contains(WireText($0)) }
    }
}

extension Vault {
    /// What is stored under a storage key; nil for nothing.
    func credentials(_ id: CredentialsID) async throws(BrokerError) -> HeldCredentials? {
        do throws(StoreError) {
            return try await read(CredentialsRecords.recordID(id))
                .flatMap { CredentialRecord(decoding: $0.content.revealedBytes) }?.held
        } catch {
            throw BrokerError(error)
        }
    }
}
