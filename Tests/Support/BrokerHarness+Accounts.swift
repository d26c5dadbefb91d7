package import CredentialStore
package import DevelopmentProvider
import ExternalText
import HTTPCodec
package import HTTPSClient
import HTTPServer
import OAuth
import Reactor

extension BrokerHarness {
    package static let accountBase = "https://ddg.example"

    /// A tenant of the preset duckduckgo whose base URI is that of `accountProvider`.
    package static func accountTenant(_ members: String = "") -> String {
        #"{\#(members)"provider": "duckduckgo", "client_id": "app", "auth_service_base_uri": "\#(accountBase)"}"#
    }

    /// A development provider of the duckduckgo profile, whose time is a test's.
    package static func accountProvider(
        _ time: ManualTime, _ change: (inout ProviderConfiguration) -> Void = { _ in }
    ) -> DevelopmentProvider {
        guard let base = BaseURL(accountBase) else { preconditionFailure("no base URL") }
        var configuration = ProviderConfiguration(
            profile: .duckduckgo, clients: [ProviderClient("app"), ProviderClient("other")], baseURL: base)
        change(&configuration)
        return DevelopmentProvider(configuration, now: { time.now.milliseconds }, clock: ProviderClock())
    }

    /// A broker with the tenant `t1` at such a provider.
    package static func accounts(
        store: (any RecordStore)? = nil, time: ManualTime = ManualTime(), tenant: String = accountTenant(),
        provider: DevelopmentProvider? = nil
    ) async throws -> (broker: BrokerHarness, provider: DevelopmentProvider) {
        let provider = provider ?? accountProvider(time)
        let broker = try await BrokerHarness(store: store, time: time)
        broker.transport.always(provider.step)
        await broker.makeTenant("t1", tenant)
        return (broker, provider)
    }

    /// `POST /credentials/activate` with the admin key.
    package func activate(_ signature: String, storageKey: String = "default", members: String = "") async -> Answer {
        await call(
            .post, "/credentials/activate", tenant: "t1",
            body: #"{"storage_key": "\#(storageKey)", \#(members)"platform_signature": "\#(signature)"}"#)
    }
}

extension DevelopmentProvider {
    /// Has this provider answer a scripted transport.
    package var step: ScriptedTransport.Step {
        .forward { (request) async throws(TransportError) in try await self.answer(to: request) }
    }

    /// What this provider answers to a request of the broker's.
    package func answer(to request: ClientRequest) async throws(TransportError) -> ClientResponse {
        let parts = WireText(request.url.pathAndQuery).split(at: "?", limit: 2)
        let response = await respond(
            to: Request(
                method: request.method, path: parts[0].text, query: parts.count == 2 ? parts[1].text : nil,
                fields: request.fields, body: request.body))
        if response.abortsConnection { throw .connectionLost(requestSent: true) }
        return ClientResponse(status: response.status, fields: response.fields, body: response.body)
    }
}
