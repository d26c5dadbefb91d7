import BrokerCore
import BrokerTesting
import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

/// Access tokens and refresh tokens of a tenant that has its tokens verified.
@Suite struct `Verified tokens` {
    private static let provider = SigningProvider(keys: ["k1", "k2"])
    private static let keysAddress = SigningProvider.keysAddress
    private static let members = #"""
        {"client_id": "c1", \#(SigningProvider.members), "token_verification": {
            "access_token": {"audience": "api", "scope": "read", "leeway": 30},
            "refresh_token": {"audience": "Auth", "scope": "refresh"}}}
        """#

    /// A broker whose provider publishes its keys.
    private static func broker(_ tenant: String = members) async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        broker.transport.standing(at: keysAddress, .json(200, provider.keySet))
        await broker.makeTenant("t1", tenant)
        return broker
    }

    private static func access(
        _ name: String, at now: Timestamp, of subject: String = "ada", scope: String = "read", audience: String = "api",
        issuer: String = SigningProvider.issuer, key: Int = 0
    ) -> String {
        provider.signed(
            scope, audience: audience, of: subject, at: now, name: "a-" + name, issuer: issuer, key: key)
    }

    private static func refresh(
        _ name: String, at now: Timestamp, scope: String = "refresh", audience: String = "Auth"
    ) -> String {
        provider.signed(scope, audience: audience, at: now, name: "r-" + name)
    }

    private static func body(_ access: String, _ refresh: String?) -> String {
        BrokerHarness.token(access, refresh: refresh)
    }

    /// Ada is logged in with the tokens `1`, which expire in an hour.
    private static func loggedIn(
        _ tenant: String = members
    ) async throws -> (broker: BrokerHarness, access: String, refresh: String) {
        let broker = try await broker(tenant)
        let now = broker.time.now
        let (access, refresh) = (access("1", at: now), refresh("1", at: now))
        await broker.logIn(token: body(access, refresh))
        return (broker, access, refresh)
    }

    // MARK: What is believed

    @Test func `are served, and name the user`() async throws {
        let (broker, access, _) = try await Self.loggedIn()
        let answer = await broker.get()
        #expect((answer.status, answer.token, answer.json["user_id"]?.text) == (200, access, "ada"))
        #expect(broker.transport.standingSeen.count == 1)
    }

    @Test func `are verified by a refresh with all events, and without another request for keys`() async throws {
        let (broker, _, _) = try await Self.loggedIn()
        broker.time.advance(by: .seconds(1800))
        let next = Self.access("2", at: broker.time.now)
        broker.transport.enqueue(.json(200, Self.body(next, Self.refresh("2", at: broker.time.now))))
        #expect(await broker.get("policy=local_force_refresh").token == next)
        #expect(broker.transport.standingSeen.count == 1)
        let events = try await broker.events()
        #expect(
            events.suffix(10).map(\.kind.rawValue) == [
                "refresh.started", "refresh.refreshing_access_token", "refresh.refreshed_access_token",
                "refresh.fetching_jwks", "refresh.fetched_jwks", "refresh.verifying_access_token",
                "refresh.verifying_refresh_token", "refresh.saving_tokens", "credentials.updated", "refresh.succeeded",
            ])
        #expect(Set(events.suffix(10).compactMap { $0.data["refresh_id"]?.text }).count == 1)
    }

    /// Tokens that are not believed, by what is wrong with them.
    private static let unbelieved: [(fault: String, token: @Sendable (Timestamp) -> String)] = [
        ("another issuer", { access("2", at: $0, issuer: "https://other.example") }),
        ("another audience", { access("2", at: $0, audience: "web") }),
        ("a missing scope", { access("2", at: $0, scope: "write") }),
        ("expired by more than the tolerance", { access("2", at: $0.advanced(by: .seconds(-3630))) }),
        ("from the future", { access("2", at: $0.advanced(by: .seconds(31))) }),
        ("another's signature", { SigningProvider().signed("read", audience: "api", at: $0) }),
        (
            "changed claims",
            { now in
                let parts = access("2", at: now).split(separator: ".")
                let other = access("3", at: now, of: "eve").split(separator: ".")
                return "\(parts[0]).\(other[1]).\(parts[2])"
            }
        ),
        (
            "no signature",
            { now in
                let claims = access("2", at: now).split(separator: ".")[1]
                return Base64Text.encode(#"{"alg":"none","kid":"k1"}"#) + ".\(claims)."
            }
        ),
        (
            "an HMAC",
            { now in
                let parts = access("2", at: now).split(separator: ".")
                return Base64Text.encode(#"{"alg":"HS256","kid":"k1"}"#) + ".\(parts[1]).\(parts[2])"
            }
        ),
        ("an opaque text", { _ in "opaque" }),
    ]

    @Test(arguments: unbelieved.indices)
    func `that are not believed are never served, and those before stay`(index: Int) async throws {
        let (broker, access, _) = try await Self.loggedIn()
        broker.time.advance(by: .seconds(60))
        let now = broker.time.now
        let (bad, successor) = (Self.unbelieved[index].token(now), Self.refresh("2", at: now))
        broker.transport.enqueue(.json(200, Self.body(bad, successor)))
        let refused = await broker.get("policy=local_force_refresh")
        #expect((refused.status, refused.code) == (502, "token_response_error"))
        #expect(!refused.text.contains(bad))
        #expect(await broker.get().token == access)
        #expect(try await broker.events().last?.kind.rawValue == "refresh.failed")

        // The provider has spent the refresh token before: the session goes on with the one that came last.
        let good = Self.access("4", at: now)
        broker.transport.enqueue(.json(200, Self.body(good, Self.refresh("4", at: now))))
        #expect(await broker.get("policy=local_force_refresh").token == good)
        #expect(broker.transport.seen.last?.form["refresh_token"] == successor)
        #expect(!broker.log.joined().contains(bad) || bad == "opaque")
        #expect(broker.transport.unforeseen == 0)
    }

    @Test(arguments: [("refresh", "web"), ("read", "Auth")])
    func `are refused with a refresh token that says something else`(scope: String, audience: String) async throws {
        let (broker, access, _) = try await Self.loggedIn()
        let now = broker.time.now
        broker.transport.enqueue(
            .json(
                200, Self.body(Self.access("2", at: now), Self.refresh("2", at: now, scope: scope, audience: audience)))
        )
        let refused = await broker.get("policy=local_force_refresh")
        #expect((refused.status, refused.code) == (502, "token_response_error"))
        #expect(await broker.get("policy=local").token == access)
        #expect(await broker.status().isLoggedIn == true)
    }

    @Test func `are believed within the tolerance for clocks`() async throws {
        for seconds in [-3629, 30] as [Int64] {
            let (broker, _, _) = try await Self.loggedIn()
            let now = broker.time.now
            let next = Self.access("2", at: now.advanced(by: .seconds(seconds)))
            broker.transport.enqueue(.json(200, Self.body(next, Self.refresh("2", at: now))))
            #expect(await broker.get("policy=local_force_refresh").token == next, "\(seconds)")
        }
    }

    @Test func `of a login that are not believed end it, and the session before stays`() async throws {
        let (broker, access, _) = try await Self.loggedIn()
        let now = broker.time.now
        let login = await broker.beginLogin()
        broker.transport.enqueue(.json(200, Self.body(Self.access("2", at: now, audience: "web"), nil)))
        let answer = await broker.call(.get, "/login/callback?code=c-2&state=\(login.state)", key: nil)
        #expect(answer.status == 502)
        let progress = await broker.progress(login.id)
        #expect((progress.json["status"]?.text, progress.json["error"]?.text) == ("failed", "token_response_error"))
        #expect(await broker.get().token == access)
        #expect(broker.transport.seen.count == 2)
    }

    @Test func `of another user put the session aside`() async throws {
        let (broker, access, _) = try await Self.loggedIn()
        let now = broker.time.now
        let newest = Self.refresh("2", at: now)
        broker.transport.enqueue(.json(200, Self.body(Self.access("2", at: now, of: "eve"), newest)))
        #expect(await broker.get("policy=local_force_refresh").code == "token_response_error")
        let aside = try await broker.quarantined()?.credentials
        #expect((aside?.accessToken.revealedText, aside?.refreshToken?.revealedText) == (access, newest))
        #expect(await broker.get("policy=local").code == "missing_token_container")
    }

    // MARK: Credentials from elsewhere

    @Test func `that a caller brings are verified before they are stored`() async throws {
        let broker = try await Self.broker()
        let now = broker.time.now
        func put(_ token: String) async -> BrokerHarness.Answer {
            await broker.call(
                .put, "/credentials", tenant: "t1",
                body: #"{"credentials": {"level": "user", "client_id": "c1", "user_id": "eve", "token": "\#(token)"}}"#)
        }
        let refused = await put(Self.access("1", at: now, audience: "web"))
        #expect((refused.status, refused.code) == (422, "illegal_argument"))
        #expect(await broker.get("policy=local").code == "missing_token_container")

        let good = Self.access("1", at: now)
        let stored = await put(good)
        // Who the user is, the token says, and not the caller.
        #expect((stored.status, stored.json["user_id"]?.text) == (200, "ada"))
        #expect(await broker.get().token == good)
    }

    @Test func `that a caller brings expire when they say so themselves`() async throws {
        let broker = try await Self.broker()
        let token = Self.access("1", at: broker.time.now)
        let stored = await broker.call(
            .put, "/credentials", tenant: "t1",
            body:
                #"{"credentials": {"level": "user", "client_id": "c1", "expires": "2090-01-01T00:00:00Z", "token": "\#(token)"}}"#
        )
        #expect(stored.status == 200)
        let expiry = try #require(TokenResponse.expiry(ofToken: WireText(token)))
        #expect(await broker.get().json["expires"]?.text == expiry.description)
    }

    @Test func `that a caller brings are not stored while the keys do not answer`() async throws {
        let broker = try await Self.broker()
        broker.transport.standing(at: Self.keysAddress, .failure(.connectFailed))
        let token = Self.access("1", at: broker.time.now)
        let answer = await broker.call(
            .put, "/credentials", tenant: "t1",
            body: #"{"credentials": {"level": "user", "client_id": "c1", "token": "\#(token)"}}"#)
        #expect((answer.status, answer.code) == (503, "network_error"))
        #expect(await broker.get("policy=local").code == "missing_token_container")
    }

    // MARK: Claims

    @Test func `show their claims, and no token`() async throws {
        let (broker, access, refresh) = try await Self.loggedIn()
        let answer = await broker.call(.get, "/credentials/claims", tenant: "t1")
        #expect(answer.status == 200)
        #expect(answer.json["access_token"]?["header"]?["alg"]?.text == "ES256")
        #expect(answer.json["access_token"]?["header"]?["kid"]?.text == "k1")
        #expect(answer.json["access_token"]?["claims"]?["scope"]?.text == "read")
        #expect(answer.json["refresh_token"]?["claims"]?["aud"]?.text == "Auth")
        #expect(answer.json["id_token"] == .null)
        for token in [access, refresh] {
            let signature = token.split(separator: ".")[2]
            #expect(!answer.text.contains(signature))
        }
        #expect(answer.fields["Cache-Control"]?.text == "no-store")
    }

    @Test func `have no claims where nothing is stored, or nothing was verified`() async throws {
        let broker = try await Self.broker(#"{"client_id": "c1", \#(SigningProvider.members)}"#)
        let nothing = await broker.call(.get, "/credentials/claims", tenant: "t1")
        #expect((nothing.status, nothing.code) == (404, "missing_token_container"))
        await broker.logIn(token: Self.body(Self.access("1", at: broker.time.now), "r1"))
        let unverified = await broker.call(.get, "/credentials/claims", tenant: "t1")
        #expect((unverified.status, unverified.code) == (424, "illegal_configuration"))
    }

    @Test func `show no claims of a token that is not verified`() async throws {
        let members = #"{"client_id": "c1", \#(SigningProvider.members), "token_verification": {"access_token": {}}}"#
        let (broker, _, _) = try await Self.loggedIn(members)
        let answer = await broker.call(.get, "/credentials/claims", tenant: "t1")
        #expect(answer.json["access_token"]?["claims"]?["sub"]?.text == "ada")
        #expect(answer.json["refresh_token"] == .null)
    }
}
