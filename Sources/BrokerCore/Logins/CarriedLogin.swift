import CredentialStore
import Cryptography
import ExternalText
import JSON
import OAuth

/// An app's login that its browser carries, sealed in the login's cookie, until it comes back from the provider: what the record
/// of the login is made of then. So a browser that does not come back has stored nothing.
///
/// The value opens only for the `state` that the login's request had, which is short and bears its expiry and the broker's
/// authentication code: so the broker knows a state of its own whose cookie a browser lacks.
struct CarriedLogin: Sendable {
    let tenant: TenantName
    /// The client of the app, and when its identifier was registered: another registration of it, by whatever tenant of that
    /// name, is another app.
    let clientID: String
    let clientCreated: Timestamp
    /// Where the users' credentials are stored, as `AppClient.Settings.storageKey`.
    let storageKey: StorageKey?
    /// Whether the client has no secret.
    let isPublic: Bool
    let appRedirectURI: String
    /// Whether the app's request named the redirect URI.
    let namedRedirectURI: Bool
    /// The app's own state; nil where its request had none.
    let appState: WireText?
    let codeChallenge: WireText
    /// Of the provider's callback.
    let redirectURI: String
    let callback: PendingLogin.Callback
    let expires: Timestamp
    let codeVerifier: SecretBytes
    let nonce: WireText?
    /// See `registration(of:at:)`.
    let registration: String
    /// The key that the code is bound to; nil for none.
    let proofKey: DPoPKey?

    /// The longest value of a cookie, in bytes. Browsers keep 4096 bytes of a cookie with its name and attributes, which take about 110
    /// here. The app's `state` has room for more than 2000 of these bytes where the other values are of usual lengths.
    static let longestCookie = 3500

    private static let label = "login cookie"

    // MARK: The registration

    /// A digest of what decides where a code is redeemed and what it is good for. A code that was issued to another registration
    /// must not be sent to the present one.
    ///
    /// Left out is what a login takes as it is at its end, such as the client's secret, pins and titles: a secret that was
    /// replaced meanwhile is the one that the provider accepts. Left out is also what the provider's metadata says beside the
    /// endpoints, since replicas fetch that at different times.
    static func registration(of configuration: TenantConfiguration, at server: AuthorizationServer) -> String {
        let content = JSONWriter.object { json in
            json.member("provider", configuration.preset.name)
            json.member("client_id", configuration.client.clientID.text)
            json.memberIfPresent("client_unique_key", configuration.client.clientUniqueKey?.text)
            json.member("scopes", configuration.client.scopes.values)
            json.memberIfPresent("issuer", server.issuer)
            json.member("authorization", server.authorizationEndpoint)
            json.member("token", server.tokenEndpoint)
            if let asked = server.asked {
                json.name("asked")
                asked.encode(to: &json)
            }
        }
        return Base64URL.encode(Array(SHA256.digest(content).prefix(16)))
    }

    /// The login for the client as it is registered now; nil where that is another app, or one that ends elsewhere.
    func login(for client: AppClient) -> AppLogin? {
        guard client.tenant == tenant, client.created == clientCreated, client.settings.storageKey == storageKey,
            client.isPublic == isPublic,
            client.redirectURI(namedRedirectURI ? WireText(appRedirectURI) : nil) == appRedirectURI
        else { return nil }
        return login(of: client)
    }

    /// The login for the client whose request this is.
    func login(of client: AppClient) -> AppLogin {
        AppLogin(
            client: client, redirectURI: appRedirectURI, namedRedirectURI: namedRedirectURI, state: appState,
            codeChallenge: codeChallenge)
    }

    // MARK: The state

    private static let randomBytes = 32
    /// Seconds since 1970.
    private static let timeBytes = 4
    private static let codeBytes = 8

    /// A new state with 256 random bits.
    static func state(until expires: Timestamp, _ vault: Vault) throws(CryptographyError) -> String {
        let seconds = UInt32(clamping: (expires.milliseconds + 999) / 1000)
        let time = stride(from: 24, through: 0, by: -8).map { UInt8(truncatingIfNeeded: seconds >> UInt32($0)) }
        let message = try SecureRandom.bytes(randomBytes) + time
        return Base64URL.encode(message + vault.authenticationCode(of: message, label: "login state", count: codeBytes))
    }

    /// Until when a state is good that `state(until:_:)` has made; nil for another one.
    static func end(ofState state: WireText, _ vault: Vault) -> Timestamp? {
        guard let bytes = Base64URL.decode(state.text), bytes.count == randomBytes + timeBytes + codeBytes else {
            return nil
        }
        let message = Array(bytes.dropLast(codeBytes))
        guard vault.isAuthentic(Array(bytes.suffix(codeBytes)), of: message, label: "login state") else { return nil }
        return Timestamp(milliseconds: message.suffix(timeBytes).reduce(Int64(0)) { $0 << 8 | Int64($1) } * 1000)
    }

    /// The login's identifier, which follows from its state, so that the state tells the name of the cookie.
    static func id(ofState state: WireText) -> String {
        Base64URL.encode(Array(SHA256.digest(Array("login \(state.text)".utf8)).prefix(16)))
    }

    // MARK: The cookie

    /// The cookie's value.
    func sealed(for state: WireText, _ vault: Vault) throws(CryptographyError) -> SecretBytes {
        SecretBytes(
            utf8: Base64URL.encode(try vault.seal(SecretBytes(encoded), label: Self.label, at: Self.place(state))))
    }

    /// Opens the value of a cookie; nil for a value that is not that of the login with this state.
    init?(opening cookie: WireText, for state: WireText, _ vault: Vault) {
        guard cookie.count <= Self.longestCookie, let sealed = Base64URL.decode(cookie.text),
            let content = vault.open(sealed, label: Self.label, at: Self.place(state)),
            let json = try? JSONValue(parsing: content.revealedBytes)
        else { return nil }
        self.init(json)
    }

    /// The digest of a cookie's value, by which the record recognizes the browser.
    static func digest(of cookie: WireText) -> SecretBytes {
        SecretBytes(utf8: Base64URL.encode(SHA256.digest(Array(cookie.utf8))))
    }

    private static func place(_ state: WireText) -> [UInt8] {
        Array("\(id(ofState: state)) ".utf8) + SHA256.digest(Array(state.utf8))
    }

    // MARK: Encoded

    init(
        _ request: LoginFlow.AppParameters, redirectURI: String, callback: PendingLogin.Callback, expires: Timestamp,
        codeVerifier: SecretBytes, nonce: WireText?, registration: String,
        proofKey: DPoPKey?
    ) {
        let client = request.client
        tenant = client.tenant
        clientID = client.clientID
        clientCreated = client.created
        storageKey = client.settings.storageKey
        isPublic = client.isPublic
        appRedirectURI = request.redirectURI
        namedRedirectURI = request.namedRedirectURI
        appState = request.state
        codeChallenge = request.codeChallenge
        self.redirectURI = redirectURI
        self.callback = callback
        self.expires = expires
        self.codeVerifier = codeVerifier
        self.nonce = nonce
        self.registration = registration
        self.proofKey = proofKey
    }

    /// The names are short, because the app's `state` can be long.
    private var encoded: [UInt8] {
        JSONWriter.object { json in
            json.member("t", tenant.description)
            json.member("c", clientID)
            json.member("d", clientCreated.milliseconds)
            json.memberIfPresent("k", storageKey?.description)
            json.member("r", appRedirectURI)
            json.memberIfPresent("s", appState?.text)
            json.member("p", codeChallenge.text)
            json.member("f", (namedRedirectURI ? 1 : 0) | (isPublic ? 2 : 0))
            json.member("u", redirectURI)
            json.member("b", callback.rawValue)
            json.member("e", expires.milliseconds)
            json.member("v", codeVerifier.revealedText)
            json.memberIfPresent("o", nonce?.text)
            json.member("g", registration)
            json.memberIfPresent("y", proofKey?.pem.revealedText)
        }
    }

    /// Nil where this build cannot read it.
    private init?(_ json: JSONValue) {
        guard let tenant = json["t"]?.string.flatMap({ TenantName($0) }), let clientID = json["c"]?.string?.text,
            let created = json["d"]?.integer, let appRedirectURI = json["r"]?.string?.text,
            let challenge = json["p"]?.string, let flags = json["f"]?.integer, (0..<4).contains(flags),
            let redirectURI = json["u"]?.string?.text,
            let callback = json["b"]?.string.flatMap({ PendingLogin.Callback($0) }),
            let expires = json["e"]?.integer, let verifier = json["v"]?.string?.text,
            let registration = json["g"]?.string?.text
        else { return nil }
        if let text = json["k"]?.string {
            guard let known = StorageKey(text) else { return nil }
            storageKey = known
        } else {
            storageKey = nil
        }
        self.tenant = tenant
        self.clientID = clientID
        clientCreated = Timestamp(milliseconds: created)
        isPublic = flags & 2 != 0
        self.appRedirectURI = appRedirectURI
        namedRedirectURI = flags & 1 != 0
        appState = json["s"]?.string
        codeChallenge = challenge
        self.redirectURI = redirectURI
        self.callback = callback
        self.expires = Timestamp(milliseconds: expires)
        codeVerifier = SecretBytes(utf8: verifier)
        nonce = json["o"]?.string
        self.registration = registration
        proofKey = (json["y"]?.string?.text).map { DPoPKey(pem: SecretBytes(utf8: $0)) }
    }
}
