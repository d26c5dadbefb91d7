import DevelopmentProvider
import JOSE
import Reactor
import Testing

@Suite struct `Provider options` {
    @Test func `without options the defaults apply`() throws {
        let options = try ProviderOptions(arguments: [])
        #expect(options.listen.description == "127.0.0.1:8181")
        #expect(options.publicBaseURL == nil)
        #expect(options.https == nil)
        #expect(!options.showsHelp)
        #expect(options.configuration.profile == .tidal)
        #expect(options.configuration.clients == [ProviderClient("development")])
        #expect(options.configuration.rotation == .none)
        #expect(options.configuration.accessTokenLifetime == .seconds(14_400))
        #expect(options.configuration.authorizationCodeLifetime == .seconds(60))
        #expect(options.configuration.issuesRefreshTokens)
        #expect(options.configuration.announcesResponseIssuer)
    }

    @Test func `each option has its effect`() throws {
        let options = try ProviderOptions(arguments: [
            "--listen", "[::1]:0", "--public-base-url", "https://id.test/x/", "--profile", "rfc", "--client", "a",
            "--client", "b:s:t", "--redirect-uri", "https://c.test/cb", "--rotation", "rotate", "--grace", "30",
            "--access-token-lifetime", "1", "--refresh-token-lifetime", "2", "--code-lifetime", "3",
            "--device-code-lifetime", "4", "--device-interval", "5", "--dead-refresh-token-status", "401",
            "--no-refresh-tokens", "--no-issuer-announcement", "--capacity", "1000", "--refresh-ends-access-tokens",
            "--pushed-requests", "required", "--dpop", "allowed", "--dpop-nonce", "n-1",
        ])
        #expect(options.listen.description == "[::1]:0")
        #expect(options.publicBaseURL?.description == "https://id.test/x")
        let configuration = options.configuration
        #expect(configuration.profile == .rfc)
        #expect(
            configuration.clients == [
                ProviderClient("a", redirectURIs: ["https://c.test/cb"]),
                ProviderClient("b", secret: "s:t", redirectURIs: ["https://c.test/cb"]),
            ])
        #expect(configuration.rotation == .rotate(grace: .seconds(30)))
        #expect(configuration.accessTokenLifetime == .seconds(1))
        #expect(configuration.refreshTokenLifetime == .seconds(2))
        #expect(configuration.authorizationCodeLifetime == .seconds(3))
        #expect(configuration.deviceCodeLifetime == .seconds(4))
        #expect(configuration.deviceInterval == .seconds(5))
        #expect(configuration.deadRefreshTokenStatus == 401)
        #expect(configuration.capacity == 1000)
        #expect(!configuration.issuesRefreshTokens)
        #expect(configuration.refreshEndsAccessTokens)
        #expect(!configuration.announcesResponseIssuer)
        #expect((configuration.pushedRequests, configuration.boundTokens) == (.required, .allowed))
        #expect(configuration.proofNonce == "n-1")
    }

    @Test(
        arguments: [
            ([], .rotate(grace: .seconds(3600))), (["--grace", "5"], .rotate(grace: .seconds(5))),
            (["--rotation", "rotate"], .rotate(grace: .seconds(3600))),
            (["--rotation", "rotate", "--grace", "0"], .rotate(grace: .zero)), (["--rotation", "none"], .none),
        ] as [([String], RefreshTokenRotation)])
    func `the duckduckgo profile rotates unless an option says otherwise`(
        arguments: [String], rotation: RefreshTokenRotation
    ) throws {
        let configuration = try ProviderOptions(arguments: ["--profile", "duckduckgo"] + arguments).configuration
        #expect(configuration.rotation == rotation)
        #expect(configuration.refreshTokenLifetime == .seconds(2_592_000))
    }

    @Test func `tokens are signed as the options say`() throws {
        let configuration = try ProviderOptions(arguments: [
            "--access-tokens", "jwt", "--signing-algorithm", "PS256",
        ]).configuration
        #expect(configuration.accessTokenFormat == .jwt)
        #expect(configuration.signingAlgorithm.rawValue == "PS256")
    }

    @Test(
        arguments: [
            (["--https"], .issued(authorityFile: nil)), (["--https", "--ca-file", "a"], .issued(authorityFile: "a")),
            (["--key", "k", "--https", "--certificate", "c"], .files(certificate: "c", key: "k")), ([], nil),
        ] as [([String], ProviderOptions.HTTPS?)])
    func `the options say how connections are encrypted`(arguments: [String], https: ProviderOptions.HTTPS?) throws {
        #expect(try ProviderOptions(arguments: arguments).https == https)
    }

    @Test(arguments: ["--help", "-h"])
    func `help can be requested`(option: String) throws {
        #expect(try ProviderOptions(arguments: [option]).showsHelp)
        #expect(ProviderOptions.help.contains("--rotation none|rotate"))
    }

    @Test(arguments: [
        ["--nothing"], ["file"], ["--listen"], ["--listen", "localhost:1"], ["--listen", "127.0.0.1"],
        ["--listen", "127.0.0.1:65536"], ["--listen", "127.0.0.1:+1"], ["--listen", "::1:80"],
        ["--listen", "[127.0.0.1]:1"],
        ["--profile", "TIDAL"], ["--client", ""], ["--client", ":s"], ["--client", "a:"],
        ["--client", "a", "--client", "a:b"],
        ["--public-base-url", "ftp://a"], ["--public-base-url", "https://a?b"], ["--rotation", "yes"],
        ["--grace", "1"],
        ["--rotation", "none", "--grace", "1"], ["--grace", "-1", "--rotation", "rotate"],
        ["--access-token-lifetime", "0"], ["--access-token-lifetime", "1.5"], ["--code-lifetime", "1000000001"],
        ["--dead-refresh-token-status", "403"], ["--profile", "rfc", "--profile", "rfc"],
        ["--no-refresh-tokens", "--no-refresh-tokens"],
        ["--ca-file", "a"], ["--ca-file"], ["--certificate", "c", "--key", "k"], ["--certificate", "c", "--https"],
        ["--key", "k", "--https"], ["--ca-file", "a", "--https", "--certificate", "c", "--key", "k"],
        ["--https", "--https"],
        ["--access-tokens", "JWT"], ["--signing-algorithm", "none"], ["--signing-algorithm", "HS256"],
        ["--rotation", "none", "--grace", "1", "--profile", "duckduckgo"],
    ])
    func `a mistake is reported with the option`(arguments: [String]) {
        let mistake = #expect(throws: ProviderOptions.Mistake.self) { try ProviderOptions(arguments: arguments) }
        #expect(mistake?.description.contains(arguments[0]) == true)
    }
}

@Suite struct `Base URL` {
    @Test(arguments: [
        ("http://127.0.0.1:8181", "http://127.0.0.1:8181"), ("https://id.test/", "https://id.test"),
        ("https://id.test/a/b//", "https://id.test/a/b"), ("http://[::1]:80", "http://[::1]:80"),
    ])
    func `slashes at the end are dropped`(text: String, url: String) {
        #expect(BaseURL(text)?.description == url)
    }

    @Test(arguments: [
        "", "id.test", "ftp://id.test", "http://", "http:///a", "https://a?b", "https://a#b", "https://a b",
        "https://u@a",
        "https://a\r\nb", "HTTP://a", "https://ä.test",
    ])
    func `any other text is refused`(text: String) {
        #expect(BaseURL(text) == nil)
    }
}
