import CredentialStore
import OAuth

/// Keeps the stored refresh token where a login has brought none.
extension CredentialsRecords {
    /// Whether stored credentials may be of the same grant, so that a revocation of it would end their session. Also true where
    /// the store does not answer.
    func mayHold(grantOf granted: HeldCredentials, _ id: CredentialsID) async -> Bool {
        if granted.mayBeShared() { return true }
        do throws(StoreError) {
            let stored = try await reread(id).record
            return granted.mayBeShared(with: stored.granted, stored.waiting?.earlier)
        } catch {
            report(error, id)
            return true
        }
    }

    /// The providers whose refresh tokens may be sent to the one that granted these credentials.
    func acceptedProviders(by granted: HeldCredentials, _ id: CredentialsID) -> AcceptedProviders {
        let earlier = tenants.inMemory(id.tenant)?.configuration.acceptedProviders
        return AcceptedProviders(
            issuer: granted.grantedBy?.issuer, tokenEndpoint: granted.grantedBy?.tokenEndpoint,
            previousIssuers: earlier?.previousIssuers ?? [],
            previousTokenEndpoints: earlier?.previousTokenEndpoints ?? [])
    }

    /// Gives the credentials of a login the refresh token of those that they replace, where they are to keep it.
    /// - Parameters:
    ///   - record: has the credentials of the login, which may be served.
    ///   - earlier: nil for none.
    /// - Returns: why the stored refresh token is not kept; nil where it is, or where there is none to keep.
    func keepRefreshToken(
        in record: inout CredentialRecord, of earlier: HeldCredentials?, _ id: CredentialsID
    ) -> HeldCredentials.NotKept? {
        guard let login = record.granted else { return nil }
        switch login.keepingRefreshToken(of: earlier, at: acceptedProviders(by: login, id)) {
        case .none: return nil
        case .kept(let credentials):
            record.granted = credentials
            record.keepsRefreshToken = true
            return nil
        case .dropped(let reason): return reason
        }
    }

    /// Logs that a refresh token was dropped for credentials without one.
    func noteDropped(_ reason: HeldCredentials.NotKept, _ id: CredentialsID) {
        log.warning("refresh_token_not_kept", LogField.credentials(id) + [.reason(Self.words(for: reason))])
    }

    private static func words(for reason: HeldCredentials.NotKept) -> StaticString {
        switch reason {
        case .unknownUser: "the provider does not say that the user is the same"
        case .otherUser: "another user has logged in"
        case .otherClient: "another client_id had obtained it"
        case .otherProvider: "another provider had granted it"
        case .set: "a caller has set credentials without one"
        }
    }
}
