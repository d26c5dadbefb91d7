import CredentialStore
package import OAuth

/// The access tokens that apps get.
extension AppGrants {
    /// The shortest life of an access token that is given while the provider answers.
    private static let shortestLife: Duration = .seconds(60)

    /// An access token for an app.
    struct Given: Sendable {
        let held: HeldCredentials
        /// Under which the credentials are stored.
        let version: Int64
        /// Whether the provider has given it for this request.
        let isRenewed: Bool
        /// Why the sessions of another login than that of these credentials end.
        let ending: BrokerEvent.SessionEnd
    }

    /// The access token for a refresh.
    ///
    /// Clients count a token as over up to five minutes before its end, and would come again with each of their calls. So one that
    /// lives shorter is renewed where the provider does that. A token whose whole life is not longer than that is not renewed before
    /// half of it is over.
    func refreshed(_ session: AppSession, _ client: AppClient) async throws(AppError) -> Given {
        let given = try await given(of: session, client, Self.shortestLife)
        guard !given.isRenewed, isShort(given.held), isWorthRenewing(given) else { return given }
        do throws(AppError) {
            let renewed = try await self.given(of: session, client, Self.longestMargin)
            return renewed.version == given.version ? given : renewed
        } catch {
            // The token at hand lives for a minute.
            guard error.code != .invalidGrant else { throw error }
            return given
        }
    }

    /// The longest time before a token's end from which clients do not use it any more.
    private static let longestMargin: Duration = .seconds(300)

    func isShort(_ held: HeldCredentials) -> Bool { held.expires < time.now.advanced(by: Self.longestMargin) }

    /// Whether another token would live longer than that: tokens live from when they are stored to their end.
    private func isWorthRenewing(_ given: Given) -> Bool {
        let stored = VersionSource.time(of: given.version)
        let life = stored.duration(to: given.held.expires)
        return life > Self.longestMargin || stored.duration(to: time.now) * 2 >= life
    }

    /// The access token for a session's user.
    /// - Throws: `invalid_grant` where the login of the session has ended.
    private func given(
        of session: AppSession, _ client: AppClient, _ minimum: Duration
    ) async throws(AppError) -> Given {
        let given: Given
        do throws(AppError) {
            given = try await self.given(session.credentialsID, of: client, as: session.owner, minimum)
        } catch {
            throw error.code == .invalidGrant && sessions.mayBeOutdated ? AppSessions.lostCommits : error
        }
        // The credentials that are served, and not those that the store has by now, so that no other login's token is given.
        guard session.owner.isOf(given.held) else {
            if sessions.mayBeOutdated { throw AppSessions.lostCommits }
            try await sessions.end(session, by: try await pendingEnding(of: session, given) ?? given.ending)
            throw .invalidRefreshToken
        }
        return given
    }

    /// Why the session is to be ended already, because of what came before the login that is there by now.
    private func pendingEnding(
        of session: AppSession, _ given: Given
    ) async throws(AppError) -> BrokerEvent.SessionEnd? {
        do throws(StoreError) {
            return try await vault.list(.sessionEnding, tenant: session.credentialsID.tenant, limit: 100)
                .compactMap { PendingSessionEnding($0) }
                .first { $0.ends(session.owner, of: session.clientID, whileLoggedInSince: given.held.loggedInSince) }?
                .cause
        } catch {
            throw AppError(BrokerError(error))
        }
    }

    /// The user's access token, which lives for a minute at least unless the provider is down. The caller compares what is returned
    /// with the owner.
    package func held(
        _ id: CredentialsID, of client: AppClient, as owner: AppOwner
    ) async throws(AppError) -> HeldCredentials {
        try await given(id, of: client, as: owner, Self.shortestLife).held
    }

    /// What this replica has in memory may be older than what the app has: so the store is asked before the app is told that its
    /// login has ended.
    private func given(
        _ id: CredentialsID, of client: AppClient, as owner: AppOwner, _ minimum: Duration
    ) async throws(AppError) -> Given {
        do throws(AppError) {
            let known = try await given(id, of: client, minimum)
            if owner.isOf(known.held) { return known }
        } catch {
            guard error.code == .invalidGrant else { throw error }
        }
        do throws(StoreError) {
            _ = try await sessions.records.reread(id)
        } catch {
            throw AppError(BrokerError(error))
        }
        return try await given(id, of: client, minimum)
    }

    /// Why the sessions of another login end than that which the record has.
    static func ending(_ record: CredentialRecord) -> BrokerEvent.SessionEnd {
        if let session = record.session { return BrokerEvent.SessionEnd(session.cause) }
        return record.held?.level == .user ? .replaced : .logout
    }

    private func given(
        _ id: CredentialsID, of client: AppClient, _ minimum: Duration
    ) async throws(AppError) -> Given {
        do throws(BrokerError) {
            guard let tenant = try await tenants.tenant(client.tenant) else { throw BrokerError.noSuchTenant }
            let query = CredentialsQuery(minimumLifetime: minimum, lowestLevel: .user)
            let answer = try await credentials.credentials(id, of: tenant, query, patience: nil)
            try await audit.tell(of: id, version: answer.snapshot.heldVersion, to: client)
            guard let held = answer.snapshot.record.held, held.level == .user else {
                throw BrokerError(.levelNotAvailable, "")
            }
            return Given(
                held: held, version: answer.snapshot.heldVersion,
                isRenewed: answer.outcome == .renewed || answer.outcome == .joined,
                ending: Self.ending(answer.snapshot.record))
        } catch {
            throw AppError(error)
        }
    }
}
