import Auth
import Testing

@Suite struct `Auth configuration` {
    @Test func `credentials do not print their token`() {
        let credentials = Credentials(clientID: "c1", token: "a-secret-token")
        #expect(!"\(credentials)".contains("a-secret-token"))
        #expect(!String(reflecting: credentials).contains("a-secret-token"))
        var text = ""
        dump(credentials, to: &text)
        #expect(!text.contains("a-secret-token"))
    }

    @Test func `neither a configuration nor an environment prints its secrets`() {
        let configuration = AuthConfiguration(
            credentialsStorageKey: "main", clientID: "c1", clientSecret: "a-secret", clientUniqueKey: "a-secret-key")
        let storage = AuthEnvironment.Storage.postgres(url: "postgresql://u:a-secret@h/d", masterKeys: "k1:a-secret")
        let environment = AuthEnvironment(storage: storage)
        let values: [Any] = [configuration, storage, environment, AuthClient(configuration, in: environment)]
        for value in values {
            var text = "\(value) " + String(reflecting: value)
            dump(value, to: &text)
            #expect(!text.contains("a-secret"))
        }
        #expect("\(configuration)" == "client c1 of provider tidal")
        #expect("\(AuthEnvironment.Storage.directory("/d"))" == "directory /d")
    }

    @Test func `a closure sets what has no parameter`() {
        let plain = AuthConfiguration(credentialsStorageKey: "main", clientID: "c1") { $0.reuseGrace = .seconds(30) }
        #expect(plain.reuseGrace == .seconds(30) && plain.provider == "tidal")
        let spotify = AuthConfiguration(credentialsStorageKey: "main", provider: .spotify(clientID: "c1")) {
            $0.requestHeaders = ["X-Partner": "acme"]
        }
        #expect(spotify.requestHeaders == ["X-Partner": "acme"] && spotify.provider == "spotify")
    }

    @Test func `an error prints its code, its message and the provider's error code`() {
        let error = AuthError(.authorizationError, message: "The user refused.", providerErrorCode: "access_denied")
        #expect("\(error)" == "authorizationError: The user refused. (access_denied)")
        #expect("\(AuthError(.networkError, message: "No route."))" == "networkError: No route.")
    }
}
