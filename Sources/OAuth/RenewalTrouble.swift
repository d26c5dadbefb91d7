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
        /// Since when the provider has refused the refresh token without naming a cause, each time that it was asked; nil
        /// where its last answer was another.
        package var unexplainedSince: Timestamp?
        /// The HTTP status of that refusal.
        package var status: Int?

        package init(
            first: Timestamp, last: Timestamp, code: String, errorCode: String?, unexplainedSince: Timestamp? = nil,
            status: Int? = nil
        ) {
            self.first = first
            self.last = last
            self.code = code
            self.errorCode = errorCode
            self.unexplainedSince = unexplainedSince
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

    /// Whether the provider has refused the refresh token for an hour in a way that names no cause.
    package var isDegraded: Bool {
        guard let failure, let since = failure.unexplainedSince else { return false }
        return since.duration(to: failure.last) >= Self.unexplainedLimit
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
            json.memberIfPresent("unexplained_since", failure.unexplainedSince?.milliseconds)
            json.memberIfPresent("status", failure.status.map(Int64.init))
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
            errorCode: json["error_code"]?.string?.text,
            unexplainedSince: json["unexplained_since"]?.integer.map { Timestamp(milliseconds: $0) },
            status: json["status"]?.integer.map { Int(truncatingIfNeeded: $0) })
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
