import ExternalText
import JSON

/// The failures of the renewals of one set of credentials. They have a record of their own, so that a failure does not
/// change the version of the credentials. The record applies to one version of the credentials only.
package struct RenewalTrouble: Sendable, Equatable {
    /// The failures so far.
    package struct Failure: Sendable, Equatable {
        package var first: Timestamp
        package var last: Timestamp
        /// The error code of the last failure, as callers get it (`BrokerError.Code`).
        package var code: String
        /// The provider's error code of the last failure; nil when it sent none.
        package var errorCode: String?
        /// The consecutive refusals of the refresh token without a cause; nil when the provider's last response was
        /// another one.
        package var unexplained: Unexplained?

        package init(
            first: Timestamp, last: Timestamp, code: String, errorCode: String?, unexplained: Unexplained? = nil
        ) {
            self.first = first
            self.last = last
            self.code = code
            self.errorCode = errorCode
            self.unexplained = unexplained
        }
    }

    /// Consecutive refusals without a cause.
    package struct Unexplained: Sendable, Equatable {
        package var first: Timestamp
        package var last: Timestamp
        /// The HTTP status of the last refusal.
        package var status: Int

        package init(first: Timestamp, last: Timestamp, status: Int) {
            self.first = first
            self.last = last
            self.status = status
        }
    }

    /// A session counts as degraded when the provider has refused its refresh token without a cause for this long.
    package static let unexplainedLimit: Duration = .seconds(3600)

    /// The version of the credentials.
    package var version: Int64
    package var failure: Failure?
    /// The version of the tenant whose client the last renewal was to carry the credentials over to, in vain; nil when the
    /// last renewal was another one.
    package var failedUpgrade: Int64?
    /// Whether the event that the token is about to expire has been published.
    package var isExpiryAnnounced: Bool

    package init(
        version: Int64, failure: Failure? = nil, failedUpgrade: Int64? = nil, isExpiryAnnounced: Bool = false
    ) {
        self.version = version
        self.failure = failure
        self.failedUpgrade = failedUpgrade
        self.isExpiryAnnounced = isExpiryAnnounced
    }

    /// Continues from a stored record; a record of another version is ignored.
    package init(version: Int64, after earlier: RenewalTrouble?) {
        self = earlier.flatMap { $0.version == version ? $0 : nil } ?? RenewalTrouble(version: version)
    }

    /// Whether the provider has refused the refresh token without a cause for at least `unexplainedLimit`.
    package var isRefusedWithoutCause: Bool {
        guard let unexplained = failure?.unexplained else { return false }
        return unexplained.first.duration(to: unexplained.last) >= Self.unexplainedLimit
    }
}

/// The sealed content of the record, as JSON.
extension RenewalTrouble {
    package var encoded: [UInt8] {
        JSONWriter.object { json in
            json.member("version", version)
            json.member("expiry_told", isExpiryAnnounced)
            guard let failure else { return }
            json.member("first", failure.first.milliseconds)
            json.member("last", failure.last.milliseconds)
            json.member("code", failure.code)
            json.memberIfPresent("error_code", failure.errorCode)
            if let failedUpgrade { json.member("failed_upgrade", failedUpgrade) }
            guard let unexplained = failure.unexplained else { return }
            json.member("unexplained_since", unexplained.first.milliseconds)
            json.member("unexplained_last", unexplained.last.milliseconds)
            json.member("status", Int64(unexplained.status))
        }
    }

    /// Nil when `bytes` are not such a record.
    package init?(decoding bytes: [UInt8]) {
        guard let json = try? JSONValue(parsing: bytes), let version = json["version"]?.integer else { return nil }
        self.init(version: version, isExpiryAnnounced: json["expiry_told"]?.bool ?? false)
        guard let first = json["first"]?.integer, let last = json["last"]?.integer, let code = json["code"]?.string
        else { return }
        failure = Failure(
            first: Timestamp(milliseconds: first), last: Timestamp(milliseconds: last), code: code.text,
            errorCode: json["error_code"]?.string?.text)
        failedUpgrade = json["failed_upgrade"]?.integer
        guard let since = json["unexplained_since"]?.integer, let status = json["status"]?.integer else { return }
        failure?.unexplained = Unexplained(
            first: Timestamp(milliseconds: since),
            last: Timestamp(milliseconds: json["unexplained_last"]?.integer ?? last),
            status: Int(truncatingIfNeeded: status))
    }
}

/// The state of a user's session under a storage key.
package enum CredentialsState: String, Sendable, CaseIterable {
    /// A user's credentials are stored, and no problem is known.
    case active
    /// They cannot be renewed until an operator changes something: the provider has refused them for an hour without naming a
    /// cause, or does not accept the tenant's client, or does not carry them over to that client.
    case degraded
    /// The provider has refused to renew them together with those of many other users. They are kept, and tried again in turn.
    case held
    /// The session has ended.
    case ended
    /// The session has ended, and its credentials are quarantined, so an operator can restore them.
    case quarantined
}

extension CredentialRecord {
    /// The state of the user's session according to the record and its renewal failures. Nil when no user is logged in
    /// and no session was lost.
    /// - Parameters:
    ///   - version: the version of the record.
    ///   - configuration: the version of the tenant.
    ///   - isQuarantined: whether quarantined credentials are stored under the same storage key.
    package func state(
        after trouble: RenewalTrouble? = nil, of version: Int64 = 0, configuration: Int64 = 0,
        isQuarantined: Bool = false
    ) -> CredentialsState? {
        if held?.level == .user, !isOver {
            guard let trouble, trouble.version == version else { return .active }
            return trouble.isRefusedWithoutCause || trouble.failedUpgrade == configuration ? .degraded : .active
        }
        if session == nil, ended == nil, !isQuarantined { return nil }
        return isQuarantined ? .quarantined : .ended
    }
}
