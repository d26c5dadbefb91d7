import ExternalText
import JSON

/// Credentials of a user who has logged out and whose session at the provider is still to be ended: what a revocation is tried
/// again with.
package struct PendingRevocation: Sendable, Equatable {
    package let storageKey: StorageKey
    package let credentials: HeldCredentials
    package let loggedOut: Timestamp

    /// For how long a revocation is tried again.
    package static let span: Duration = .seconds(86_400)
    private static let firstPause: Duration = .seconds(5)
    private static let longestPause: Duration = .seconds(3600)

    package init(storageKey: StorageKey, credentials: HeldCredentials, loggedOut: Timestamp) {
        self.storageKey = storageKey
        self.credentials = credentials
        self.loggedOut = loggedOut
    }

    /// When to try again after the first try, which the logout itself makes, has failed.
    package func firstTry(after now: Timestamp) -> Timestamp { now.advanced(by: Self.firstPause) }

    /// When to try again after a later try that has failed; nil where no further try is made. The pauses begin with 5 seconds and
    /// double, since each is as long as all before it together, and 5 seconds longer. No pause is longer than an hour.
    package func nextTry(after now: Timestamp) -> Timestamp? {
        Self.nextTry(since: loggedOut, after: now, within: Self.span)
    }

    /// The same for tries that are counted from `start`.
    static func nextTry(since start: Timestamp, after now: Timestamp, within span: Duration) -> Timestamp? {
        let elapsed = max(.zero, start.duration(to: now))
        let next = now.advanced(by: min(elapsed + firstPause, longestPause))
        return start.duration(to: next) <= span ? next : nil
    }

    /// The sealed content of a record, as JSON.
    package var encoded: [UInt8] {
        JSONWriter.object { json in
            json.member("storage_key", storageKey.description)
            json.member("logged_out", loggedOut.milliseconds)
            json.name("credentials")
            credentials.encode(to: &json)
        }
    }

    /// Nil when `bytes` are not such a record.
    package init?(decoding bytes: [UInt8]) {
        guard let json = try? JSONValue(parsing: bytes),
            let storageKey = json["storage_key"]?.string.flatMap({ StorageKey($0) }),
            let loggedOut = json["logged_out"]?.integer,
            let credentials = json["credentials"].flatMap(HeldCredentials.init(json:))
        else { return nil }
        self.init(
            storageKey: storageKey, credentials: credentials, loggedOut: Timestamp(milliseconds: loggedOut))
    }
}
