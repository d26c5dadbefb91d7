package import CredentialStore
import Cryptography
import ExternalText
import JSON
package import OAuth

/// Sessions of apps that are to be ended, because the end of a login, another login or the removal of a client has ended what they
/// rest on. The commit of that change writes it, so that a process that dies right after it leaves no session behind.
package struct PendingSessionEnding: Sendable, Equatable {
    enum Sessions: Sendable, Equatable {
        case of(StorageKey)
        case ofClient(String)
    }

    let sessions: Sessions
    /// `HeldCredentials.loggedInSince` of the login that has ended; nil for every login, and in records of earlier builds. Its
    /// sessions end whenever they began: the clock of the replica that began one may be ahead.
    let login: Timestamp?
    let cause: BrokerEvent.SessionEnd
    /// Sessions of other logins, and of unknown ones, go on where they began later.
    let before: Timestamp

    /// The change that the commit makes. Work on it is due at `before`.
    package func insertion(in tenant: TenantName, version: Int64) -> VaultChange {
        .insert(
            OpenRecord(
                id: RecordID(.sessionEnding, tenant, key: RefreshID().text), version: version,
                content: SecretBytes(encoded), due: before))
    }

    private var encoded: [UInt8] {
        JSONWriter.object { json in
            switch sessions {
            case .of(let storageKey): json.member("storage_key", storageKey.description)
            case .ofClient(let clientID): json.member("client_id", clientID)
            }
            json.memberIfPresent("login", login?.milliseconds)
            json.member("cause", cause.rawValue)
            json.member("before", before.milliseconds)
        }
    }

    /// Nil where this build cannot read the record.
    package init?(_ record: OpenRecord) {
        guard let json = try? JSONValue(parsing: record.content.revealedBytes),
            let cause = json["cause"]?.string.flatMap({ BrokerEvent.SessionEnd($0) }),
            let before = json["before"]?.integer
        else { return nil }
        if let storageKey = json["storage_key"]?.string.flatMap({ StorageKey($0) }) {
            sessions = .of(storageKey)
        } else if let clientID = json["client_id"]?.string?.text {
            sessions = .ofClient(clientID)
        } else {
            return nil
        }
        login = json["login"]?.integer.map { Timestamp(milliseconds: $0) }
        self.cause = cause
        self.before = Timestamp(milliseconds: before)
    }

    init(_ sessions: Sessions, login: Timestamp? = nil, cause: BrokerEvent.SessionEnd, before: Timestamp) {
        self.sessions = sessions
        self.login = login
        self.cause = cause
        self.before = before
    }

    /// What the keys of all records of sessions of a storage key begin with: 22 characters of its digest and a dot.
    static func keyPrefix(of storageKey: StorageKey) -> String {
        Base64URL.encode(Array(SHA256.digest(Array(storageKey.description.utf8)).prefix(16))) + "."
    }
}
