import BrokerTesting
import Cryptography
import DevelopmentProvider
import ExternalText
import HTTPCodec
import HTTPServer
import JOSE
import JSON
import OAuth
import Reactor
import Testing

/// A provider of the authgear profile with apps, and keys of the apps.
struct AuthgearFixture {
    static let redirect = "https://other.test/cb"
    static let scope = "openid offline_access https://authgear.com/scopes/full-access"

    var fixture: ProviderFixture
    var provider: DevelopmentProvider { fixture.provider }
    var driver: ProviderDriver { fixture.driver }
    let key: AppKey

    init(_ change: (inout ProviderConfiguration) -> Void = { _ in }) throws {
        let broker = ["https://broker.test/login/callback"]
        var app = ProviderClient("app", redirectURIs: broker)
        app.allowsAppToApp = true
        var insecure = ProviderClient("insecure", redirectURIs: broker)
        insecure.allowsAppToApp = true
        insecure.bindsInsecurely = true
        var protected = ProviderClient("protected", redirectURIs: broker)
        protected.allowsAppToApp = true
        protected.requiresBiometricProtection = true
        var rotating = ProviderClient("rotating", redirectURIs: broker)
        rotating.rotatesRefreshTokens = true
        let plain = ProviderClient("plain", redirectURIs: broker)
        let other = ProviderClient("other", redirectURIs: [Self.redirect])
        let backend = ProviderClient("backend", secret: "s3cret", redirectURIs: broker)
        fixture = ProviderFixture(
            .authgear, clients: [app, insecure, protected, rotating, plain, other, backend]
        ) { configuration in
            // Keys of elliptic curves are made faster.
            configuration.signingAlgorithm = .es256
            change(&configuration)
        }
        key = try AppKey()
    }

    var now: Timestamp { Timestamp(milliseconds: provider.now) }

    func challengeAnswer(_ body: String) async -> Response {
        await provider.respond(
            to: Request(
                method: .post, path: "/oauth2/challenge", fields: ["Content-Type": "application/json"],
                body: Array(body.utf8)))
    }

    func challenge(_ purpose: String = "app2app_request") async throws -> String {
        let answer = await challengeAnswer(#"{"purpose":"\#(purpose)"}"#)
        return try #require(answer.json?["result"]?["token"]?.text)
    }

    func driver(_ client: String) -> ProviderDriver {
        var driver = driver
        driver.clientID = client
        return driver
    }

    /// The answer to a login of the client, which registers the device key unless it is nil.
    func login(_ client: String = "app", key: AppKey?, scope: String = scope) async throws -> JSONValue {
        var changes: [FormEncoding.Pair] = []
        if let key {
            changes.append(.init("x_app2app_device_key_jwt", try key.proof(await challenge(), now: now)))
        }
        let code = try #require(await driver(client).login([.init("scope", scope)]))
        let answer = await driver(client).redeem(code, changes)
        #expect(answer.status == .ok, "\(answer.text)")
        return try #require(answer.json)
    }

    func session(_ client: String = "app", key: AppKey?) async throws -> String {
        try #require(try await login(client, key: key)["refresh_token"]?.text)
    }

    /// The grant app2app. An empty value leaves a parameter out; nil for a proof of the key with a new challenge.
    func approve(
        _ token: String, jwt: String? = nil, _ changes: [FormEncoding.Pair] = []
    ) async throws -> Response {
        let proof: String
        if let jwt { proof = jwt } else { proof = try key.proof(await challenge(), now: now) }
        let usual: [FormEncoding.Pair] = [
            .init("grant_type", "urn:authgear:params:oauth:grant-type:app2app-request"), .init("client_id", "other"),
            .init("refresh_token", token), .init("jwt", proof), .init("redirect_uri", Self.redirect),
            .init("code_challenge", ProviderDriver.challenge), .init("code_challenge_method", "S256"),
        ]
        return await driver.post(
            "/oauth2/token",
            usual.filter { pair in !changes.contains { $0.name == pair.name } } + changes.filter { $0.value != "" })
    }

    func biometricProof(_ key: AppKey, _ action: String, target: String? = nil) async throws -> String {
        try key.proof(
            await challenge("biometric_request"), now: now, type: "vnd.authgear.biometric-request", action: action,
            claims: target.map { ["client_id": "\"\($0)\""] } ?? [:])
    }

    func biometric(
        _ jwt: String, client: String = "app", bearer: String? = nil, _ form: [FormEncoding.Pair] = []
    ) async -> Response {
        await driver.post(
            "/oauth2/token",
            [
                .init("grant_type", "urn:authgear:params:oauth:grant-type:biometric-request"),
                .init("client_id", client), .init("jwt", jwt),
            ] + form, fields: bearer.map { ["Authorization": "Bearer " + $0] } ?? [:])
    }
}
