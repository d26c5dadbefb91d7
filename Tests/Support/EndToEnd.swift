package import DevelopmentProvider
import HTTPCodec
import HTTPSClient
import JSON
import TLS

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
    /// - Parameters:
    ///   - secret: the client's; nil makes a public client.
    ///   - pins: the pins of a tenant at a provider over HTTPS, which has the test certificate `good`, and none where the
    ///     list is empty; nil for a provider over HTTP.
    ///   - members: further members of the tenant, each with a comma after it.
    ///   - endsAccessTokens: whether a refresh ends the access tokens of before at the provider.
    ///   - delays: what the delays of the provider's faults are measured by.
    package static func run(
        _ profile: ProviderProfile, secret: String? = "the secret:%", rotation: RefreshTokenRotation = .none,
        pins: [String]? = nil, delays: any Clock<Duration> = ContinuousClock(), members: String = "",
        endsAccessTokens: Bool = false,
        _ body: (EndToEnd) async throws -> Void
    ) async throws {
        var configuration = ProviderConfiguration(
            profile: profile, clients: [ProviderClient("the app", secret: secret, scopes: ["r_usr", "w_usr"])])
        configuration.rotation = rotation
        configuration.refreshEndsAccessTokens = endsAccessTokens
        let certificates = TLSTestCertificates.shared
        let tls = try pins.map { _ in
            try TLSServerContext(certificateFile: certificates.chain(.good), keyFile: certificates.key(.good))
        }
        let provider = try RunningProvider(configuration, tls: tls, clock: delays)
        let time = ManualTime()
        let directory = StoreFixtureDirectory()
        let broker = try await RunningBroker(directory: directory.path, time: time) {
            $0.trustedCAFile = certificates.root
        }
        let all = EndToEnd(
            broker: broker, time: time, directory: directory, provider: provider, profile: profile)
        let result: Result<Void, any Error>
        do {
            try await all.register(secret: secret, pins: pins, members)
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
    private func register(secret: String?, pins: [String]?, _ members: String) async throws {
        let places =
            switch profile {
            case .tidal:
                #""login_service_base_uri": "\#(provider.baseURL)", "auth_service_base_uri": "\#(provider.baseURL)/v1""#
            case .rfc: #""provider": "oidc", "issuer": "\#(provider.baseURL)""#
            case .duckduckgo, .authgear: preconditionFailure("the flows of this profile have tests of their own")
            }
        let secret = secret.map { #""client_secret": "\#($0)", "# } ?? ""
        let pinned =
            pins.flatMap { $0.isEmpty ? nil : #""pinned_certificates": ["\#($0.joined(separator: "\", \""))"], "# }
            ?? ""
        let answer = try await broker.call(
            .put, "/tenants/t1",
            body: #"""
                {"client_id": "the app", \#(secret)\#(pinned)\#(members)"scopes": ["w_usr", "r_usr"], \#(places),
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
