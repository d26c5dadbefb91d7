import CredentialStore
import Cryptography
package import ExternalText
package import OAuth
import Reactor
import Waiting

/// The broker as an app of a device that lets other apps in: it shows its session's device key to the provider, and passes the
/// provider's code on to the other app.
///
/// Safe to use from any task.
package final class AppToAppFlow: Sendable {
    /// What another app is answered.
    package struct Outcome: Sendable {
        package let redirectURI: String
        /// The error that the other app is told; nil where it was let in.
        package let error: String?
        package var isApproved: Bool { error == nil }
    }

    private let renewer: CredentialsRenewer
    private let links: AppLinkCheck
    private let flights: SingleFlight<RefreshID, Result<Outcome, BrokerError>>

    /// What an app is told whose request a caller rejects without a reason, or the provider refuses without a name.
    private static let rejected = "x_app2app_rejected"
    static let unknown = "unknown_error"

    init(renewer: CredentialsRenewer, links: AppLinkCheck) {
        self.renewer = renewer
        self.links = links
        flights = SingleFlight(on: renewer.providers.endpoint.executor)
    }

    /// Reads the link by which an app asks to be let in.
    /// - Throws: `illegal_argument` for a link that is no such request.
    package func request(_ link: WireText) throws(BrokerError) -> AppToAppRequest {
        guard let request = AppToAppRequest(link: link) else {
            throw BrokerError(
                .illegalArgument,
                "The uri is no app2app request: it needs client_id, code_challenge, and a redirect_uri that is an absolute "
                    + "URI without fragment, each of them once.")
        }
        return request
    }

    /// Has the session of a storage key let another app in. Goes on when the caller's task is cancelled.
    /// - Parameter app: the app that the request's redirect URI must belong to, which is checked first; nil for no check.
    /// - Throws: `unauthenticated` where no user is logged in or the session has no device key, `illegal_argument` for a link of
    ///   another app; `network_error`, `retryable_error`, `provider_untrusted`, `illegal_configuration`, `token_response_error`
    ///   and `storage_unavailable` where the provider has not decided.
    package func approve(
        _ request: AppToAppRequest, _ id: CredentialsID, of tenant: Tenant, for app: AppLinkCheck.App?
    ) async throws(BrokerError) -> Outcome {
        try await flights.runToEnd(
            RefreshID(), on: renewer.providers.endpoint.executor,
            interruption: "The request ended before the provider decided.",
            work: { () async throws(BrokerError) in try await self.ask(request, id, tenant, app) },
            reporting: { error in
                self.renewer.log.warning(
                    "app2app_not_decided", LogField.credentials(id) + LogField.reason(of: error))
            })
    }

    private func ask(
        _ request: AppToAppRequest, _ id: CredentialsID, _ tenant: Tenant, _ app: AppLinkCheck.App?
    ) async throws(BrokerError) -> Outcome {
        let (records, endpoint) = (renewer.records, renewer.providers.endpoint)
        // Without a session nothing else is asked for.
        let known = try await stored(id)
        let held = try Self.session(in: known)
        if held.deviceKey == nil { _ = try Self.recordWithKey(known, tenant) }
        guard let server = try await renewer.providers.servers.server(for: tenant, holding: held) else {
            throw BrokerError(
                .illegalConfiguration,
                "The credentials belong to another provider address than the one that is configured.")
        }
        if let app { try await links.check(request, belongsTo: app) }
        try await records.waitForOthersAfterRollback(id, known.version)
        let use = SessionUse(renewer, id, of: tenant)
        return try await use.run(at: server) { (snapshot) throws(BrokerError) in
            _ = try Self.session(in: snapshot)
            return try Self.recordWithKey(snapshot, tenant)
        } _: { held throws(BrokerError) in
            guard let credentials = held.snapshot.record.held, let key = credentials.deviceKey,
                let refreshToken = credentials.refreshToken
            else { throw Self.noSession }
            let proof = try await endpoint.proof(of: key, at: server, of: tenant.name, retries: 0)
            let answer = try await endpoint.code(
                for: request, of: refreshToken, proving: proof, at: server, of: tenant)
            return await self.end(use, held, request, answer, id)
        }
    }

    /// What the store has, since another replica may have logged the user in just now.
    private func stored(_ id: CredentialsID) async throws(BrokerError) -> CredentialsSnapshot {
        do throws(StoreError) {
            return try await renewer.records.reread(id)
        } catch {
            renewer.records.report(error, id)
            throw BrokerError(error)
        }
    }

    /// Stores what the answer means for the session, and tells of it.
    private func end(
        _ use: SessionUse, _ held: SessionUse.Held, _ request: AppToAppRequest,
        _ answer: TokenEndpoint.AppToAppAnswer, _ id: CredentialsID
    ) async -> Outcome {
        let now = renewer.time.now
        switch answer {
        case .code(let code):
            let event = BrokerEvent.appToApp(id, client: Self.shown(request), error: nil, at: now)
            var record = held.snapshot.record
            var isStored = false
            if let key = record.granted?.deviceKey, !key.isBound {
                record.granted?.deviceKey = key.bound
                // A candidate that stays one is tried again by the next call, and is the key that the provider has.
                isStored = await use.end(held, storing: record, telling: [event])
            }
            if !isStored { await use.end(held, telling: [event]) }
            renewer.log.info("app2app_approved", LogField.credentials(id))
            return Outcome(redirectURI: request.answer(code: code), error: nil)
        case .refused(let error, let description):
            let error = error ?? Self.unknown
            await use.end(
                held,
                telling: [.appToApp(id, client: Self.shown(request), error: error, at: now)])
            return Outcome(
                redirectURI: request.answer(error: WireText(error), description: description), error: error)
        }
    }

    /// Tells another app that it is not let in.
    /// - Parameters:
    ///   - error: nil for `x_app2app_rejected`.
    ///   - description: nil for none.
    /// - Returns: the link for the other app.
    package func reject(
        _ request: AppToAppRequest, _ id: CredentialsID, error: WireText?, description: WireText?
    ) async throws(BrokerError) -> String {
        let error = error ?? WireText(Self.rejected)
        let event = BrokerEvent.appToApp(
            id, client: Self.shown(request), error: error.text, at: renewer.time.now)
        do throws(StoreError) {
            try await renewer.records.commit([], events: [event], of: id)
        } catch .conflict {
            throw BrokerError.noSuchTenant
        } catch {
            throw BrokerError(error)
        }
        return request.answer(error: error, description: description)
    }

    /// The user's credentials, with a refresh token.
    private static func session(in snapshot: CredentialsSnapshot) throws(BrokerError) -> HeldCredentials {
        guard let held = snapshot.record.granted, held.level == .user, held.refreshToken != nil else {
            throw noSession
        }
        return held
    }

    /// The record with a new key for its session; nil where the session has a key that may be used.
    private static func recordWithKey(
        _ snapshot: CredentialsSnapshot, _ tenant: Tenant
    ) throws(BrokerError) -> CredentialRecord? {
        let key = snapshot.record.granted?.deviceKey
        if key?.isBound == true { return nil }
        guard tenant.configuration.appToApp?.bindsKeysLater == true, tenant.configuration.preset.appToApp != nil else {
            throw BrokerError(
                .unauthenticated,
                "The session has no device key. Have the user log in again while the tenant's app2app is enabled.")
        }
        if key != nil { return nil }
        var record = snapshot.record
        do throws(KeyError) {
            record.granted?.deviceKey = try DeviceKey.generate(isBound: false)
        } catch {
            throw BrokerError(.internalError, "The device key could not be made.")
        }
        return record
    }

    /// The other app as events name it, in 200 bytes at most.
    static func shown(_ request: AppToAppRequest) -> String { request.clientID.prefix(200).text }

    private static let noSession = BrokerError(
        .unauthenticated, "No user is logged in under this storage key with a refresh token.")

    /// Suspends until no request is being approved.
    func finish() async {
        await flights.finish()
    }

    /// Cancels the approvals in flight.
    /// - Returns: how many approvals were in flight.
    func cancelAll() -> Int {
        defer { flights.cancelAll() }
        return flights.count
    }
}
