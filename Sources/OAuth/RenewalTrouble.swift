internal import ExternalText
internal import JSON

/// What renewals of one set of credentials have failed with: the content of a record of its own, so that the credentials'
/// version does not change with it. Of another version of the credentials it says nothing.
package struct RenewalTrouble: Sendable, Equatable {
    /// The failures so far.
    package struct Failure: Sendable, Equatable {
        package var first: Timestamp
        package var last: Timestamp
        /// The last one's, as callers are told (`BrokerError.Code`).
        package var code: String
        /// What the provider called the last one; nil where it gave no name.
        package var errorCode: String?
        /// The refusals of the refresh token without a cause, each time that the provider answered; nil where its last
        /// answer was another.
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

    /// Refusals that name no cause.
    package struct Unexplained: Sendable, Equatable {
        package var first: Timestamp
        package var last: Timestamp
        /// The last one's HTTP status.
        package var status: Int

        package init(first: Timestamp, last: Timestamp, status: Int) {
            self.first = first
            self.last = last
            self.status = status
        }
    }

    /// For how long a provider must refuse a refresh token without a cause before the session counts as degraded.
    package static let unexplainedLimit: Duration = .seconds(3600)

    /// Of the credentials.
    package var version: Int64
    package var failure: Failure?
    /// Whether listeners were told that the token is about to expire.
    package var isExpiryTold: Bool

    package init(version: Int64, failure: Failure? = nil, isExpiryTold: Bool = false) {
        self.version = version
        self.failure = failure
        self.isExpiryTold = isExpiryTold
    }

    /// What goes on from a record as it stands, which says nothing of another version.
    package init(version: Int64, after standing: RenewalTrouble?) {
        self = standing.flatMap { $0.version == version ? $0 : nil } ?? RenewalTrouble(version: version)
    }

    /// Whether the provider has refused the refresh token for an hour in a way that names no cause.
    package var isDegraded: Bool {
        guard let unexplained = failure?.unexplained else { return false }
        return unexplained.first.duration(to: unexplained.last) >= Self.unexplainedLimit
    }
}

/// The sealed content of the record, as JSON.
extension RenewalTrouble {
    package var encoded: [UInt8] {
        JSONWriter.object { json in
            json.member("version", version)
            json.member("expiry_told", isExpiryTold)
            guard let failure else { return }
            json.member("first", failure.first.milliseconds)
            json.member("last", failure.last.milliseconds)
            json.member("code", failure.code)
            json.memberIfPresent("error_code", failure.errorCode)
            guard let unexplained = failure.unexplained else { return }
            json.member("unexplained_since", unexplained.first.milliseconds)
            json.member("unexplained_last", unexplained.last.milliseconds)
            json.member("status", Int64(unexplained.status))
        }
    }

    /// Nil when `bytes` are no such record.
    package init?(decoding bytes: [UInt8]) {
        guard let json = try? JSONValue(parsing: bytes), let version = json["version"]?.integer else { return nil }
        self.init(version: version, isExpiryTold: json["expiry_told"]?.bool ?? false)
        guard let first = json["first"]?.integer, let last = json["last"]?.integer, let code = json["code"]?.string
        else { return }
        failure = Failure(
            first: Timestamp(milliseconds: first), last: Timestamp(milliseconds: last), code: code.text,
            errorCode: json["error_code"]?.string?.text)
        guard let since = json["unexplained_since"]?.integer, let status = json["status"]?.integer else { return }
        failure?.unexplained = Unexplained(
            first: Timestamp(milliseconds: since),
            last: Timestamp(milliseconds: json["unexplained_last"]?.integer ?? last),
            status: Int(truncatingIfNeeded: status))
    }
}

/// How a user's session under a storage key stands.
package enum CredentialsState: String, Sendable, CaseIterable {
    /// A user's credentials are stored, and nothing is known against them.
    case active
    /// The provider has refused to renew them for an hour without naming a cause.
    case degraded
    /// The session is over.
    case ended
    /// It is over, and its credentials are kept aside: they can be restored.
    case quarantined
}

extension CredentialRecord {
    /// How the user's session stands, as far as the record and what its renewals have failed with tell; nil where no
    /// user is logged in and no session was lost.
    /// - Parameters:
    ///   - version: the record's.
    ///   - isAside: whether credentials are kept aside under the same storage key.
    package func state(version: Int64, trouble: RenewalTrouble?, isAside: Bool = false) -> CredentialsState? {
        if held?.level == .user {
            return trouble?.version == version && trouble?.isDegraded == true ? .degraded : .active
        }
        if session == nil, ended == nil, !isAside { return nil }
        return isAside ? .quarantined : .ended
    }
}
