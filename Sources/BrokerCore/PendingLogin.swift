internal import CredentialStore
internal import Cryptography
internal import ExternalText
internal import JSON
internal import OAuth

/// A login between its two legs, and afterwards what became of it.
package struct PendingLogin: Sendable {
    /// What the second leg needs. Gone once the state is used.
    struct Secrets: Sendable {
        let loginURI: String
        let codeVerifier: SecretBytes
        /// The value of the cookie that shows the browser which began.
        let binding: SecretBytes
    }

    /// How long a state is good for.
    package static let validity: Duration = .seconds(600)
    /// How long after that the outcome can still be asked for.
    static let memory: Duration = .seconds(3600)
    /// How long after its state a login whose code is being redeemed is still told as pending: six requests of 20 s
    /// and the waits between them take less. One that a crash interrupted is told as expired then.
    static let longestRedemption: Duration = .seconds(300)

    let id: String
    let tenant: TenantName
    let storageKey: StorageKey
    let redirectURI: String
    let returnTo: String?
    /// The registration and the endpoints of the moment when the login began: they redeem the code.
    let configuration: TenantConfiguration
    let server: AuthorizationServer
    let expires: Timestamp
    var secrets: Secrets?
    /// Whether the browser has to show its cookie.
    var isBound: Bool
    var status = LoginProgress.pending
    /// Names the attempt that used the state, so that it knows its own mark again.
    var attempt: String?

    /// Whether the state is used, and there is no outcome yet.
    private var isBeingRedeemed: Bool { status == .pending && secrets == nil }

    /// When a login that has no outcome yet is over.
    var end: Timestamp { isBeingRedeemed ? expires.advanced(by: Self.longestRedemption) : expires }

    var credentialsID: CredentialsID { CredentialsID(tenant: tenant, storageKey: storageKey) }

    var recordID: RecordID { RecordID(.login, tenant, key: id) }

    /// The name of the cookie, one per login, so that several can be under way in a browser.
    func cookieName(isSecure: Bool) -> String {
        (isSecure ? "__Host-" : "") + "token-broker-login-" + id
    }

    func record(version: Int64, stateDigest: [UInt8]) -> OpenRecord {
        OpenRecord(
            id: recordID, version: version, content: SecretBytes(encoded), lookup: stateDigest,
            expires: expires.advanced(by: Self.memory))
    }

    /// The record that takes `previous`' place.
    func record(replacing previous: OpenRecord) -> OpenRecord {
        OpenRecord(
            id: recordID, version: previous.version + 1, content: SecretBytes(encoded), lookup: previous.lookup,
            expires: previous.expires)
    }
}

extension PendingLogin {
    /// The `status` of a login whose code is being redeemed.
    private static let redeeming = "redeeming"

    private var encoded: [UInt8] {
        JSONWriter.object { json in
            json.member("storage_key", storageKey.description)
            json.member("redirect_uri", redirectURI)
            json.memberIfPresent("return_to", returnTo)
            json.name("configuration")
            json.object { json in
                // The client secret goes with the others: what is left only tells the outcome.
                let configuration = secrets == nil ? configuration.withoutClientSecret : configuration
                configuration.encode(to: &json, revealingSecret: true)
            }
            json.name("server")
            server.encode(to: &json)
            json.member("expires", expires.milliseconds)
            json.member("bound", isBound)
            json.memberIfPresent("attempt", attempt)
            if let secrets {
                json.member("login_uri", secrets.loginURI)
                json.member("code_verifier", secrets.codeVerifier.revealedText)
                json.member("binding", secrets.binding.revealedText)
            }
            if isBeingRedeemed { json.member("status", Self.redeeming) } else { status.encode(to: &json) }
        }
    }

    /// Reads a record; `.damaged` when it is none of this build's.
    init(_ record: OpenRecord) throws(StoreError) {
        let damaged = StoreError.damaged("a login of tenant \(record.id.tenant) cannot be read by this version")
        guard let json = try? JSONValue(parsing: record.content.revealedBytes),
            let storageKey = json["storage_key"]?.string.flatMap(StorageKey.init),
            let redirectURI = json["redirect_uri"]?.string?.text,
            let configuration = json["configuration"].flatMap(TenantConfiguration.init(stored:)),
            let server = json["server"].flatMap({ AuthorizationServer($0, of: configuration) }),
            let expires = json["expires"]?.integer, let isBound = json["bound"]?.bool,
            let status = json["status"]?.string == WireText(Self.redeeming) ? .pending : LoginProgress(json),
            status != .expired
        else { throw damaged }
        id = record.id.key
        tenant = record.id.tenant
        self.storageKey = storageKey
        self.redirectURI = redirectURI
        returnTo = json["return_to"]?.string?.text
        self.configuration = configuration
        self.server = server
        self.expires = Timestamp(milliseconds: expires)
        self.isBound = isBound
        attempt = json["attempt"]?.string?.text
        if let loginURI = json["login_uri"]?.string?.text, let verifier = json["code_verifier"]?.string?.text,
            let binding = json["binding"]?.string?.text
        {
            secrets = Secrets(
                loginURI: loginURI, codeVerifier: SecretBytes(utf8: verifier), binding: SecretBytes(utf8: binding))
        }
        self.status = status
    }
}
