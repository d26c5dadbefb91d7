package import CredentialStore
import Cryptography
import ExternalText
import JSON
import OAuth
import Reactor

/// A device login while its user types the code, and afterwards its outcome.
///
/// The replica that replaces exactly the version of the record that it has read owns the next poll. So all replicas together poll
/// no more often than one would.
package struct PendingDeviceLogin: Sendable {
    /// What a poll sends.
    struct Request: Sendable {
        /// The registration, and the endpoints, as they were when the login began.
        let configuration: TenantConfiguration
        let server: AuthorizationServer
        /// The provider's device code.
        let deviceCode: SecretBytes
    }

    /// For how long after the login's end callers can ask for its outcome.
    static let memory: Duration = .seconds(3600)
    /// The wait where the code expires before the next poll would be due: as long as the longest-lived code, so that no
    /// replica, whatever its clock, polls once more.
    static let noMorePolls: Duration = .seconds(86_400)

    let id: String
    let tenant: TenantName
    let storageKey: StorageKey
    /// When the provider's code expires.
    let expires: Timestamp
    /// Nil once the login has ended: the record then has only the outcome.
    var request: Request?
    var polling: DevicePolling
    /// How long not to poll, from when this version was written. A duration and not a time, so that the replicas' clocks need
    /// not agree.
    var wait: Duration
    /// Whether `wait` bounds a poll that is under way.
    var isBeingPolled = false
    /// Whether the provider has granted a token that waits for the provider's keys.
    var isVerifying = false
    var status = LoginProgress.pending

    var credentialsID: CredentialsID { CredentialsID(tenant: tenant, storageKey: storageKey) }

    var recordID: RecordID { RecordID(.device, tenant, key: id) }

    /// When the login is over: a poll under way may still bring its outcome.
    var end: Timestamp {
        if isVerifying { return expires.advanced(by: Self.memory) }
        return isBeingPolled ? expires.advanced(by: DeviceFlow.longestPoll) : expires
    }

    /// The due mark, which all logins have that are to be polled: `DeviceFlow.run` finds them by it.
    private var due: Timestamp? { status == .pending && !isVerifying ? expires : nil }

    func record(version: Int64, handleDigest: [UInt8]) -> OpenRecord {
        OpenRecord(
            id: recordID, version: version, content: SecretBytes(encoded), lookup: handleDigest,
            expires: expires.advanced(by: Self.memory), due: due)
    }

    /// The record that replaces `previous`.
    package func record(replacing previous: OpenRecord) -> OpenRecord {
        OpenRecord(
            id: recordID, version: previous.version + 1, content: SecretBytes(encoded), lookup: previous.lookup,
            expires: previous.expires, due: due)
    }
}

extension PendingDeviceLogin {
    private var encoded: [UInt8] {
        JSONWriter.object { json in
            json.member("storage_key", storageKey.description)
            json.member("expires", expires.milliseconds)
            if let request {
                json.name("configuration")
                json.object { request.configuration.encode(to: &$0, revealingSecret: true) }
                json.name("server")
                request.server.encode(to: &json)
                json.member("device_code", request.deviceCode.revealedText)
            }
            json.member("interval", polling.intervalSeconds)
            json.member("retries", polling.retries)
            json.member("wait", wait.milliseconds)
            json.member("being_polled", isBeingPolled)
            if isVerifying { json.member("verifying", true) }
            status.encode(to: &json)
        }
    }

    /// Reads a record; throws `.damaged` where this build cannot read it.
    package init(_ record: OpenRecord) throws(StoreError) {
        let damaged = StoreError.damaged("a device login of tenant \(record.id.tenant) cannot be read by this version")
        guard let json = try? JSONValue(parsing: record.content.revealedBytes),
            let storageKey = json["storage_key"]?.string.flatMap(StorageKey.init),
            let expires = json["expires"]?.integer, let interval = json["interval"]?.integer,
            let retries = json["retries"]?.integer.flatMap({ Int(exactly: $0) }),
            let polling = DevicePolling(intervalSeconds: interval, retries: retries),
            let wait = json["wait"]?.integer, let isBeingPolled = json["being_polled"]?.bool,
            let status = LoginProgress(json)
        else { throw damaged }
        id = record.id.key
        tenant = record.id.tenant
        self.storageKey = storageKey
        self.expires = Timestamp(milliseconds: expires)
        if let code = json["device_code"]?.string?.text {
            guard let configuration = json["configuration"].flatMap(TenantConfiguration.init(stored:)),
                let server = json["server"].flatMap({ AuthorizationServer($0, of: configuration) })
            else { throw damaged }
            request = Request(configuration: configuration, server: server, deviceCode: SecretBytes(utf8: code))
        }
        self.polling = polling
        self.wait = .milliseconds(wait)
        self.isBeingPolled = isBeingPolled
        self.status = status
        isVerifying = json["verifying"]?.bool ?? false
        if status == .pending, !isVerifying, request == nil { throw damaged }
    }
}
