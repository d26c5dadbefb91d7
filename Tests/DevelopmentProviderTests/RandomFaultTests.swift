import BrokerTesting
import DevelopmentProvider
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import Testing

@Suite struct `Random faults` {
    /// The outcomes of a number of refreshes of a token that is not rotated.
    private static func outcomes(_ faults: RandomFaults?, count: Int = 200) async throws -> [String] {
        let fixture = ProviderFixture(.rfc)
        let token = try await fixture.refreshToken()
        fixture.provider.disturbAtRandom(faults)
        var outcomes: [String] = []
        for _ in 0..<count {
            let answer = await fixture.driver.refresh(token)
            outcomes.append(answer.abortsConnection ? "dropped" : String(answer.status.code))
        }
        return outcomes
    }

    private static let some: [Fault.Mode: Int] = [.answer: 200, .answerAfterWork: 200, .dropAfterWork: 200]

    @Test func `the same seed affects the same requests, another seed other requests`() async throws {
        let first = try await Self.outcomes(RandomFaults(seed: 1, perMille: Self.some))
        #expect(try await Self.outcomes(RandomFaults(seed: 1, perMille: Self.some)) == first)
        #expect(try await Self.outcomes(RandomFaults(seed: 2, perMille: Self.some)) != first)
        #expect(Set(first) == ["200", "500", "503", "dropped"])
    }

    @Test(arguments: [
        (Fault.Mode.answer, "503"), (.answerAfterWork, "500"), (.dropBeforeWork, "dropped"),
        (.dropAfterWork, "dropped"),
    ])
    func `a rate of a thousand affects all requests`(mode: Fault.Mode, outcome: String) async throws {
        let outcomes = try await Self.outcomes(RandomFaults(seed: 3, perMille: [mode: 1000]), count: 20)
        #expect(outcomes == Array(repeating: outcome, count: 20))
    }

    @Test func `malformed responses are of four kinds, and their requests are processed`() async throws {
        let fixture = ProviderFixture(.rfc)
        let token = try await fixture.refreshToken()
        fixture.provider.disturbAtRandom(RandomFaults(seed: 5, perMille: [.malformed: 1000]))
        var texts: Set<String> = []
        for _ in 0..<60 {
            let answer = await fixture.driver.refresh(token)
            #expect(answer.status == .ok)
            #expect(answer.json?["access_token"] == nil)
            texts.insert(String(answer.text.prefix(6)))
        }
        #expect(texts == [#"{"acce"#, "", "{}", "<html>"])
        #expect(fixture.provider.requests.last?.refresh?.outcome == .kept)
    }

    @Test func `other grants and endpoints are not affected, and scripted faults take precedence`() async throws {
        let fixture = ProviderFixture(.rfc)
        let token = try await fixture.refreshToken()
        fixture.provider.disturbAtRandom(
            RandomFaults(seed: 4, grant: .refreshToken, perMille: [.answer: 1000]))
        #expect(await fixture.driver.redeem("x").status == .badRequest)
        fixture.provider.script(Fault(.token, status: .badGateway))
        #expect(await fixture.driver.refresh(token).status == .badGateway)
        #expect(await fixture.driver.refresh(token).status == .serviceUnavailable)
        fixture.provider.disturbAtRandom(nil)
        #expect(await fixture.driver.refresh(token).status == .ok)
    }

    @Test func `random faults are set, shown and ended over HTTP`() async throws {
        let fixture = ProviderFixture(.rfc)
        let set = await fixture.driver.control(
            .put, "/random_faults",
            #"{"seed":7,"endpoint":"token","grant":"refresh_token","drop_after_work_per_mille":30,"#
                + #""delay_per_mille":5,"answer_delay_per_mille":6,"longest_delay_ms":1500}"#)
        #expect(set.status == .noContent)
        #expect(
            fixture.provider.randomFaults
                == RandomFaults(
                    seed: 7, grant: .refreshToken, perMille: [.dropAfterWork: 30], delayedPerMille: 5,
                    answerDelayedPerMille: 6, longestDelay: .milliseconds(1500)))
        let shown = await fixture.driver.control(.get, "/random_faults")
        #expect(shown.json?["drop_after_work_per_mille"]?.integer == 30)
        #expect(shown.json?["answer_per_mille"]?.integer == 0)
        #expect(await fixture.driver.control(.delete, "/random_faults").status == .noContent)
        #expect(fixture.provider.randomFaults == nil)
        #expect(await fixture.driver.control(.get, "/random_faults").text == "{}")
    }

    @Test(arguments: [
        "{}", #"{"seed":1}"#, #"{"endpoint":"token"}"#, #"{"seed":-1,"endpoint":"token"}"#,
        #"{"seed":1,"endpoint":"token","answer_per_mille":1001}"#,
        #"{"seed":1,"endpoint":"token","answer_per_mille":600,"delay_per_mille":401}"#,
        #"{"seed":1,"endpoint":"token","drop_per_mille":1}"#,
    ])
    func `a malformed configuration is refused`(body: String) async {
        let fixture = ProviderFixture()
        #expect(await fixture.driver.control(.put, "/random_faults", body).status == .badRequest)
        #expect(fixture.provider.randomFaults == nil)
    }
}

@Suite struct `Sessions without a login` {
    @Test func `many sessions are opened at once, each with its own tokens`() async throws {
        let fixture = ProviderFixture(.rfc) { $0.rotation = .rotate(grace: .seconds(10)) }
        let answer = await fixture.driver.control(.post, "/sessions", #"{"prefix":"u","first":5,"count":1000}"#)
        let sessions = try #require(answer.json?["sessions"]?.array)
        #expect(sessions.count == 1000)
        #expect(sessions.first?["user"]?.string == "u5")
        #expect(sessions.last?["user"]?.string == "u1004")
        #expect(Set(sessions.compactMap { $0["refresh_token"]?.text }).count == 1000)
        let token = try #require(sessions.first?["refresh_token"]?.text)
        #expect(await fixture.driver.refresh(token).status == .ok)
        #expect(fixture.provider.ledgerSummary.users == 1000)
        #expect(
            fixture.provider.ledger(userID: ProviderUser("u5").id).users.first?.families.first?.family.origin
                == .control)
    }

    @Test func `a session's access token is valid`() async throws {
        let fixture = ProviderFixture()
        let answer = await fixture.driver.control(.post, "/sessions", #"{"user":"alice","client_id":"other"}"#)
        let session = try #require(answer.json?["sessions"]?.array?.first)
        let token = try #require(session["access_token"]?.text)
        #expect(fixture.provider.introspect(accessToken: token)?.clientID == "other")
        #expect(session["expires_in"]?.integer == 14_400)
    }

    @Test(arguments: [
        ("{}", 400), (#"{"prefix":"u"}"#, 400), (#"{"prefix":"u","count":0}"#, 400),
        (#"{"prefix":"u","count":100001}"#, 400), (#"{"user":"a","count":2}"#, 400),
        (#"{"user":"a","client_id":"nobody"}"#, 404),
    ])
    func `a malformed request is refused`(body: String, status: Int) async {
        let fixture = ProviderFixture()
        #expect(await fixture.driver.control(.post, "/sessions", body).status.code == status)
        #expect(fixture.provider.ledgerSummary.families == 0)
    }

    @Test func `the ledger has a summary and a view of one user`() async throws {
        let fixture = ProviderFixture(.rfc) { $0.rotation = .rotate(grace: .seconds(10)) }
        let token = try await fixture.refreshToken(user: "4711")
        _ = try await fixture.refreshToken(user: "4712")
        _ = await fixture.driver.refresh(token)
        _ = await fixture.driver.refresh(token)
        let summary = try #require(await fixture.driver.control(.get, "/ledger/summary").json)
        #expect(summary["users"]?.integer == 2)
        #expect(summary["families_alive"]?.integer == 2)
        #expect(summary["refresh_tokens"]?.integer == 4)
        #expect(summary["presentations"]?.integer == 2)
        #expect(summary["presented_again"]?.integer == 1)
        #expect(summary["grace_replays"]?.integer == 1)
        let one = try #require(await fixture.driver.control(.get, "/ledger/users/4711").json?["users"]?.array)
        #expect(one.count == 1)
        #expect(one.first?["user"]?.string == "4711")
        #expect(await fixture.driver.control(.get, "/ledger/users/x").status == .badRequest)
    }

    @Test func `the oldest session is removed beyond the capacity`() async throws {
        let fixture = ProviderFixture { $0.capacity = 40 }
        #expect(fixture.provider.openSessions(users: (1...12).map { "u\($0)" })?.count == 12)
        #expect(fixture.provider.ledger.users.map(\.user.name) == (3...12).map { "u\($0)" })
    }
}
