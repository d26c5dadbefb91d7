import BrokerTesting
import DevelopmentProvider
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import Testing

/// A provider whose clock stands still, and a client of the provider.
struct ProviderFixture {
    let clock = ProviderClock()
    let provider: DevelopmentProvider
    var driver: ProviderDriver

    init(
        _ profile: ProviderProfile = .tidal,
        clients: [ProviderClient] = [
            ProviderClient("app", name: "The App"), ProviderClient("other"),
            ProviderClient("confidential", secret: "s3cret", name: "Backend"),
        ],
        clientID: String = "app", _ change: (inout ProviderConfiguration) -> Void = { _ in }
    ) {
        var configuration = ProviderConfiguration(profile: profile, clients: clients)
        change(&configuration)
        let clock = clock
        provider = DevelopmentProvider(configuration, now: { clock.milliseconds }, clock: clock)
        driver = ProviderDriver(provider, clientID: clientID)
    }

    /// The refresh token of a new login.
    func refreshToken(user: String = "alice") async throws -> String {
        try #require(await driver.session(user: user)?["refresh_token"]?.text)
    }

    func isActive(_ response: Response) -> Bool {
        guard let token = response.json?["access_token"]?.text else { return false }
        return provider.introspect(accessToken: token) != nil
    }
}

/// Expects an OAuth error in the form of the profile.
func expectError(
    _ response: Response, _ error: String, status: Int = 400, subStatus: Int64? = nil,
    sourceLocation: SourceLocation = #_sourceLocation
) {
    #expect(response.status.code == status, sourceLocation: sourceLocation)
    #expect(response.json?["error"]?.string == error, sourceLocation: sourceLocation)
    #expect(response.json?["error_description"]?.text?.isEmpty == false, sourceLocation: sourceLocation)
    #expect(response.fields["Cache-Control"] == "no-store", sourceLocation: sourceLocation)
    if let subStatus {
        #expect(response.json?["sub_status"]?.integer == subStatus, sourceLocation: sourceLocation)
    }
}
