package import CredentialStore
import Cryptography
import ExternalText
import JSON
package import OAuth

/// A login that has begun, and afterwards its outcome.
package struct PendingLogin: Sendable {
    /// The address at which the response to a login is expected.
    enum Callback: String, Sendable, CaseIterable {
        /// `/login/callback`.
        case shared
        /// `/login/callback/{tenant}`.
        case perTenant = "per_tenant"
        /// A `redirect_uri` of the caller, which sends the response to `/login/finalize`.
        case own
    }

    /// A code that is redeemed once the user has confirmed the login.
    struct Confirmation: Sendable {
        /// The value of the cookie of the browser that has brought the code.
        let cookie: SecretBytes
        let code: SecretBytes
        /// How many codes were kept so far, with this one.
        let count: Int
        /// What the callback told beside the code.
        var facts: [WireText: JSONValue] = [:]
    }

    /// What the second part of the login needs. Removed once the state is used: the record then has only the outcome.
    struct Secrets: Sendable {
        let redirectURI: String
        let returnTo: String?
        /// The registration, and the endpoints, as they were when the login began: the code is redeemed with them.
        let configuration: TenantConfiguration
        let server: AuthorizationServer
        /// Where a browser that opens the start address goes on; nil for a login that its browser has carried, which has no
        /// start address.
        let loginURI: String?
        let codeVerifier: SecretBytes
        /// The nonce of the request, which the ID token repeats (OpenID Connect Core §3.1.2.1); nil without `openid`.
        var nonce: WireText?
        /// The value of the cookie of the browser that may finish the login, or its digest for a login that its browser has
        /// carried.
        var binding: SecretBytes
        var confirmation: Confirmation?
        /// The key that the code exchange binds to the session; nil where it binds none.
        var deviceKey: DeviceKey?
        /// What the callback told beside the code, by the profile's names. Not stored with the login.
        var callbackFacts: [WireText: JSONValue] = [:]

        /// Whether the record was made of a `CarriedLogin`.
        private var isCarried: Bool { loginURI == nil }

        /// Whether a browser with this value of the login's cookie may finish the login. Takes the same time for every wrong
        /// value.
        func isBound(to cookie: WireText) -> Bool {
            binding == (isCarried ? CarriedLogin.digest(of: cookie) : SecretBytes(utf8: cookie.text))
        }
    }

    /// What binds the login to a browser.
    static func binding(of configuration: TenantConfiguration, _ app: AppLogin?) -> TenantConfiguration.BrowserBinding {
        guard let app else { return configuration.browserBinding }
        return app.asksUser || configuration.browserBinding == .confirm ? .confirm : .required
    }

    /// For how long a state is valid.
    package static let validity: Duration = .seconds(600)
    /// For how long after that callers can ask for the outcome.
    static let memory: Duration = .seconds(3600)
    /// For how long after its state's expiry a login whose code is being redeemed is still pending: longer than six requests of
    /// 20 s and the waits between them. A login that a crash has interrupted is expired then.
    static let longestRedemption: Duration = .seconds(300)

    /// The longest content of a login's record, in bytes, beside the client's scopes.
    private static let longestBesideScopes = 16_384
    /// The longest content of the record of a client's login, in bytes. The scopes stand in it as a list, as another one where the
    /// login names some of them, and in the address of the login, where a byte takes up to three.
    static func longest(for client: ClientConfiguration) -> Int {
        longestBesideScopes + client.scopes.values.reduce(0) { $0 + 5 * $1.utf8.count + 9 }
    }
    /// The longest code that can wait for a confirmation, in bytes. Providers' codes have tens to hundreds of bytes.
    static let longestKeptCode = 4096
    /// How many codes a login keeps, each in place of the one before: a user may go back to the login service a few times.
    static let mostKeptCodes = 10
    /// The bytes that a login's record keeps free for a code and the cookie of its browser.
    static let confirmationReserve = longestKeptCode + 256

    let id: String
    let tenant: TenantName
    /// Of a login for an app, it may be known only when the user is.
    var storageKey: StorageKey
    /// What the login is for; nil for a login that a caller of the API has begun.
    var app: AppLogin?
    /// The tenant and its provider as pages name them.
    let tenantTitle: String
    let providerTitle: String
    let callback: Callback
    let expires: Timestamp
    var secrets: Secrets?
    /// Whether the browser needs the cookie.
    var isBound: Bool
    /// Whether a browser has opened the start address and has the cookie.
    var isStarted = false
    /// When the session ended whose user logs in again by the address for that; nil for any other login. The credentials are
    /// stored only while no user has logged in or out since.
    var endedSession: Timestamp?
    var status = LoginProgress.pending
    /// Whether the code was redeemed, and what it brought waits for the provider's keys.
    var isVerifying = false
    /// Identifies the attempt that has used the state, so that it recognizes its own write.
    var attempt: String?
    /// The digest of the cookie of the browser that has finished an app's login; nil before that.
    var finisher: SecretBytes?
    /// The code that was issued to the app at the end, for a browser that has not seen the answer.
    var appCode: SecretBytes?

    /// Whether the state is used, and there is no outcome yet.
    private var isBeingRedeemed: Bool { status == .pending && secrets == nil }

    /// When a login without an outcome is over.
    var end: Timestamp {
        if isVerifying { return expires.advanced(by: Self.memory) }
        return isBeingRedeemed ? expires.advanced(by: Self.longestRedemption) : expires
    }

    var credentialsID: CredentialsID { CredentialsID(tenant: tenant, storageKey: storageKey) }

    var recordID: RecordID { RecordID(.login, tenant, key: id) }

    /// The name of the cookie. Each login has its own, so that several logins can be under way in one browser.
    func cookieName(isSecure: Bool) -> String { Self.cookieName(of: id, isSecure: isSecure) }

    static func cookieName(of id: String, isSecure: Bool) -> String {
        cookiePrefix(isSecure: isSecure) + id
    }

    static func cookiePrefix(isSecure: Bool) -> String { (isSecure ? "__Host-" : "") + "token-broker-login-" }

    /// The due mark, which all logins with an unused state have that a caller of the API has begun: `PendingLoginQuota`
    /// counts them by it. `StrangersLogins` counts the others.
    private var due: Timestamp? { secrets == nil || isStrangers ? nil : expires }

    /// Whether a browser without a key has begun it.
    var isStrangers: Bool { app != nil || endedSession != nil }

    /// The name of the cookie of the browser that is asked to confirm the login.
    func confirmationCookieName(isSecure: Bool) -> String {
        (isSecure ? "__Host-" : "") + "token-broker-confirm-" + id
    }

    /// The description of the login for pages.
    var description: LoginDescription {
        LoginDescription(
            loginID: id, tenant: tenant, tenantTitle: tenantTitle, storageKey: storageKey,
            providerTitle: providerTitle, appTitle: app?.title)
    }

    func record(version: Int64, stateDigest: [UInt8]) -> OpenRecord {
        OpenRecord(
            id: recordID, version: version, content: SecretBytes(encoded), lookup: stateDigest,
            expires: expires.advanced(by: Self.memory), due: due)
    }

    /// The record that replaces `previous`.
    package func record(replacing previous: OpenRecord) -> OpenRecord {
        OpenRecord(
            id: recordID, version: previous.version + 1, content: SecretBytes(encoded), lookup: previous.lookup,
            expires: previous.expires, due: due)
    }
}

/// The description of a login for pages. It contains no secret.
package struct LoginDescription: Sendable, Equatable {
    package let loginID: String
    package let tenant: TenantName
    /// The tenant's `display_name`, else its name.
    package let tenantTitle: String
    package let storageKey: StorageKey
    package let providerTitle: String
    /// The name of the app that has begun it; nil where a caller of the API has.
    package var appTitle: String?
}

extension PendingLogin {
    /// The `status` of a login whose code is being redeemed.
    private static let redeeming = "redeeming"

    private var encoded: [UInt8] {
        JSONWriter.object { json in
            json.member("storage_key", storageKey.description)
            json.member("tenant_title", tenantTitle)
            json.member("provider_title", providerTitle)
            json.member("callback", callback.rawValue)
            json.member("expires", expires.milliseconds)
            json.member("bound", isBound)
            json.member("started", isStarted)
            json.memberIfPresent("ended_session", endedSession?.milliseconds)
            json.memberIfPresent("attempt", attempt)
            json.memberIfPresent("finisher", finisher?.revealedText)
            json.memberIfPresent("app_code", appCode?.revealedText)
            if isVerifying { json.member("verifying", true) }
            if let app {
                json.name("app")
                json.object { app.encode(to: &$0) }
            }
            if let secrets {
                json.member("redirect_uri", secrets.redirectURI)
                json.memberIfPresent("return_to", secrets.returnTo)
                json.name("configuration")
                json.object { secrets.configuration.encode(to: &$0, revealingSecret: true) }
                json.name("server")
                secrets.server.encode(to: &json)
                json.memberIfPresent("login_uri", secrets.loginURI)
                json.member("code_verifier", secrets.codeVerifier.revealedText)
                json.memberIfPresent("nonce", secrets.nonce?.text)
                json.member("binding", secrets.binding.revealedText)
                json.memberIfPresent("device_key", secrets.deviceKey?.pem.revealedText)
                if let confirmation = secrets.confirmation {
                    json.name("confirmation")
                    json.object { json in
                        json.member("cookie", confirmation.cookie.revealedText)
                        json.member("code", confirmation.code.revealedText)
                        json.member("count", confirmation.count)
                        if !confirmation.facts.isEmpty { json.member("facts", .object(confirmation.facts)) }
                    }
                }
            }
            if isBeingRedeemed { json.member("status", Self.redeeming) } else { status.encode(to: &json) }
        }
    }

    /// Reads a record; throws `.damaged` where this build cannot read it. Members that earlier builds did not write have
    /// defaults.
    package init(_ record: OpenRecord) throws(StoreError) {
        let damaged = StoreError.damaged("a login of tenant \(record.id.tenant) cannot be read by this version")
        guard let json = try? JSONValue(parsing: record.content.revealedBytes),
            let storageKey = json["storage_key"]?.string.flatMap(StorageKey.init),
            let expires = json["expires"]?.integer, let isBound = json["bound"]?.bool,
            let status = json["status"]?.string == WireText(Self.redeeming) ? .pending : LoginProgress(json),
            status != .expired
        else { throw damaged }
        id = record.id.key
        tenant = record.id.tenant
        self.storageKey = storageKey
        if let described = json["app"] {
            guard let known = AppLogin(described) else { throw damaged }
            app = known
        }
        if let text = json["callback"]?.string {
            guard let known = Callback(text) else { throw damaged }
            callback = known
        } else {
            callback = .shared
        }
        self.expires = Timestamp(milliseconds: expires)
        self.isBound = isBound
        endedSession = json["ended_session"]?.integer.map { Timestamp(milliseconds: $0) }
        attempt = json["attempt"]?.string?.text
        finisher = (json["finisher"]?.string?.text).map { SecretBytes(utf8: $0) }
        appCode = (json["app_code"]?.string?.text).map { SecretBytes(utf8: $0) }
        isVerifying = json["verifying"]?.bool ?? false
        // Earlier builds kept the configuration of a login that has ended, and did not write the titles.
        let configuration = json["configuration"].flatMap(TenantConfiguration.init(stored:))
        let server = configuration.flatMap { configuration in
            json["server"].flatMap { AuthorizationServer($0, of: configuration) }
        }
        tenantTitle = json["tenant_title"]?.string?.text ?? configuration?.displayName ?? record.id.tenant.description
        providerTitle =
            json["provider_title"]?.string?.text
            ?? configuration.flatMap { configuration in server.map { configuration.providerTitle(at: $0) } } ?? ""
        // Earlier builds bound a login when it was started, unless binding was required from the beginning.
        isStarted = json["started"]?.bool ?? (isBound && configuration?.browserBinding != .required)
        if let verifier = json["code_verifier"]?.string?.text, let binding = json["binding"]?.string?.text {
            guard let configuration, let server, let redirectURI = json["redirect_uri"]?.string?.text else {
                throw damaged
            }
            var confirmation: Confirmation?
            if let kept = json["confirmation"] {
                guard let cookie = kept["cookie"]?.string?.text, let code = kept["code"]?.string?.text else {
                    throw damaged
                }
                confirmation = Confirmation(
                    cookie: SecretBytes(utf8: cookie), code: SecretBytes(utf8: code),
                    count: kept["count"]?.integer.flatMap { Int(exactly: $0) } ?? 1,
                    facts: kept["facts"]?.object ?? [:])
            }
            secrets = Secrets(
                redirectURI: redirectURI, returnTo: json["return_to"]?.string?.text, configuration: configuration,
                server: server, loginURI: json["login_uri"]?.string?.text, codeVerifier: SecretBytes(utf8: verifier),
                nonce: json["nonce"]?.string, binding: SecretBytes(utf8: binding), confirmation: confirmation,
                deviceKey: (json["device_key"]?.string?.text).map {
                    DeviceKey(pem: SecretBytes(utf8: $0), isBound: true)
                })
        }
        self.status = status
    }
}
