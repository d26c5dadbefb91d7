package import CredentialStore
import Cryptography
import ExternalText
import JSON
package import OAuth

/// An event of a set of credentials or of a login, for listeners (TIDAL's Auth design, "bus").
///
/// The constructors take no token and no text from a provider other than its error code, so that no event can carry a
/// secret.
package struct BrokerEvent: Sendable, Equatable {
    package enum Kind: String, Sendable, CaseIterable {
        case credentialsUpdated = "credentials.updated"
        case credentialsDeauthorized = "credentials.deauthorized"
        case credentialsExpiring = "credentials.expiring"
        /// A refresh brought the token of another user than the one who logged in. The session is quarantined.
        case credentialsSubjectChanged = "credentials.subject_changed"
        /// Renewals fail for now; the session is kept.
        case credentialsDegraded = "credentials.degraded"
        /// The provider has refused the refresh in a wave; the session is held.
        case credentialsHeld = "credentials.held"
        /// Credentials that were held are renewed again.
        case credentialsRecovered = "credentials.recovered"
        /// The provider does not accept the tenant's client, or answers no calls: renewals of all users fail, and the sessions
        /// are kept.
        case providerDegraded = "provider.degraded"
        /// The provider answers calls again.
        case providerRecovered = "provider.recovered"
        /// The session of a user who has logged out could not be ended at the provider.
        case revocationFailed = "revocation.failed"
        case loginCompleted = "login.completed"
        case loginFailed = "login.failed"
        /// An app has begun a session of the broker.
        case sessionStarted = "session.started"
        case sessionEnded = "session.ended"
        /// An app let another app of the same device in.
        case appToAppApproved = "app2app.approved"
        /// Another app was not let in: by a caller's decision, or because the provider refused.
        case appToAppRejected = "app2app.rejected"
        case refreshStarted = "refresh.started"
        case refreshRefreshingAccessToken = "refresh.refreshing_access_token"
        case refreshRefreshedAccessToken = "refresh.refreshed_access_token"
        case refreshFetchingKeys = "refresh.fetching_jwks"
        case refreshFetchedKeys = "refresh.fetched_jwks"
        case refreshVerifyingAccessToken = "refresh.verifying_access_token"
        case refreshVerifyingRefreshToken = "refresh.verifying_refresh_token"
        case refreshSavingTokens = "refresh.saving_tokens"
        case refreshSucceeded = "refresh.succeeded"
        case refreshFailed = "refresh.failed"
        /// The listener may have missed events. Sent to this listener only; never in the log of events.
        case streamReset = "stream.reset"
    }

    /// The origin of new credentials.
    package enum Origin: String, Sendable, CaseIterable {
        case login
        case device
        case refresh
        case upgrade
        /// `PUT /credentials`, or an import.
        case set
        /// A restoration by an operator.
        case restored
        /// The client credentials grant.
        case client
        /// The store had lost the credentials, and a replica has stored them again.
        case recovery
    }

    /// Why a renewal begins.
    package enum Trigger: String, Sendable, CaseIterable {
        /// A caller needs a token that lives longer than the stored one.
        case request
        /// The token expires soon, and no caller waits for a new one yet.
        case ahead
        /// An API has refused the token.
        case apiError = "api_error"
        /// A caller demands a new token.
        case forced
    }

    /// What the events of one renewal by refresh token have in common.
    package struct Refresh: Sendable {
        package let id: CredentialsID
        package let refreshID: RefreshID
        package let grant: TokenRequest.Grant
        package let trigger: Trigger

        package init(id: CredentialsID, refreshID: RefreshID, grant: TokenRequest.Grant, trigger: Trigger) {
            self.id = id
            self.refreshID = refreshID
            self.grant = grant
            self.trigger = trigger
        }

        fileprivate func describe(_ json: inout JSONWriter) {
            json.member("grant", grant.rawValue)
            json.member("trigger", trigger.rawValue)
        }
    }

    /// Why credentials were removed.
    package typealias End = EndedSession.Cause

    /// Why an app's session has ended.
    package enum SessionEnd: String, Sendable, CaseIterable {
        /// The app, an operator or the provider ended it.
        case revoked
        /// A code or a refresh token was used again that only a thief of it would use again.
        case replay
        case expired
        /// The user has logged out.
        case logout
        /// Another login has come under the storage key, of a user who is not known to be the same.
        case replaced
        case clientRemoved = "client_removed"

        /// The end of an app's session because the user's login has ended.
        init(_ end: EndedSession.Cause) {
            self =
                switch end {
                case .logout: .logout
                case .revoked: .revoked
                case .expired: .expired
                }
        }
    }

    /// Why a session has ended although neither the user nor the provider may have wanted that.
    package enum EndReason: String, Sendable, CaseIterable {
        /// The provider may have refused a refresh token that an earlier call, whose answer was lost, had spent.
        case outcomeUnknown = "outcome_unknown"
        /// A refresh brought another user's token.
        case subjectChanged = "subject_changed"
    }

    /// Why no user's token can be renewed at a provider.
    package enum Degradation: String, Sendable, CaseIterable {
        /// The provider does not accept the tenant's client.
        case clientRefused = "client_refused"
        /// The provider answers no calls.
        case outage
        /// The provider refuses the refresh tokens of many users at once.
        case wave
    }

    package let kind: Kind
    /// One JSON object in one line.
    package let data: [UInt8]

    /// Concerns a tenant as a whole: a listener to some storage keys only does not get it.
    /// - Parameter retryAt: when the provider is asked again at the earliest.
    package static func providerDegraded(
        _ tenant: TenantName, _ error: BrokerError, by cause: Degradation, retryAt: Timestamp, at time: Timestamp
    ) -> BrokerEvent {
        BrokerEvent(
            kind: .providerDegraded,
            data: JSONWriter.object { json in
                json.member("tenant", tenant.description)
                json.member("cause", cause.rawValue)
                json.member("error", error.code.rawValue)
                json.memberIfPresent("error_code", error.errorCode)
                json.member("retry_at", retryAt.description)
                json.member("time", time.description)
            })
    }

    /// The end of an outage or of a wave. Concerns a tenant as a whole.
    /// - Parameter since: when it began; nil where that is not known.
    package static func providerRecovered(
        _ tenant: TenantName, from cause: Degradation = .outage, since: Timestamp?, at time: Timestamp
    ) -> BrokerEvent {
        BrokerEvent(
            kind: .providerRecovered,
            data: JSONWriter.object { json in
                json.member("tenant", tenant.description)
                json.member("cause", cause.rawValue)
                json.memberIfPresent("since", since?.description)
                json.member("time", time.description)
            })
    }

    private init(
        _ kind: Kind, _ id: CredentialsID, at time: Timestamp, _ refreshID: RefreshID? = nil,
        _ members: (inout JSONWriter) -> Void = { _ in }
    ) {
        self.kind = kind
        data = JSONWriter.object { json in
            json.member("tenant", id.tenant.description)
            json.member("storage_key", id.storageKey.description)
            members(&json)
            json.memberIfPresent("refresh_id", refreshID?.text)
            json.member("time", time.description)
        }
    }

    /// - Parameter version: the version of the stored record, which is the number in the entity tag of `GET /credentials`.
    package static func updated(
        _ id: CredentialsID, to held: HeldCredentials, version: Int64, by origin: Origin, _ refreshID: RefreshID?,
        at time: Timestamp
    ) -> BrokerEvent {
        BrokerEvent(.credentialsUpdated, id, at: time, refreshID) { json in
            describe(held, version, &json)
            json.member("cause", origin.rawValue)
        }
    }

    /// - Parameters:
    ///   - lost: the credentials that were stored until then.
    ///   - reason: nil where the cause is enough.
    package static func deauthorized(
        _ id: CredentialsID, from lost: HeldCredentials, version: Int64, by end: End, because reason: EndReason? = nil,
        _ refreshID: RefreshID?, at time: Timestamp
    ) -> BrokerEvent {
        BrokerEvent(.credentialsDeauthorized, id, at: time, refreshID) { json in
            describe(lost, version, &json)
            json.member("cause", end.rawValue)
            json.memberIfPresent("reason", reason?.rawValue)
        }
    }

    /// A refresh brought another user's token, which no listener gets: the session is quarantined.
    /// - Parameter lost: the credentials that were stored until then.
    package static func subjectChanged(
        _ id: CredentialsID, from lost: HeldCredentials, version: Int64, _ refreshID: RefreshID?, at time: Timestamp
    ) -> [BrokerEvent] {
        [
            BrokerEvent(.credentialsSubjectChanged, id, at: time, refreshID) { json in
                describe(lost, version, &json)
            },
            .deauthorized(
                id, from: lost, version: version, by: .revoked, because: .subjectChanged, refreshID,
                at: time),
        ]
    }

    package static func expiring(
        _ id: CredentialsID, _ held: HeldCredentials, version: Int64, at time: Timestamp
    ) -> BrokerEvent {
        BrokerEvent(.credentialsExpiring, id, at: time) { json in
            describe(held, version, &json)
            json.member("refreshable", held.refreshToken != nil)
        }
    }

    /// - Parameter retryAt: when a renewal is tried again at the earliest.
    package static func degraded(
        _ id: CredentialsID, _ error: BrokerError, retryAt: Timestamp, _ refreshID: RefreshID, at time: Timestamp
    ) -> BrokerEvent {
        BrokerEvent(.credentialsDegraded, id, at: time, refreshID) { json in
            json.member("error", error.code.rawValue)
            json.memberIfPresent("error_code", error.errorCode)
            json.member("retry_at", retryAt.description)
        }
    }

    /// The provider has refused the refresh in a wave, and the session is held.
    /// - Parameters:
    ///   - errorCode: the provider's; nil where it has sent none.
    ///   - refreshID: nil where the session had ended before the wave was noticed, and is put back.
    package static func held(
        _ id: CredentialsID, errorCode: String?, _ refreshID: RefreshID?, at time: Timestamp
    ) -> BrokerEvent {
        BrokerEvent(.credentialsHeld, id, at: time, refreshID) { json in
            json.member("error", BrokerError.Code.illegalConfiguration.rawValue)
            json.memberIfPresent("error_code", errorCode)
        }
    }

    /// Credentials are not held any more.
    package static func recovered(_ id: CredentialsID, at time: Timestamp) -> BrokerEvent {
        BrokerEvent(.credentialsRecovered, id, at: time)
    }

    /// - Parameters:
    ///   - error: what the last try has failed with.
    ///   - status: of the provider's answer to the last try; nil where it has given none.
    ///   - loggedOut: when the user logged out.
    package static func revocationFailed(
        _ id: CredentialsID, _ error: BrokerError.Code, errorCode: String?, status: Int?, since loggedOut: Timestamp,
        at time: Timestamp
    ) -> BrokerEvent {
        BrokerEvent(.revocationFailed, id, at: time) { json in
            json.member("logged_out", loggedOut.description)
            json.member("error", error.rawValue)
            json.memberIfPresent("error_code", errorCode)
            if let status { json.member("status", Int64(status)) }
        }
    }

    /// - Parameter loginID: nil for a device login, whose handle is a secret.
    package static func loginCompleted(
        _ id: CredentialsID, _ kind: LoginKind, loginID: String?, at time: Timestamp
    ) -> BrokerEvent {
        BrokerEvent(.loginCompleted, id, at: time) { json in
            json.member("flow", kind.rawValue)
            json.memberIfPresent("login_id", loginID)
        }
    }

    /// The event of a login that is completed or, with a refusal, has failed.
    static func loginEnded(
        _ id: CredentialsID, _ kind: LoginKind, loginID: String?, refusal: BrokerError?, at time: Timestamp
    ) -> BrokerEvent {
        refusal.map { .loginFailed(id, kind, loginID: loginID, $0, at: time) }
            ?? .loginCompleted(id, kind, loginID: loginID, at: time)
    }

    /// - Parameter error: nil for a login that has expired.
    package static func loginFailed(
        _ id: CredentialsID, _ kind: LoginKind, loginID: String?, _ error: BrokerError?, at time: Timestamp
    ) -> BrokerEvent {
        BrokerEvent(.loginFailed, id, at: time) { json in
            json.member("flow", kind.rawValue)
            json.memberIfPresent("login_id", loginID)
            json.member("error", error?.code.rawValue ?? "expired")
            json.memberIfPresent("error_code", error?.errorCode)
        }
    }

    package static func sessionStarted(
        _ id: CredentialsID, session: String, client: String, at time: Timestamp
    ) -> BrokerEvent {
        BrokerEvent(.sessionStarted, id, at: time) { json in
            json.member("session_id", session)
            json.member("client_id", client)
        }
    }

    package static func sessionEnded(
        _ id: CredentialsID, session: String, client: String, by end: SessionEnd, at time: Timestamp
    ) -> BrokerEvent {
        BrokerEvent(.sessionEnded, id, at: time) { json in
            json.member("session_id", session)
            json.member("client_id", client)
            json.member("cause", end.rawValue)
        }
    }

    /// An app has let another app in, or did not.
    /// - Parameters:
    ///   - client: the client identifier of the app that asked.
    ///   - error: why the other app was not let in; nil where it was.
    package static func appToApp(
        _ id: CredentialsID, client: String, error: String?, at time: Timestamp
    ) -> BrokerEvent {
        BrokerEvent(error == nil ? .appToAppApproved : .appToAppRejected, id, at: time) { json in
            json.member("client_id", client)
            json.memberIfPresent("error", error)
        }
    }

    /// Steps of a renewal by refresh token, in the order of `Kind`, with the same time and the same data.
    package static func steps(_ kinds: [Kind], of refresh: Refresh, at time: Timestamp) -> [BrokerEvent] {
        guard let first = kinds.first else { return [] }
        let event = BrokerEvent(first, refresh.id, at: time, refresh.refreshID) { refresh.describe(&$0) }
        return kinds.map { BrokerEvent(kind: $0, data: event.data) }
    }

    /// The last events of a renewal by refresh token that has stored its credentials: the steps `kinds`,
    /// `refresh.saving_tokens`, and last `refresh.succeeded`, right after `updated`.
    /// - Parameter updated: the event of the stored credentials.
    static func steps(
        _ kinds: [Kind], storing updated: BrokerEvent, of refresh: Refresh, at time: Timestamp
    ) -> [BrokerEvent] {
        var events = steps(kinds + [.refreshSavingTokens, .refreshSucceeded], of: refresh, at: time)
        events.insert(updated, at: events.endIndex - 1)
        return events
    }

    package static func refreshFailed(_ refresh: Refresh, _ error: BrokerError, at time: Timestamp) -> BrokerEvent {
        BrokerEvent(.refreshFailed, refresh.id, at: time, refresh.refreshID) { json in
            refresh.describe(&json)
            json.member("error", error.code.rawValue)
            json.memberIfPresent("error_code", error.errorCode)
        }
    }

    /// - Parameter tenant: the listener's tenant; nil for a listener to all tenants.
    package static func reset(_ tenant: TenantName?, at time: Timestamp) -> BrokerEvent {
        BrokerEvent(
            kind: .streamReset,
            data: JSONWriter.object { json in
                json.memberIfPresent("tenant", tenant?.description)
                json.member("time", time.description)
            })
    }

    private static func describe(_ held: HeldCredentials, _ version: Int64, _ json: inout JSONWriter) {
        json.member("level", held.level.rawValue)
        json.memberOrNull("user_id", held.userID?.text)
        json.memberOrNull("expires", held.expiry?.description)
        json.member("version", version)
    }
}

// MARK: - In the log

extension BrokerEvent {
    /// The log entry with `events`, all of one commit. Each event is a line: its name, a space, its data.
    package static func entry(_ events: [BrokerEvent], of id: CredentialsID, at time: Timestamp) -> VaultChange {
        entry(events, of: id.tenant, key: id.storageKey.description, at: time)
    }

    /// - Parameter key: the storage key's text; empty for events that concern the tenant as a whole.
    static func entry(
        _ events: [BrokerEvent], of tenant: TenantName, key: String, at time: Timestamp
    ) -> VaultChange {
        var text: [UInt8] = []
        for event in events {
            text += event.kind.rawValue.utf8
            text.append(UInt8(ascii: " "))
            text += event.data
            text.append(UInt8(ascii: "\n"))
        }
        return .append(
            OpenLogEntry(
                tenant: tenant, key: key, version: time.milliseconds, time: time,
                content: SecretBytes(text)))
    }

    /// The events of an entry's content, in order. Nil for a line that this build cannot read, so that the others keep their
    /// index.
    package static func events(in content: [UInt8]) -> [BrokerEvent?] {
        content.split(separator: UInt8(ascii: "\n")).map { line in
            guard let space = line.firstIndex(of: UInt8(ascii: " ")) else { return nil }
            let name = line[..<space]
            guard let kind = WireText(validating: name.span).flatMap(Kind.init), kind != .streamReset else {
                return nil
            }
            return BrokerEvent(kind: kind, data: Array(line[(space + 1)...]))
        }
    }

    private init(kind: Kind, data: [UInt8]) {
        self.kind = kind
        self.data = data
    }
}
