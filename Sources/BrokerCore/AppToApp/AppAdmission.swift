internal import CredentialStore
internal import Cryptography
package import ExternalText
internal import HTTPCodec
package import OAuth
internal import Reactor
internal import Waiting

/// Lets other apps in, as the app at a provider that has the user's session (Authgear's design of app-to-app authentication,
/// "approve" and "reject").
///
/// A provider may rotate the refresh token at any use, so approving and refreshing of one storage key exclude each other by the
/// lease in the record's row, over all replicas. Safe to use from any task.
package struct AppAdmission: Sendable {
    /// The link that brings the other app its answer.
    package struct Answer: Sendable {
        package let redirectURI: String
        /// Why the other app was not let in; nil where it was.
        package let refusal: WireText?
    }

    /// For how long the record is kept from being refreshed. Longer than a challenge and a call take.
    private static let leaseSpan: Duration = .seconds(30)
    /// For how long a caller waits for a refresh that is under way.
    private static let patience: Duration = .seconds(20)

    private let renewer: CredentialsRenewer
    private let providers: ProviderAccess
    private let links: AppLinkCheck
    private var records: CredentialsRecords { renewer.records }
    private var time: any Time { renewer.time }

    init(renewer: CredentialsRenewer, providers: ProviderAccess, links: AppLinkCheck) {
        self.renewer = renewer
        self.providers = providers
        self.links = links
    }

    /// Reads a link of another app.
    /// - Throws: `illegal_argument` where it is no such request.
    package func request(_ uri: WireText) throws(BrokerError) -> AppToAppRequest {
        guard let request = AppToAppRequest(uri) else {
            throw BrokerError(
                .illegalArgument,
                "The uri is no request to let an app in: it needs client_id, redirect_uri and code_challenge, each once."
            )
        }
        return request
    }

    /// Asks the provider for a code for the other app.
    /// - Parameter app: which app must open the link of the answer; nil for no check.
    /// - Throws: `unauthenticated` where no user is logged in or no device key may be used; `illegal_argument` where the answer's link
    ///   does not belong to `app`; `retryable_error` and `network_error` where the provider does not answer now.
    package func approve(
        _ request: AppToAppRequest, by id: CredentialsID, of tenant: Tenant, checking app: AppLinkCheck.App?
    ) async throws(BrokerError) -> Answer {
        guard let rules = tenant.configuration.preset.appToApp else {
            throw BrokerError(.illegalConfiguration, "This provider has no app-to-app authentication.")
        }
        _ = try await key(id, tenant, rules)
        if let app { try await links.check(request.redirectURI, belongsTo: app) }
        let server = try await providers.servers.server(for: tenant)
        let admission = try await holding(id) { held throws(BrokerError) in
            guard let key = held.deviceKey, let refreshToken = held.refreshToken, held.level == .user else {
                throw Self.unauthenticated
            }
            let proof = try await providers.deviceKeys.proof(with: key, for: tenant.configuration, at: server)
            return try await providers.deviceKeys.admit(request, with: refreshToken, proof, at: server)
        }
        switch admission {
        case .code(let code):
            await tell(id, request, nil)
            return Answer(redirectURI: request.answer([.init("code", code.revealedText)]), refusal: nil)
        case .refused(let error, _):
            await tell(id, request, error)
            return Answer(redirectURI: request.answer([.init(WireText("error"), error)]), refusal: error)
        }
    }

    /// Tells the other app that it is not let in.
    package func reject(
        _ request: AppToAppRequest, by id: CredentialsID, of tenant: Tenant, error: WireText?, description: WireText?
    ) async throws(BrokerError) -> Answer {
        guard let rules = tenant.configuration.preset.appToApp else {
            throw BrokerError(.illegalConfiguration, "This provider has no app-to-app authentication.")
        }
        let error = error ?? WireText(rules.rejection)
        var pairs: [FormEncoding.Pair] = [.init(WireText("error"), error)]
        if let description { pairs.append(.init(WireText("error_description"), description)) }
        await tell(id, request, error)
        return Answer(redirectURI: request.answer(pairs), refusal: error)
    }

    // MARK: The device key

    private static let unauthenticated = BrokerError(
        .unauthenticated,
        "No user is logged in under this storage key, or the login has no device key. Log the user in again with app2app "
            + "enabled.")

    /// The device key of the login. Where the tenant allows it, a login without one gets a new one, which is stored before the
    /// provider sees it: the provider may bind it although its answer is lost.
    private func key(
        _ id: CredentialsID, _ tenant: Tenant, _ rules: ProviderPreset.AppToAppRules
    ) async throws(BrokerError) -> SecretBytes {
        let outcome: Result<SecretBytes, BrokerError>
        do throws(StoreError) {
            outcome = try await retryingConflicts { () async throws(StoreError) in
                let current = try await self.records.reread(id)
                guard var held = current.record.held, current.record.waiting == nil, held.level == .user,
                    held.refreshToken != nil
                else { return .failure(Self.unauthenticated) }
                if let key = held.deviceKey { return .success(key) }
                guard tenant.configuration.appToApp?.bindsInsecurely == true else {
                    return .failure(Self.unauthenticated)
                }
                do throws(BrokerError) {
                    held.deviceKey = try DeviceKeyEndpoint.newKey()
                } catch {
                    return .failure(error)
                }
                _ = try await self.records.write(current.record.settled(to: held), id, over: current) { _ in [] }
                return held.deviceKey.map { .success($0) } ?? .failure(Self.unauthenticated)
            }
        } catch {
            records.report(error, id)
            throw BrokerError(error)
        }
        return try outcome.get()
    }

    // MARK: The lease

    /// Calls `body` with the stored credentials while no replica refreshes them.
    private func holding<Value>(
        _ id: CredentialsID, _ body: (HeldCredentials) async throws(BrokerError) -> Value
    ) async throws(BrokerError) -> Value {
        let deadline = time.monotonic.advanced(by: Self.patience)
        while true {
            let ticket = records.changes.ticket(id)
            let snapshot: CredentialsSnapshot
            let holder = renewer.holders.begin(RefreshID())
            defer { renewer.holders.end(holder) }
            do throws(StoreError) {
                let (read, lease) = try await records.readWithLease(id)
                snapshot = read
                guard let held = snapshot.record.held, snapshot.version > 0 else { throw StoreError.damaged("") }
                _ = held
                if let lease, !lease.hasRunOut { throw StoreError.conflict }
                let claim = LeaseClaim(
                    holder: holder, replacing: lease?.holder, for: Self.leaseSpan, notAfter: records.claimDeadline)
                try await records.commit(
                    [.claim(CredentialsRecords.recordID(id), version: snapshot.version, claim)], events: [], of: id)
            } catch .conflict {
                let left = time.monotonic.duration(to: deadline)
                guard left > .zero else {
                    throw BrokerError(.retryableError, "The credentials are being refreshed. Try again.", retryAfter: 1)
                }
                await records.changes.wait(for: id, since: ticket) {
                    _ = try? await self.time.sleep(for: min(left, CredentialsRecords.changeInterval))
                }
                continue
            } catch .damaged {
                throw Self.unauthenticated
            } catch {
                records.report(error, id)
                throw BrokerError(error)
            }
            let result: Result<Value, BrokerError>
            do throws(BrokerError) {
                guard let held = snapshot.record.held else { throw Self.unauthenticated }
                result = .success(try await body(held))
            } catch {
                result = .failure(error)
            }
            await release(id, snapshot.version, holder)
            return try result.get()
        }
    }

    private func release(_ id: CredentialsID, _ version: Int64, _ holder: String) async {
        do throws(StoreError) {
            try await records.commit(
                [
                    .release(
                        CredentialsRecords.recordID(id), version: version, holder: holder, LeaseRelease(.settled))
                ], events: [], of: id)
            // Refreshes of this process that wait for the lease look again.
            records.changes.signal(id)
        } catch .conflict {
            // A login or a logout has replaced the record, and the lease has gone with it.
            return
        } catch {
            // The lease runs out by itself.
            records.report(error, id)
        }
    }

    private func tell(_ id: CredentialsID, _ request: AppToAppRequest, _ refusal: WireText?) async {
        let client = request.clientID.prefix(200).text
        let event = BrokerEvent.appToApp(id, client: client, error: refusal?.prefix(100).text, at: time.now)
        do throws(StoreError) {
            try await records.commit([], events: [event], of: id)
        } catch {
            renewer.log.storeFailed(error, LogField.credentials(id))
        }
    }
}
