import BrokerTesting
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import Testing

@testable import DevelopmentProvider

@Suite struct `Refresh tokens` {
    @Test(arguments: ProviderProfile.withLoginPage)
    func `without rotation a token stays valid and no new one is sent`(profile: ProviderProfile) async throws {
        let fixture = ProviderFixture(profile)
        let token = try await fixture.refreshToken()
        for _ in 0..<3 {
            let response = await fixture.driver.refresh(token)
            #expect(response.status == .ok)
            #expect(response.json?["refresh_token"] == nil)
            #expect(fixture.isActive(response))
        }
        let record = try #require(fixture.provider.ledger.users.first?.families.first?.refreshTokens.first)
        #expect(record.presentations == 3)
        #expect(record.supersededAt == nil)
        #expect(
            fixture.provider.requests.last?.refresh
                == RefreshTrace(outcome: .kept, family: 1, presentedGeneration: 1, issuedGeneration: nil))
    }

    @Test func `with rotation each use gives the next one`() async throws {
        let fixture = ProviderFixture(.rfc) { $0.rotation = .rotate(grace: .zero) }
        var token = try await fixture.refreshToken()
        for generation in 2...4 {
            let response = await fixture.driver.refresh(token)
            let next = try #require(response.json?["refresh_token"]?.text)
            #expect(next != token)
            token = next
            #expect(fixture.provider.requests.last?.refresh?.issuedGeneration == generation)
        }
        let family = try #require(fixture.provider.ledger.users.first?.families.first)
        #expect(family.refreshTokens.map(\.generation) == [1, 2, 3, 4])
        #expect(family.refreshTokens.map(\.predecessor) == [nil, 1, 2, 3])
        #expect(family.refreshTokens.map(\.presentations) == [1, 1, 1, 0])
        #expect(family.family.revocation == nil)
    }

    @Test(arguments: [0, 1])
    func `without grace a used token revokes its family`(milliseconds: Int) async throws {
        let fixture = ProviderFixture(.rfc) { $0.rotation = .rotate(grace: .zero) }
        let first = try await fixture.refreshToken()
        let response = await fixture.driver.refresh(first)
        let second = try #require(response.json?["refresh_token"]?.text)
        fixture.clock.advance(by: .milliseconds(milliseconds))
        expectError(await fixture.driver.refresh(first), "invalid_grant")
        #expect(fixture.provider.requests.last?.refresh?.outcome == .reused)
        expectError(await fixture.driver.refresh(second), "invalid_grant")
        #expect(fixture.provider.requests.last?.refresh?.outcome == .revoked)
        #expect(!fixture.isActive(response))
        let ledger = fixture.provider.ledger
        #expect(ledger.reuseDetections == 1)
        #expect(ledger.familiesRevoked == 1)
        let family = try #require(ledger.users.first?.families.first?.family)
        #expect(family.revocation == Family.Revocation(at: fixture.clock.milliseconds, cause: .refreshTokenReuse))
        #expect(family.reusesDetectedAt == [fixture.clock.milliseconds])
    }

    @Test func `of a hundred concurrent uses the first succeeds and the second revokes the family`() async throws {
        let fixture = ProviderFixture(.rfc) { $0.rotation = .rotate(grace: .zero) }
        let token = try await fixture.refreshToken()
        let driver = fixture.driver
        let statuses = await withTaskGroup { group in
            for _ in 0..<100 { group.addTask { await driver.refresh(token).status.code } }
            return await group.reduce(into: [:]) { $0[$1, default: 0] += 1 }
        }
        #expect(statuses == [200: 1, 400: 99])
        #expect(fixture.provider.ledger.reuseDetections == 1)
        #expect(fixture.provider.ledger.users.first?.families.first?.refreshTokens.first?.presentations == 100)
    }

    @Test func `a reuse does not affect the user's other logins`() async throws {
        let fixture = ProviderFixture(.rfc) { $0.rotation = .rotate(grace: .zero) }
        let stolen = try await fixture.refreshToken()
        let other = try await fixture.refreshToken()
        _ = await fixture.driver.refresh(stolen)
        _ = await fixture.driver.refresh(stolen)
        #expect(await fixture.driver.refresh(other).status == .ok)
        #expect(fixture.provider.ledger.users.first?.families.count == 2)
    }

    @Test(arguments: [(9_999, true), (10_000, false), (10_001, false)])
    func `within the grace period the old token stays valid`(milliseconds: Int, works: Bool) async throws {
        let fixture = ProviderFixture(.rfc) { $0.rotation = .rotate(grace: .seconds(10)) }
        let first = try await fixture.refreshToken()
        let lost = await fixture.driver.refresh(first)
        fixture.clock.advance(by: .milliseconds(milliseconds))
        let replay = await fixture.driver.refresh(first)
        #expect((replay.status == .ok) == works)
        if works {
            #expect(fixture.isActive(lost))
            #expect(fixture.provider.requests.last?.refresh?.outcome == .graceReplay)
            let next = try #require(replay.json?["refresh_token"]?.text)
            #expect(await fixture.driver.refresh(next).status == .ok)
            #expect(fixture.provider.ledger.graceReplays == 1)
        } else {
            expectError(replay, "invalid_grant")
            #expect(fixture.provider.ledger.reuseDetections == 1)
        }
    }

    @Test func `grace is counted from the first use`() async throws {
        let fixture = ProviderFixture(.rfc) { $0.rotation = .rotate(grace: .seconds(10)) }
        let first = try await fixture.refreshToken()
        for _ in 0..<2 {
            #expect(await fixture.driver.refresh(first).status == .ok)
            fixture.clock.advance(by: .seconds(5))
        }
        expectError(await fixture.driver.refresh(first), "invalid_grant")
    }

    @Test func `grace ends when the successor is presented`() async throws {
        let fixture = ProviderFixture(.rfc) { $0.rotation = .rotate(grace: .seconds(10)) }
        let first = try await fixture.refreshToken()
        let second = try #require(await fixture.driver.refresh(first).json?["refresh_token"]?.text)
        #expect(await fixture.driver.refresh(second).status == .ok)
        expectError(await fixture.driver.refresh(first), "invalid_grant")
        #expect(fixture.provider.requests.last?.refresh?.outcome == .reused)
    }

    @Test func `each successor of a replayed token works`() async throws {
        let fixture = ProviderFixture(.rfc) { $0.rotation = .rotate(grace: .seconds(10)) }
        let first = try await fixture.refreshToken()
        let one = try #require(await fixture.driver.refresh(first).json?["refresh_token"]?.text)
        let two = try #require(await fixture.driver.refresh(first).json?["refresh_token"]?.text)
        #expect(await fixture.driver.refresh(two).status == .ok)
        #expect(await fixture.driver.refresh(one).status == .ok)
    }

    @Test(arguments: [(99_999, true), (100_000, false), (100_001, false)])
    func `a refresh token may expire`(milliseconds: Int, works: Bool) async throws {
        let fixture = ProviderFixture { $0.refreshTokenLifetime = .seconds(100) }
        let token = try await fixture.refreshToken()
        fixture.clock.advance(by: .milliseconds(milliseconds))
        #expect((await fixture.driver.refresh(token).status == .ok) == works)
        #expect(fixture.provider.requests.last?.refresh?.outcome == (works ? .kept : .expired))
    }

    @Test func `a refresh token works for its own client only`() async throws {
        var fixture = ProviderFixture()
        let token = try await fixture.refreshToken()
        fixture.driver.clientID = "other"
        expectError(await fixture.driver.refresh(token), "invalid_grant")
        #expect(fixture.provider.requests.last?.refresh?.outcome == .otherClient)
        fixture.driver.clientID = "app"
        #expect(await fixture.driver.refresh(token).status == .ok)
    }

    @Test(arguments: [400, 401])
    func `TIDAL's invalid refresh tokens have the configured status and 11101`(status: Int) async throws {
        let fixture = ProviderFixture { $0.deadRefreshTokenStatus = status }
        expectError(await fixture.driver.refresh("rt_unknown"), "invalid_grant", status: status, subStatus: 11101)
        #expect(fixture.provider.requests.last?.refresh == RefreshTrace(outcome: .unknown))
        // The setting does not apply to other kinds of invalid_grant.
        expectError(await fixture.driver.redeem("ac_unknown"), "invalid_grant", status: 400, subStatus: 1000)
    }

    @Test func `the RFC profile's invalid refresh tokens have 400`() async {
        let fixture = ProviderFixture(.rfc) { $0.deadRefreshTokenStatus = 401 }
        expectError(await fixture.driver.refresh("rt_unknown"), "invalid_grant", status: 400)
    }

    @Test func `a refresh may request fewer scopes once but not more`() async throws {
        let fixture = ProviderFixture(.rfc) { $0.rotation = .rotate(grace: .zero) }
        var token = try #require(await fixture.driver.session(scope: "a b")?["refresh_token"]?.text)
        let narrow = await fixture.driver.refresh(token, scope: "a")
        #expect(narrow.json?["scope"]?.string == "a")
        token = try #require(narrow.json?["refresh_token"]?.text)
        expectError(await fixture.driver.refresh(token, scope: "a c"), "invalid_scope")
        #expect(fixture.provider.requests.last?.refresh?.outcome == .refused)
        let whole = await fixture.driver.refresh(token)
        #expect(whole.json?["scope"]?.string == "a b")
    }

    @Test(arguments: [false, true])
    func `a refresh ends the access tokens of its login only where that is configured`(ends: Bool) async throws {
        let fixture = ProviderFixture(.rfc) { $0.refreshEndsAccessTokens = ends }
        let (session, other) = (await fixture.driver.session(), await fixture.driver.session(user: "bob"))
        let access = try [session, other].map { try #require($0?["access_token"]?.text) }
        let renewed = await fixture.driver.refresh(try #require(session?["refresh_token"]?.text))
        #expect(fixture.isActive(renewed))
        #expect(access.map { fixture.provider.introspect(accessToken: $0) != nil } == [!ends, true])
    }

    @Test func `third-party clients get no refresh token`() async throws {
        let fixture = ProviderFixture { $0.issuesRefreshTokens = false }
        let session = try #require(await fixture.driver.session())
        #expect(session["refresh_token"] == nil)
        #expect(session["access_token"]?.string != nil)
        #expect(session["user_id"]?.integer != nil)
        #expect(fixture.provider.ledger.users.first?.families.first?.family.lastGeneration == 0)
    }

    // MARK: update_client

    @Test(arguments: [RefreshTokenRotation.none, .rotate(grace: .zero)])
    func `update_client moves the session to another client`(rotation: RefreshTokenRotation) async throws {
        let client = ProviderClient("new", scopes: ["r_usr", "extra"])
        var fixture = ProviderFixture(clients: [ProviderClient("app"), client]) { $0.rotation = rotation }
        let old = try await fixture.refreshToken(user: "4711")
        fixture.driver.clientID = "new"
        let response = await fixture.driver.token(
            .updateClient,
            [.init("refresh_token", old), .init("scope", "r_usr extra"), .init("client_unique_key", "k")])
        #expect(response.status == .ok)
        #expect(response.json?["user_id"]?.integer == 4711)
        #expect(response.json?["scope"]?.string == "r_usr extra")
        #expect(response.json?["clientName"]?.string == "new")
        let token = try #require(response.json?["refresh_token"]?.text)
        #expect(await fixture.driver.refresh(token).status == .ok)
        let tokens = try #require(fixture.provider.ledger.families(userID: 4711).first?.refreshTokens)
        #expect(tokens.map(\.clientID).prefix(2) == ["app", "new"])
        #expect((tokens[0].supersededAt != nil) == (rotation != .none))
    }

    @Test func `update_client is limited to the new client's scopes and to valid tokens`() async throws {
        var fixture = ProviderFixture(clients: [ProviderClient("app"), ProviderClient("new", scopes: ["r_usr"])])
        let old = try await fixture.refreshToken()
        fixture.driver.clientID = "new"
        expectError(
            await fixture.driver.token(.updateClient, [.init("refresh_token", old), .init("scope", "w_usr")]),
            "invalid_scope")
        expectError(
            await fixture.driver.token(.updateClient, [.init("refresh_token", "rt_x")]), "invalid_grant",
            subStatus: 11101)
        expectError(await fixture.driver.token(.updateClient, []), "invalid_request")
    }

    @Test func `update_client is supported by the tidal profile only`() async throws {
        let fixture = ProviderFixture(.rfc)
        let token = try await fixture.refreshToken()
        expectError(
            await fixture.driver.token(.updateClient, [.init("refresh_token", token)]), "unsupported_grant_type")
    }
}
