import BrokerTesting
import DevelopmentProvider
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import Testing

@Suite struct `TIDAL profile` {
    @Test func `a token response has TIDAL's members`() async throws {
        let fixture = ProviderFixture()
        let session = try #require(await fixture.driver.session(user: "alice", scope: "r_usr w_usr")?.object)
        #expect(
            Set(session.keys) == [
                "access_token", "token_type", "expires_in", "refresh_token", "scope", "user_id", "clientName",
            ])
        #expect(session["expires_in"] == .integer(14_400))
        #expect(session["scope"] == .string("r_usr w_usr"))
        #expect(session["clientName"] == .string("The App"))
        #expect((100_000_000..<1_000_000_000).contains(session["user_id"]?.integer ?? 0))
    }

    @Test func `a user's number is derived from the name`() async throws {
        var numbers: [Int64] = []
        for user in ["alice", "alice", " alice ", "bob"] {
            numbers.append(try #require(await ProviderFixture().driver.session(user: user)?["user_id"]?.integer))
        }
        #expect(numbers[0] == numbers[1])
        #expect(numbers[0] == numbers[2])
        #expect(numbers[0] != numbers[3])
        #expect(await ProviderFixture().driver.session(user: "4711")?["user_id"]?.integer == 4711)
    }

    @Test func `an error has exactly four members`() async throws {
        let response = await ProviderFixture().driver.token(.refreshToken, [.init("refresh_token", "x")])
        let members = try #require(response.json?.object)
        #expect(Set(members.keys) == ["status", "error", "sub_status", "error_description"])
        #expect(members["status"]?.integer == 400)
        #expect(members["sub_status"]?.integer == 11101)
        #expect(response.fields["Content-Type"] == "application/json")
    }

    @Test func `an unknown client is 401 with 1005 at every endpoint`() async {
        let driver = ProviderFixture(clientID: "nobody").driver
        expectError(await driver.refresh("x"), "invalid_client", status: 401, subStatus: 1005)
        expectError(
            await driver.post(driver.devicePath, [.init("client_id", "nobody"), .init("scope", "a")]), "invalid_client",
            status: 401, subStatus: 1005)
        expectError(await driver.post(driver.devicePath, []), "invalid_client", status: 401, subStatus: 1005)
    }

    @Test(arguments: [
        ("app", "", 400, "unauthorized_client"), ("confidential", "", 401, "invalid_client"),
        ("confidential", "wrong", 401, "invalid_client"), ("confidential", "s3cret", 200, ""),
    ])
    func `client credentials require the secret`(id: String, secret: String, status: Int, error: String) async {
        let driver = ProviderFixture(clientID: id).driver
        let response = await driver.token(.clientCredentials, [.init("client_secret", secret), .init("scope", "a")])
        if status == 200 {
            #expect(response.status == .ok)
            #expect(response.json?["refresh_token"] == nil)
            #expect(response.json?["user_id"] == nil)
            #expect(response.json?["scope"]?.string == "a")
            #expect(response.json?["clientName"]?.string == "Backend")
        } else {
            expectError(response, error, status: status)
        }
    }

    @Test(arguments: [("", true), ("s3cret", true), ("S3cret", false), ("s3cret ", false), ("s3cre", false)])
    func `other grants check a secret only when one is sent`(secret: String, works: Bool) async throws {
        let fixture = ProviderFixture(clientID: "confidential")
        let token = try await fixture.refreshToken()
        let response = await fixture.driver.token(
            .refreshToken, [.init("refresh_token", token), .init("client_secret", secret)])
        #expect((response.status == .ok) == works)
        if !works { expectError(response, "invalid_client", status: 401, subStatus: 1005) }
    }

    @Test func `Basic credentials are ignored`() async {
        let driver = ProviderFixture(clientID: "confidential").driver
        let response = await driver.post(
            driver.tokenPath, [.init("grant_type", "client_credentials")],
            fields: ["Authorization": "Basic Y29uZmlkZW50aWFsOnMzY3JldA=="])
        expectError(response, "invalid_client", status: 401)
    }

    @Test func `parameters that are repeated in the query and decoded in the body are accepted`() async throws {
        let fixture = ProviderFixture()
        let code = try #require(await fixture.driver.login())
        let pairs: [FormEncoding.Pair] = [
            .init("code", code), .init("client_id", "app"), .init("grant_type", "authorization_code"),
            .init("redirect_uri", fixture.driver.redirectURI), .init("scope", "r_usr w_usr"),
            .init("code_verifier", ProviderDriver.verifier),
        ]
        let decoded = pairs.map { $0.name.text + "=" + $0.value.text }.joined(separator: "&") + "&client_secret"
        let response = await fixture.driver.post(
            fixture.driver.tokenPath, body: decoded, query: FormEncoding.encode(pairs) + "&client_secret")
        #expect(response.status == .ok)
        #expect(fixture.provider.requests.last?.queryParameters.contains("code") == true)
    }

    @Test func `a body that cannot be decoded is accepted with a query that can be decoded`() async throws {
        let driver = ProviderFixture(clientID: "confidential").driver
        let query = "grant_type=client_credentials&client_id=confidential&client_secret=s3cret&scope=a%25"
        #expect(await driver.post(driver.tokenPath, body: "scope=a%", query: query).status == .ok)
        expectError(await driver.post(driver.tokenPath, body: "scope=a%"), "invalid_request")
        expectError(await driver.post(driver.tokenPath, body: "", query: "scope=a%"), "invalid_request")
    }

    @Test(arguments: ["scope=a&scope=b", "client_id=confidential&client_id=app"])
    func `contradictory repetitions are refused`(pairs: String) async {
        let driver = ProviderFixture().driver
        expectError(
            await driver.post(driver.tokenPath, body: "grant_type=client_credentials&" + pairs), "invalid_request")
    }

    @Test(arguments: [
        "application/x-www-form-urlencoded", "application/x-www-form-urlencoded; charset=UTF-8",
        "APPLICATION/X-WWW-FORM-URLENCODED",
    ])
    func `spaces may be encoded in either way`(type: String) async {
        let driver = ProviderFixture(clientID: "confidential").driver
        let start = "grant_type=client_credentials&client_id=confidential&client_secret=s3cret&scope="
        for scope in ["a+b", "a%20b", "a b"] {
            let response = await driver.post(driver.tokenPath, body: start + scope, fields: ["Content-Type": type])
            #expect(response.json?["scope"]?.string == "a b")
        }
    }

    @Test(arguments: ["application/json", "text/plain", ""])
    func `another content type is refused`(type: String) async {
        let driver = ProviderFixture().driver
        expectError(
            await driver.post(driver.tokenPath, body: "grant_type=x", fields: ["Content-Type": type]), "invalid_request"
        )
    }

    @Test(arguments: [
        "/token", "/device_authorization", "/revoke", "/.well-known/oauth-authorization-server", "/jwks", "/",
    ])
    func `the other profile's paths are not found`(path: String) async {
        let provider = ProviderFixture().provider
        #expect(await provider.respond(to: Request(method: .get, path: path)).status == .notFound)
        #expect(await provider.respond(to: Request(method: .post, path: path)).status == .notFound)
    }

    @Test func `the token endpoint accepts POST only`() async {
        let driver = ProviderFixture().driver
        let response = await driver.get(driver.tokenPath)
        #expect(response.status == .methodNotAllowed)
        #expect(response.fields["Allow"] == "POST")
    }
}

@Suite struct `RFC profile` {
    @Test func `a token response has RFC 6749's members`() async throws {
        let session = try #require(await ProviderFixture(.rfc).driver.session()?.object)
        #expect(Set(session.keys) == ["access_token", "token_type", "expires_in", "refresh_token", "scope"])
        #expect(session["expires_in"] == .integer(3600))
        let unscoped = try #require(await ProviderFixture(.rfc).driver.session(scope: "")?.object)
        #expect(unscoped["scope"] == nil)
    }

    @Test func `an error has RFC 6749's members`() async throws {
        let response = await ProviderFixture(.rfc).driver.token(.refreshToken, [])
        #expect(Set(try #require(response.json?.object).keys) == ["error", "error_description"])
    }

    @Test(arguments: [
        ("Basic Y29uZmlkZW50aWFsOnMzY3JldA==", 200), ("basic Y29uZmlkZW50aWFsOnMzY3JldA==", 200),
        ("Basic Y29uZmlkZW50aWFsOnMzY3JlJTc0", 200), ("Basic Y29uZmlkZW50aWFsOndyb25n", 401),
        ("Basic Y29uZmlkZW50aWFs", 401), ("Basic !", 401), ("Basic", 401), ("Bearer x", 401), ("Basic YXBwOng=", 401),
    ])
    func `client_secret_basic works with form-encoded credentials`(field: String, status: Int) async {
        let driver = ProviderFixture(.rfc).driver
        let response = await driver.post(
            driver.tokenPath, [.init("grant_type", "client_credentials")], fields: ["Authorization": field])
        #expect(response.status.code == status)
        if status == 401 {
            expectError(response, "invalid_client", status: 401)
            #expect(response.fields["WWW-Authenticate"]?.text.hasPrefix("Basic ") == true)
        }
        #expect(driver.provider.requests.last?.clientAuthentication == .basic)
    }

    @Test(arguments: [("new", 200), ("old", 200), ("older", 401), ("", 401)])
    func `a former secret is accepted while it is listed`(secret: String, status: Int) async {
        let fixture = ProviderFixture(.rfc, clientID: "confidential")
        fixture.provider.configure { configuration in
            configuration.clients[2].secret = "new"
            configuration.clients[2].formerSecrets = ["old"]
        }
        let answer = await fixture.driver.token(.clientCredentials, [.init("client_secret", secret)])
        #expect(answer.status.code == status)
        fixture.provider.configure { $0.clients[2].formerSecrets = [] }
        let later = await fixture.driver.token(.clientCredentials, [.init("client_secret", secret)])
        #expect(later.status.code == (secret == "new" ? 200 : 401))
    }

    @Test func `the record of an access token remains after its expiry`() async throws {
        let fixture = ProviderFixture()
        let session = try #require(fixture.provider.openSessions(users: ["alice"])?.first)
        fixture.provider.expire(.accessTokens)
        #expect(fixture.provider.introspect(accessToken: session.accessToken) == nil)
        let record = try #require(fixture.provider.record(ofAccessToken: session.accessToken))
        #expect(record.user?.name == "alice")
        #expect(record.expiresAt == fixture.clock.milliseconds)
        #expect(fixture.provider.record(ofAccessToken: "at_unknown") == nil)
    }

    @Test(arguments: [("s3cret", 200), ("wrong", 401), ("", 401)])
    func `client_secret_post works, and a confidential client must show its secret`(secret: String, status: Int) async {
        let driver = ProviderFixture(.rfc, clientID: "confidential").driver
        let response = await driver.token(.clientCredentials, [.init("client_secret", secret)])
        #expect(response.status.code == status)
        let refresh = await driver.token(.refreshToken, [.init("refresh_token", "x"), .init("client_secret", secret)])
        #expect(refresh.json?["error"]?.string == (status == 200 ? "invalid_grant" : "invalid_client"))
    }

    @Test func `credentials in two ways at once are refused`() async {
        let driver = ProviderFixture(.rfc, clientID: "confidential").driver
        let basic: Fields = ["Authorization": "Basic Y29uZmlkZW50aWFsOnMzY3JldA=="]
        let grant = FormEncoding.Pair("grant_type", "client_credentials")
        expectError(
            await driver.post(driver.tokenPath, [grant, .init("client_secret", "s3cret")], fields: basic),
            "invalid_client", status: 401)
        expectError(
            await driver.post(driver.tokenPath, [grant, .init("client_id", "app")], fields: basic), "invalid_client",
            status: 401)
        let same = await driver.post(driver.tokenPath, [grant, .init("client_id", "confidential")], fields: basic)
        #expect(same.status == .ok)
    }

    @Test func `a public client gets no client credentials and has no secret`() async {
        let driver = ProviderFixture(.rfc).driver
        expectError(await driver.token(.clientCredentials, []), "unauthorized_client")
        expectError(
            await driver.token(.refreshToken, [.init("refresh_token", "x"), .init("client_secret", "y")]),
            "invalid_client", status: 401)
    }

    @Test(arguments: ["code=x", "client_secret=x", "refresh_token=x", "grant_type=refresh_token"])
    func `parameters in the URL are refused`(query: String) async {
        let driver = ProviderFixture(.rfc).driver
        let response = await driver.post(
            driver.tokenPath, [.init("grant_type", "refresh_token"), .init("client_id", "app")], query: query)
        expectError(response, "invalid_request")
        let other = await driver.post(
            driver.tokenPath, [.init("grant_type", "client_credentials"), .init("client_id", "app")], query: "trace=1")
        expectError(other, "unauthorized_client")
    }

    @Test func `equal repetitions are refused, too`() async {
        let driver = ProviderFixture(.rfc).driver
        expectError(
            await driver.post(driver.tokenPath, body: "grant_type=refresh_token&client_id=app&client_id=app"),
            "invalid_request")
    }

    @Test(arguments: [
        ("", "invalid_request"), ("password", "unsupported_grant_type"), ("Refresh_Token", "unsupported_grant_type"),
    ])
    func `a missing grant type and an unknown one give different errors`(grant: String, error: String) async {
        let driver = ProviderFixture(.rfc).driver
        expectError(
            await driver.post(driver.tokenPath, [.init("grant_type", grant), .init("client_id", "app")]), error)
    }

    // MARK: Revocation

    @Test func `revoking a refresh token ends the session`() async throws {
        let fixture = ProviderFixture(.rfc)
        let session = try #require(await fixture.driver.session())
        let refreshToken = try #require(session["refresh_token"]?.text)
        let accessToken = try #require(session["access_token"]?.text)
        let answer = await fixture.driver.post(
            "/revoke",
            [.init("token", refreshToken), .init("token_type_hint", "refresh_token"), .init("client_id", "app")])
        #expect(answer.status == .ok)
        expectError(await fixture.driver.refresh(refreshToken), "invalid_grant")
        #expect(fixture.provider.introspect(accessToken: accessToken) == nil)
        #expect(fixture.provider.ledger.users.first?.families.first?.family.revocation?.cause == .client)
    }

    @Test func `revoking an access token leaves the session`() async throws {
        let fixture = ProviderFixture(.rfc)
        let session = try #require(await fixture.driver.session())
        let accessToken = try #require(session["access_token"]?.text)
        let answer = await fixture.driver.post("/revoke", [.init("token", accessToken), .init("client_id", "app")])
        #expect(answer.status == .ok)
        #expect(fixture.provider.introspect(accessToken: accessToken) == nil)
        #expect(await fixture.driver.refresh(try #require(session["refresh_token"]?.text)).status == .ok)
    }

    @Test func `revocation authenticates the client`() async throws {
        let fixture = ProviderFixture(.rfc)
        let token = try await fixture.refreshToken()
        let driver = fixture.driver
        #expect(await driver.post("/revoke", [.init("token", "unknown"), .init("client_id", "app")]).status == .ok)
        expectError(await driver.post("/revoke", [.init("client_id", "app")]), "invalid_request")
        expectError(await driver.post("/revoke", [.init("token", token)]), "invalid_client", status: 401)
        expectError(
            await driver.post("/revoke", [.init("token", token), .init("client_id", "other")]), "invalid_grant")
        expectError(
            await driver.post("/revoke", [.init("token", token), .init("client_id", "confidential")]),
            "invalid_client", status: 401)
        #expect(await driver.refresh(token).status == .ok)
    }

    // MARK: Metadata

    @Test(arguments: ["/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"])
    func `metadata names the endpoints`(path: String) async throws {
        let fixture = ProviderFixture(.rfc) { $0.baseURL = BaseURL("https://id.test")! }
        let response = await fixture.driver.get(path)
        #expect(response.status == .ok)
        #expect(response.fields["Content-Type"] == "application/json")
        let metadata = try #require(response.json)
        #expect(metadata["issuer"]?.string == "https://id.test")
        #expect(metadata["authorization_endpoint"]?.string == "https://id.test/authorize")
        #expect(metadata["token_endpoint"]?.string == "https://id.test/token")
        #expect(metadata["device_authorization_endpoint"]?.string == "https://id.test/device_authorization")
        #expect(metadata["revocation_endpoint"]?.string == "https://id.test/revoke")
        #expect(metadata["jwks_uri"]?.string == "https://id.test/jwks")
        #expect(metadata["code_challenge_methods_supported"]?.array == [.string("S256")])
        #expect(metadata["response_types_supported"]?.array == [.string("code")])
        #expect(metadata["authorization_response_iss_parameter_supported"]?.bool == true)
        #expect(metadata["grant_types_supported"]?.array?.contains(.string("update_client")) == false)
        #expect(await fixture.driver.get("/jwks").json?["keys"]?.array?.count == 2)
        fixture.provider.configure { $0.announcesResponseIssuer = false }
        let quiet = await fixture.driver.get(path).json
        #expect(quiet?["authorization_response_iss_parameter_supported"]?.bool == false)
    }

    @Test(arguments: [
        "/.well-known/oauth-authorization-server/tenant/one", "/tenant/one/.well-known/openid-configuration",
    ])
    func `an issuer with a path has its metadata where the RFCs put it`(path: String) async throws {
        let fixture = ProviderFixture(.rfc) { $0.baseURL = BaseURL("https://id.test/tenant/one/")! }
        let metadata = try #require(await fixture.driver.get(path).json)
        #expect(metadata["issuer"]?.string == "https://id.test/tenant/one")
        #expect(metadata["token_endpoint"]?.string == "https://id.test/tenant/one/token")
        let page = await fixture.driver.get("/tenant/one/authorize", fixture.driver.authorizationRequest())
        #expect(ProviderForm(html: page.text)?.action == "/tenant/one/authorize")
    }

    @Test(arguments: [
        "/.well-known", "/.well-known/x", "/.well-known/openid-configuration/x", "/v1/oauth2/token", "/authorize/",
    ])
    func `other paths are not found`(path: String) async {
        #expect(await ProviderFixture(.rfc).driver.get(path).status == .notFound)
    }
}
