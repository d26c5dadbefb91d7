internal import CredentialStore
internal import Cryptography
internal import ExternalText
internal import JSON
internal import OAuth
internal import Reactor

/// A device login while its user types the code, and afterwards what became of it.
///
/// The record is the job: whoever replaces it, naming the version that it read, owns the next poll, so that any number
/// of replicas together ask no more often than one would.
struct PendingDeviceLogin: Sendable {
    /// What a poll asks.
    struct Request: Sendable {
        /// The registration and the endpoints of the moment when the login began.
        let configuration: TenantConfiguration
        let server: AuthorizationServer
        /// The provider's.
        let deviceCode: SecretBytes
    }

    /// How long after its end the outcome can still be asked for.
    static let memory: Duration = .seconds(3600)
    /// What to wait when the code ends before the next poll is due: as long as the longest-lived code, so that no clock
    /// makes it one poll more.
    static let noMorePolls: Duration = .seconds(86_400)

    let id: String
    let tenant: TenantName
    let storageKey: StorageKey
    /// The end of the provider's code.
    let expires: Timestamp
    /// Gone once the login has ended: the record then keeps what tells the outcome.
    var request: Request?
    var polling: DevicePolling
    /// How long to leave the provider alone, from the moment when this version was written. A span and not an instant:
    /// replicas' clocks need not agree for it.
    var wait: Duration
    /// Whether `wait` bounds a poll that is under way.
    var isBeingPolled = false
    var status = LoginProgress.pending

    var credentialsID: CredentialsID { CredentialsID(tenant: tenant, storageKey: storageKey) }

    var recordID: RecordID { RecordID(.device, tenant, key: id) }

    /// From when on nobody need wait for the login: what a poll under way brings still counts.
    var end: Timestamp { isBeingPolled ? expires.advanced(by: DeviceFlow.longestPoll) : expires }

    /// Marks the records whose logins are to be seen through.
    private var due: Timestamp? { status == .pending ? expires : nil }

    func record(version: Int64, handleDigest: [UInt8]) -> OpenRecord {
        OpenRecord(
            id: recordID, version: version, content: SecretBytes(encoded), lookup: handleDigest,
            expires: expires.advanced(by: Self.memory), due: due)
    }

    /// The record that takes `previous`' place.
    func record(replacing previous: OpenRecord) -> OpenRecord {
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
            status.encode(to: &json)
        }
    }

    /// Reads a record; `.damaged` when it is none of this build's.
    init(_ record: OpenRecord) throws(StoreError) {
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
        if status == .pending, request == nil { throw damaged }
    }
}
