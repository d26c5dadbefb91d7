import Cryptography
import ExternalText
import GroundTesting
import HTTPCodec
import OAuth
import Testing

@Suite struct `Token request` {
    static let code = TokenRequest.authorizationCode(
        code: SecretBytes(utf8: "c/1+2="), redirectURI: "https://broker.example/login/callback",
        codeVerifier: SecretBytes(utf8: "v-1"))
    static let refresh = TokenRequest.refresh(SecretBytes(utf8: "r&1"))

    static let upgrade = TokenRequest.upgrade(SecretBytes(utf8: "r&1"), grantType: "update_client")
    static let deviceCode = TokenRequest.deviceCode(SecretBytes(utf8: "d=1"))

    typealias Authentication = ProviderPreset.ClientAuthentication

    private func form(
        _ request: TokenRequest, _ client: ClientConfiguration, at server: AuthorizationServer
    ) -> (form: String, authorization: String?) {
        let (pairs, authorization) = request.form(for: client, at: server)
        return (FormEncoding.encode(pairs), authorization)
    }

    static let deviceForm =
        "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Adevice_code&device_code=d%3D1"

    static let codeForm =
        "grant_type=authorization_code&code=c%2F1%2B2%3D"
        + "&redirect_uri=https%3A%2F%2Fbroker.example%2Flogin%2Fcallback&code_verifier=v-1"

    @Test(
        arguments: [
            (
                code,
                "grant_type=authorization_code&client_id=client-1&code_verifier=v-1&code=c%2F1%2B2%3D"
                    + "&redirect_uri=https%3A%2F%2Fbroker.example%2Flogin%2Fcallback"
            ), (refresh, "grant_type=refresh_token&client_id=client-1&refresh_token=r%261"),
        ] as [(TokenRequest, String)])
    func `duckduckgo has the parameters in the order of its applications`(request: TokenRequest, expected: String) {
        let server = AuthorizationServer(
            preset: .duckduckgo, authorizationEndpoint: "https://id.example/authorize",
            tokenEndpoint: "https://id.example/token", revocationEndpoint: nil, issuer: nil,
            announcesIssuerInResponses: false, clientAuthentication: .none, pinnedCertificates: [])
        let (form, authorization) = form(request, Sample.client(secret: nil, uniqueKey: nil), at: server)
        #expect(form == expected)
        #expect(authorization == nil)
    }

    // T62 T67 X07
    @Test(
        arguments: [
            (code, "k", "s", codeForm + "&scope=a%20b&client_unique_key=k&client_id=client-1&client_secret=s"),
            (code, nil, nil, codeForm + "&scope=a%20b&client_id=client-1"),
            (code, "", "s", codeForm + "&scope=a%20b&client_id=client-1&client_secret=s"),
            (
                refresh, "k", "s",
                "grant_type=refresh_token&refresh_token=r%261&scope=a%20b&client_id=client-1&client_secret=s"
            ),
            (refresh, nil, nil, "grant_type=refresh_token&refresh_token=r%261&scope=a%20b&client_id=client-1"),
            (.clientCredentials, "k", "s", "grant_type=client_credentials&client_id=client-1&client_secret=s"),
            (
                upgrade, "k", "s",
                "grant_type=update_client&refresh_token=r%261&scope=a%20b&client_unique_key=k&client_id=client-1"
                    + "&client_secret=s"
            ),
            (upgrade, "", nil, "grant_type=update_client&refresh_token=r%261&scope=a%20b&client_id=client-1"),
            (
                deviceCode, "k", "s",
                deviceForm + "&scope=a%20b&client_unique_key=k&client_id=client-1&client_secret=s"
            ),
            (deviceCode, nil, nil, deviceForm + "&scope=a%20b&client_id=client-1"),
        ] as [(TokenRequest, String?, String?, String)])
    func `tidal has the scopes and the client in the form`(
        request: TokenRequest, uniqueKey: String?, secret: String?, expected: String
    ) {
        let (form, authorization) = form(request, Sample.client(secret: secret, uniqueKey: uniqueKey), at: Sample.tidal)
        #expect(form == expected)
        #expect(authorization == nil)
    }

    @Test(
        arguments: [
            (code, codeForm), (refresh, "grant_type=refresh_token&refresh_token=r%261"),
            (.clientCredentials, "grant_type=client_credentials&scope=a%20b"), (deviceCode, deviceForm),
            (upgrade, "grant_type=update_client&refresh_token=r%261&scope=a%20b"),
        ] as [(TokenRequest, String)])
    func `oidc has what RFC 6749 has, and the client in the header`(request: TokenRequest, expected: String) {
        let (form, authorization) = form(request, Sample.client(uniqueKey: "k"), at: Sample.oidc)
        #expect(form == expected + "&client_id=client-1")
        #expect(authorization == "Basic " + Base64.encode(Array("client-1:secret-1".utf8)))
        var server = Sample.oidc
        server.repeatsClientID = false
        #expect(self.form(request, Sample.client(uniqueKey: "k"), at: server).form == expected)
    }

    // Q14 Q15
    @Test(
        arguments: [
            (code, codeForm), (refresh, "grant_type=refresh_token&refresh_token=r%261"),
            (.clientCredentials, "grant_type=client_credentials&scope=a%20b"), (deviceCode, deviceForm),
            (upgrade, "grant_type=update_client&refresh_token=r%261&scope=a%20b"),
        ] as [(TokenRequest, String)])
    func `oidc by client_secret_post has the client in the form`(request: TokenRequest, expected: String) {
        let server = Sample.server(.oidc, authentication: .clientSecretPost)
        let (form, authorization) = form(request, Sample.client(), at: server)
        #expect(form == expected + "&client_id=client-1&client_secret=secret-1")
        #expect(authorization == nil)
    }

    @Test(arguments: Authentication.allCases)
    func `a client without a secret sends only its identifier, whatever the method`(method: Authentication) {
        let server = Sample.server(.oidc, authentication: method)
        let (form, authorization) = form(Self.refresh, Sample.client(secret: nil), at: server)
        #expect(form == "grant_type=refresh_token&refresh_token=r%261&client_id=client-1")
        #expect(authorization == nil)
    }

    @Test func `with the method none the secret is not sent`() {
        let server = Sample.server(.oidc, authentication: Authentication.none)
        let (form, authorization) = form(Self.code, Sample.client(), at: server)
        #expect(form == Self.codeForm + "&client_id=client-1")
        #expect(authorization == nil)
    }

    @Test(arguments: [
        ("id", "secret", "id:secret"), ("i:d", "se:cret", "i%3Ad:se%3Acret"), ("i d", "a+b%c", "i%20d:a%2Bb%25c"),
        ("ä", "\u{1f511}", "%C3%A4:%F0%9F%94%91"), ("-._~", "&=/?", "-._~:%26%3D%2F%3F"),
        ("https://app.example/", "s\"\\\n", "https%3A%2F%2Fapp.example%2F:s%22%5C%0A"),
    ])
    func `basic encodes both parts before it joins them`(id: String, secret: String, joined: String) throws {
        let (_, authorization) = form(Self.refresh, Sample.client(id: id, secret: secret), at: Sample.oidc)
        let value = try #require(authorization)
        #expect(value.hasPrefix("Basic "))
        let bytes = try #require(Base64.decode(String(value.dropFirst("Basic ".count))))
        #expect(String(decoding: bytes, as: UTF8.self) == joined)
    }

    @Test func `special characters in identifier and secret survive the form`() throws {
        let odd = "a&client_id=x %+ä\u{1f511}\n"
        let client = Sample.client(id: odd, secret: odd, uniqueKey: odd)
        let pairs = try FormEncoding.decode(form(Self.code, client, at: Sample.tidal).form)
        for name in ["client_id", "client_secret", "client_unique_key"] {
            #expect(pairs.filter { $0.name == name } == [.init(name, odd)])
        }
    }

    @Test(arguments: [Sample.tidal, Sample.oidc], [code, refresh, .clientCredentials, upgrade, deviceCode])
    func `an empty set of scopes is not sent`(server: AuthorizationServer, request: TokenRequest) {
        let (pairs, _) = request.form(for: Sample.client(scopes: []), at: server)
        #expect(!pairs.contains { $0.name == "scope" })
    }

    @Test(arguments: [Sample.tidal, Sample.oidc], [code, refresh, .clientCredentials, upgrade, deviceCode])
    func `no parameter is sent twice`(server: AuthorizationServer, request: TokenRequest) {
        for method in Authentication.allCases {
            var server = server
            server.clientAuthentication = method
            let names = request.form(for: Sample.client(uniqueKey: "k"), at: server).pairs.map(\.name)
            #expect(Set(names).count == names.count)
            #expect(names.first == "grant_type")
        }
    }

    @Test func `each request knows its grant`() {
        #expect(Self.code.grant.rawValue == "authorization_code")
        #expect(Self.refresh.grant.rawValue == "refresh_token")
        #expect(TokenRequest.clientCredentials.grant.rawValue == "client_credentials")
        #expect(Self.upgrade.grant.rawValue == "upgrade")
        #expect(Self.deviceCode.grant.rawValue == "device_code")
    }

    @Test func `spotify has the client in the header and no scopes`() {
        let spotify = Sample.server(.spotify)
        for (request, expected) in [
            (Self.code, Self.codeForm), (Self.refresh, "grant_type=refresh_token&refresh_token=r%261"),
            (.clientCredentials, "grant_type=client_credentials"),
        ] {
            let (form, authorization) = form(request, Sample.client(uniqueKey: "k"), at: spotify)
            #expect(form == expected)
            #expect(authorization == "Basic " + Base64.encode(Array("client-1:secret-1".utf8)))
            let named = self.form(request, Sample.client(secret: nil), at: spotify)
            #expect(named.form == expected + "&client_id=client-1")
            #expect(named.authorization == nil)
        }
    }
}
