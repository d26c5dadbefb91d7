import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import DevelopmentProvider
import ExternalText
import HTTPCodec
import HTTPSClient
import HTTPServer
import JSON
import OAuth
import Testing
import TokenBroker

/// The broker and a provider that requires pushed requests, verifies each proof and binds refresh tokens to their keys.
@Suite(.timeLimit(.minutes(1))) struct `Bound tokens at a provider that verifies them` {
    private static let issuer = "https://id.example"

    private static func provider(_ time: ManualTime, nonce: String? = "nonce-1") throws -> DevelopmentProvider {
        var configuration = ProviderConfiguration(
            profile: .rfc, clients: [ProviderClient("c1")], baseURL: try #require(BaseURL(issuer)))
        configuration.pushedRequests = .required
        configuration.boundTokens = .required
        configuration.proofNonce = nonce
        configuration.rotation = .rotate(grace: .zero)
        return DevelopmentProvider(configuration, now: { time.now.milliseconds })
    }

    private static func broker(_ time: ManualTime, _ provider: DevelopmentProvider) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(time: time)
        broker.transport.always(
            .forward { request async throws(TransportError) in
                let parts = request.url.pathAndQuery.split(separator: "?", maxSplits: 1).map(String.init)
                let answer = await provider.respond(
                    to: Request(
                        method: request.method, path: parts[0], query: parts.count > 1 ? parts[1] : nil,
                        fields: request.fields, body: request.body))
                return ClientResponse(status: answer.status, fields: answer.fields, body: answer.body)
            })
        await broker.makeTenant(
            "t1", #"{"client_id": "c1", "provider": "oidc", "issuer": "\#(issuer)", "dpop": true}"#)
        return broker
    }

    /// The query of the callback after a user has approved the login at that address.
    private static func approve(_ uri: String, at provider: DevelopmentProvider) async throws -> String {
        let driver = ProviderDriver(provider, clientID: "c1")
        let pairs = BrokerHarness.parameters(of: uri).map { FormEncoding.Pair($0.key, $0.value) }
        let page = await driver.get("/authorize", pairs)
        let form = try #require(ProviderForm(html: page.text), "\(page.text)")
        let answer = await driver.post(
            form.action, body: form.submission([.init("user", "alice"), .init("decision", "approve")]))
        let location = try #require(answer.fields["Location"]?.text)
        return String(location.split(separator: "?", maxSplits: 1)[1])
    }

    @Test func `are granted, refreshed and proven`() async throws {
        let time = ManualTime()
        let provider = try Self.provider(time)
        let broker = try await Self.broker(time, provider)
        let login = await broker.beginLogin()
        #expect(Set(BrokerHarness.parameters(of: login.uri).keys) == ["client_id", "request_uri"])
        let callback = try await Self.approve(login.uri, at: provider)
        #expect(await broker.callback(callback).status == 200)
        let first = await broker.get()
        #expect((first.json["token_type"]?.text, first.level) == ("DPoP", "user"))
        // A nonce that has changed costs one more request, and ends nothing.
        provider.configure { $0.proofNonce = "nonce-2" }
        time.advance(by: .seconds(3600))
        let second = await broker.get("level=user")
        #expect(second.json["token_type"]?.text == "DPoP")
        #expect(second.token != first.token)
        #expect(provider.requests.suffix(2).map(\.error) == ["use_dpop_nonce", nil])
    }

    @Test func `go on with another process, which has only the store`() async throws {
        let time = ManualTime()
        let provider = try Self.provider(time, nonce: nil)
        let broker = try await Self.broker(time, provider)
        let login = await broker.beginLogin()
        let callback = try await Self.approve(login.uri, at: provider)
        let later = try await BrokerHarness(store: broker.store, transport: broker.transport, time: time)
        #expect(await later.callback(callback).status == 200)
        time.advance(by: .seconds(3600))
        let next = try await BrokerHarness(store: broker.store, transport: broker.transport, time: time)
        #expect(await next.get("level=user").json["token_type"]?.text == "DPoP")
    }

    @Test func `open the login page of a pushed request once, and that of the start address again`() async throws {
        let time = ManualTime()
        let provider = try Self.provider(time, nonce: nil)
        let broker = try await Self.broker(time, provider)
        let login = await broker.beginLogin()
        let driver = ProviderDriver(provider, clientID: "c1")
        let pairs = BrokerHarness.parameters(of: login.uri).map { FormEncoding.Pair($0.key, $0.value) }
        #expect(await driver.get("/authorize", pairs).status == .ok)
        #expect(await driver.get("/authorize", pairs).status == .badRequest)
        let first = await broker.start(login)
        let cookie = try #require(BrokerHarness.cookie(first))
        // Longer than the provider keeps a pushed request.
        time.advance(by: .seconds(120))
        let second = await broker.start(login, cookie: cookie)
        let callback = try await Self.approve(second.fields["Location"]?.text ?? "", at: provider)
        #expect(await broker.callback(callback, cookie: cookie).status == 200)
    }
}
