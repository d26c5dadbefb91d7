import Containers
import ExternalText

/// The device authorizations that the provider has issued (RFC 8628), by the digests of their device codes.
///
/// Both tables hold at most 20,000 entries and remove their oldest entry first.
struct DeviceAuthorizations: Sendable {
    enum Decision: Sendable, Equatable {
        case pending
        case approved(ProviderUser)
        case denied
    }

    struct Entry: Sendable {
        let clientID: String
        let scope: [String]
        let userCode: String
        var expiresAt: Int64
        var interval: Duration
        /// The earliest time of the next poll; nil before the first poll.
        var nextPollAt: Int64?
        var decision = Decision.pending
    }

    /// The content of a device authorization response.
    struct Grant: Sendable {
        let deviceCode: String
        let userCode: String
        let lifetime: Duration
        let interval: Duration
    }

    private var entries = BoundedTable<String, Entry>(capacity: 20_000)
    /// The digests of device codes, by user code.
    private var userCodes = BoundedTable<String, String>(capacity: 20_000)

    /// Issues a device code and a user code.
    mutating func authorize(
        client: ProviderClient, scope: [String], configuration: ProviderConfiguration, now: Int64
    ) -> Grant {
        let deviceCode = Secrets.make("dc_")
        let letters = configuration.behaviour.deviceAnswer.letters
        var userCode = Secrets.makeUserCode(count: letters)
        while userCodes[userCode] != nil { userCode = Secrets.makeUserCode(count: letters) }
        let digest = Secrets.digest(deviceCode)
        entries[digest] = Entry(
            clientID: client.id, scope: scope, userCode: userCode,
            expiresAt: TokenIssuer.time(now, configuration.deviceCodeLifetime), interval: configuration.deviceInterval)
        userCodes[userCode] = digest
        return Grant(
            deviceCode: deviceCode, userCode: userCode, lifetime: configuration.deviceCodeLifetime,
            interval: configuration.deviceInterval)
    }

    /// The pending entry of a user code, in any spelling of the code; nil when there is none.
    func pending(userCode: WireText, now: Int64) -> Entry? {
        guard let digest = userCodes[Self.normalized(userCode: userCode)], let entry = entries[digest],
            entry.decision == .pending, now < entry.expiresAt
        else { return nil }
        return entry
    }

    /// Records the user's decision. Returns false when no pending entry has this code.
    mutating func decide(userCode: WireText, _ decision: Decision, now: Int64) -> Bool {
        guard let entry = pending(userCode: userCode, now: now), let digest = userCodes[entry.userCode] else {
            return false
        }
        entries[digest]?.decision = decision
        return true
    }

    /// Returns the user and the scopes of an approved entry, and removes the entry.
    /// - Throws: the errors of RFC 8628 §3.5, until the user has approved.
    mutating func poll(
        deviceCode: WireText, client: ProviderClient, slowsDownEagerPolls: Bool, now: Int64
    ) throws(OAuthError) -> (user: ProviderUser, scope: [String]) {
        let digest = Secrets.digest(deviceCode.text)
        guard var entry = entries[digest], entry.clientID == client.id else {
            throw OAuthError(.invalidGrant, "Invalid device code")
        }
        guard now < entry.expiresAt else { throw OAuthError(.expiredToken, "Device code has expired") }
        let isEager = entry.nextPollAt.map { now < $0 } ?? false
        // The longer interval applies to this poll and all later ones (RFC 8628 §3.5).
        if isEager, slowsDownEagerPolls { entry.interval += .seconds(5) }
        entry.nextPollAt = TokenIssuer.time(now, entry.interval)
        entries[digest] = entry
        if isEager, slowsDownEagerPolls { throw OAuthError(.slowDown, "Polled before the interval was over") }
        switch entry.decision {
        case .pending:
            throw OAuthError(.authorizationPending, "Device Authorization code is not authorized yet")
        case .denied:
            throw OAuthError(.accessDenied, "The user has denied the device")
        case .approved(let user):
            entries[digest] = nil
            userCodes[entry.userCode] = nil
            return (user, entry.scope)
        }
    }

    /// Makes the entries expire whose user `applies` accepts. The user of an entry is nil until the user has approved
    /// it.
    mutating func expire(now: Int64, where applies: (ProviderUser?) -> Bool) {
        entries.updateAll { entry in
            var user: ProviderUser?
            if case .approved(let approver) = entry.decision { user = approver }
            if applies(user) { entry.expiresAt = min(entry.expiresAt, now) }
        }
    }

    /// Empty for a text that cannot be a user code.
    private static func normalized(userCode: WireText) -> String {
        guard userCode.count <= 64, userCode.utf8.allSatisfy({ $0 < 0x80 }) else { return "" }
        return WireText(userCode.utf8.filter { $0 != UInt8(ascii: "-") && $0 != 0x20 }).text.uppercased()
    }
}
