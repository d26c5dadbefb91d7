package import DevelopmentProvider
internal import HTTPCodec
internal import JSON

/// A provider, a broker on files and the sockets between them.
package struct EndToEnd: Sendable {
    package let broker: RunningBroker
    package let time: ManualTime
    package let directory: StoreFixtureDirectory
    private let provider: RunningProvider
    private let profile: ProviderProfile

    /// The user who logs in if a test names none.
    package static let user = ProviderUser("alice")

    /// Runs `body` with a provider of that profile and a broker whose tenant `t1` is registered there.
    /// - Parameter secret: the client's; nil makes a public client.
    package static func run(
        _ profile: ProviderProfile, secret: String? = "the secret:%", rotation: RefreshTokenRotation = .none,
        _ body: (EndToEnd) async throws -> Void
    ) async throws {
        var configuration = ProviderConfiguration(
            profile: profile, clients: [ProviderClient("the app", secret: secret, scopes: ["r_usr", "w_usr"])])
        configuration.rotation = rotation
        let provider = try RunningProvider(configuration)
        let time = ManualTime()
        let directory = StoreFixtureDirectory()
        let broker = try await RunningBroker(directory: directory.path, time: time)
        let all = EndToEnd(
            broker: broker, time: time, directory: directory, provider: provider, profile: profile)
        let result: Result<Void, any Error>
        do {
            try await all.register(secret: secret)
            result = .success(try await body(all))
        } catch {
            result = .failure(error)
        }
        await broker.close()
        await provider.close()
        try result.get()
    }

    package var controls: DevelopmentProvider { provider.provider }

    /// TIDAL by its base URIs, the other by its issuer alone.
    private func register(secret: String?) async throws {
        let places =
            switch profile {
            case .tidal:
                #""login_service_base_uri": "\#(provider.baseURL)", "auth_service_base_uri": "\#(provider.baseURL)/v1""#
            case .rfc: #""provider": "oidc", "issuer": "\#(provider.baseURL)""#
            case .duckduckgo: preconditionFailure("this profile has no login page")
            }
        let secret = secret.map { #""client_secret": "\#($0)", "# } ?? ""
        let answer = try await broker.call(
            .put, "/tenants/t1",
            body: #"""
                {"client_id": "the app", \#(secret)"scopes": ["w_usr", "r_usr"], \#(places),
                 "allowed_return_uris": ["https://app.example/done"],
                 "allowed_redirect_uris": ["https://app.example/cb"]}
                """#)
        guard answer.status == 201 else { throw RunningBroker.Failure.unexpected(answer.status, answer.text) }
    }

    /// What the broker hands out.
    package func token(_ query: String = "") async throws -> RunningBroker.Answer {
        try await broker.call(.get, "/credentials" + query)
    }

    /// The requests that brought or tried to bring tokens by that grant.
    package func requests(_ grant: GrantType) -> [RequestRecord] {
        controls.requests.filter { $0.grant == grant.rawValue }
    }
}
