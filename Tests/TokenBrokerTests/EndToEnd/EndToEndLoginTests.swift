import BrokerCore
import BrokerTesting
import DevelopmentProvider
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import Testing
import TokenBroker

@Suite struct `A login from end to end` {
    @Test(arguments: ProviderProfile.withLoginPage)
    func `goes through the provider's form to credentials`(profile: ProviderProfile) async throws {
        try await EndToEnd.run(profile) { all async throws in
            let login = try await all.broker.begin()
            let pending = try await all.broker.call(.get, "/login/\(login.id)")
            #expect(pending.json["status"]?.string == "pending")
            let location = try await all.broker.decide(login.uri)
            #expect(location.hasPrefix("\(all.broker.baseURL)/login/callback?"))
            #expect(location.contains("&iss=") == (profile == .rfc))
            let page = try await all.broker.send(.get, location)
            #expect(page.status == 200)
            #expect(page.text.contains("You are logged in"))
            let ended = try await all.broker.call(.get, "/login/\(login.id)?wait=60")
            #expect(ended.json["status"]?.string == "completed")

            let answer = try await all.token()
            #expect(answer.status == 200)
            #expect(answer.json["level"]?.string == "user")
            #expect(answer.json["client_id"]?.string == "the app")
            #expect(answer.json["granted_scopes"]?.array?.compactMap(\.text) == ["r_usr", "w_usr"])
            if profile == .tidal { #expect(answer.json["user_id"]?.string == String(EndToEnd.user.id)) }
            #expect(answer.json["expires_in"]?.integer == (profile == .tidal ? 14_400 : 3600))
            let access = try #require(answer.json["token"]?.text)
            let known = try #require(all.controls.introspect(accessToken: access))
            #expect(known.user == EndToEnd.user)
            #expect(known.scope.sorted() == ["r_usr", "w_usr"])

            let exchange = try #require(all.requests(.authorizationCode).first)
            #expect(all.requests(.authorizationCode).count == 1)
            #expect(exchange.clientAuthentication == (profile == .tidal ? .post : .basic))
            #expect(exchange.queryParameters.isEmpty)
            let again = try await all.broker.send(.get, location)
            #expect(again.status == 409)
            #expect(all.controls.ledger.codeReuses == 0)
        }
    }

    // H031
    @Test(arguments: ProviderProfile.withLoginPage)
    func `is bound to the browser that opened its start address`(profile: ProviderProfile) async throws {
        try await EndToEnd.run(profile) { all async throws in
            let login = try await all.broker.begin(#"{"return_to": "https://app.example/done?a=1"}"#)
            let start = try await all.broker.send(.get, login.startURI)
            #expect(start.status == 303)
            #expect(start.fields["Location"] == login.uri)
            let cookie = try #require(BrokerHarness.cookie(start))
            let location = try await all.broker.decide(try #require(start.fields["Location"]?.text))
            #expect(try await all.broker.send(.get, location).status == 403)
            let done = try await all.broker.send(.get, location, fields: ["Cookie": cookie])
            #expect(done.status == 303)
            #expect(done.fields["Location"] == "https://app.example/done?a=1&login=completed")
            #expect(try await all.token().json["level"]?.string == "user")
        }
    }

    @Test(arguments: ProviderProfile.withLoginPage)
    func `ends at a redirect_uri of the caller's own`(profile: ProviderProfile) async throws {
        try await EndToEnd.run(profile) { all async throws in
            let login = try await all.broker.begin(
                #"{"redirect_uri": "https://app.example/cb", "storage_key": "user:1"}"#)
            let location = try await all.broker.decide(login.uri)
            #expect(location.hasPrefix("https://app.example/cb?"))
            let query = location.dropFirst("https://app.example/cb".count)
            let answer = try await all.broker.call(
                .post, "/login/finalize", body: #"{"login_response_query": "\#(query)"}"#)
            #expect(answer.status == 200)
            #expect(answer.json["storage_key"]?.string == "user:1")
            #expect(answer.json["token"] == nil)
            #expect(try await all.token("?storage_key=user:1&policy=local").json["level"]?.string == "user")
        }
    }

    @Test(arguments: ProviderProfile.withLoginPage)
    func `ends when the user says no`(profile: ProviderProfile) async throws {
        try await EndToEnd.run(profile) { all async throws in
            let login = try await all.broker.begin()
            let location = try await all.broker.decide(login.uri, "deny")
            #expect(try await all.broker.send(.get, location).status == 400)
            let ended = try await all.broker.call(.get, "/login/\(login.id)")
            #expect(ended.json["error"]?.text == "authorization_error")
            #expect(ended.json["error_code"]?.text == "access_denied")
            #expect(all.requests(.authorizationCode).isEmpty)
        }
    }

    // H035
    @Test(arguments: [ResponseIssuer.absent, .other("https://evil.example")])
    func `refuses a response that another issuer may have sent`(issuer: ResponseIssuer) async throws {
        try await EndToEnd.run(.rfc) { all async throws in
            let login = try await all.broker.begin()
            all.controls.configure { $0.responseIssuer = issuer }
            let bad = try await all.broker.decide(login.uri)
            #expect(try await all.broker.send(.get, bad).status == 400)
            #expect(all.requests(.authorizationCode).isEmpty)
            all.controls.configure { $0.responseIssuer = .issuer }
            let good = try await all.broker.decide(login.uri)
            #expect(try await all.broker.send(.get, good).status == 200)
        }
    }

    // H030
    @Test(arguments: ProviderProfile.withLoginPage)
    func `survives a restart between its two legs`(profile: ProviderProfile) async throws {
        try await EndToEnd.run(profile) { all async throws in
            let login = try await all.broker.begin()
            let location = try await all.broker.decide(login.uri)
            await all.broker.close()
            let second = try await RunningBroker(directory: all.directory.path, time: all.time)
            let moved = location.replacing(all.broker.baseURL, with: second.baseURL)
            #expect(try await second.send(.get, moved).status == 200)
            #expect(try await second.call(.get, "/credentials").json["level"]?.string == "user")
            #expect(try await second.send(.get, moved).status == 409)
            await second.close()
        }
    }

    // MARK: Faults

    @Test(arguments: ProviderProfile.withLoginPage)
    func `is tried again after answers that promise better`(profile: ProviderProfile) async throws {
        try await EndToEnd.run(profile) { all async throws in
            all.controls.script(Fault(.token, times: 2, status: .serviceUnavailable))
            all.controls.script(Fault(.token, status: Status(429), fields: ["Retry-After": "3"]))
            #expect(try await all.broker.logIn().status == 200)
            #expect(all.requests(.authorizationCode).count == 4)
            #expect(all.time.slept == [.milliseconds(500), .seconds(1), .seconds(3)])
            #expect(all.controls.ledger.codeReuses == 0)
        }
    }

    @Test(arguments: ProviderProfile.withLoginPage, [Fault.Mode.dropBeforeWork, .dropAfterWork])
    func `ends with a connection that breaks under the exchange`(
        profile: ProviderProfile, mode: Fault.Mode
    ) async throws {
        try await EndToEnd.run(profile) { all async throws in
            all.controls.script(Fault(.token, mode: mode))
            let login = try await all.broker.begin()
            let location = try await all.broker.decide(login.uri)
            let answer = try await all.broker.send(.get, location, fields: ["Accept": "application/json"])
            #expect(answer.status == 503)
            #expect(answer.code == "network_error")
            #expect(all.requests(.authorizationCode).count == 1)
            #expect(try await all.broker.call(.get, "/login/\(login.id)").json["error"]?.string == "network_error")
            #expect(try await all.broker.logIn().status == 200)
            #expect(all.controls.ledger.codeReuses == 0)
        }
    }

    @Test(arguments: ProviderProfile.withLoginPage)
    func `ends with an answer that is no token`(profile: ProviderProfile) async throws {
        try await EndToEnd.run(profile) { all async throws in
            all.controls.script(Fault(.token, mode: .malformed))
            let location = try await all.broker.decide(try await all.broker.begin().uri)
            let answer = try await all.broker.send(.get, location, fields: ["Accept": "application/json"])
            #expect(answer.status == 502)
            #expect(answer.code == "token_response_error")
            #expect(all.requests(.authorizationCode).count == 1)
        }
    }

    @Test(arguments: ProviderProfile.withLoginPage)
    func `ends with a code that is too old`(profile: ProviderProfile) async throws {
        try await EndToEnd.run(profile) { all async throws in
            let location = try await all.broker.decide(try await all.broker.begin().uri)
            all.controls.expire(.authorizationCodes)
            let answer = try await all.broker.send(.get, location, fields: ["Accept": "application/json"])
            #expect(answer.status == 502)
            #expect(answer.code == "unexpected_error")
            #expect(answer.json["error_code"]?.string == "invalid_grant")
            #expect(all.requests(.authorizationCode).count == 1)
        }
    }

    @Test func `finds the metadata at the second address and says when it finds none`() async throws {
        try await EndToEnd.run(.rfc) { all async throws in
            all.controls.script(
                Fault(
                    .metadata, times: 2, status: .ok, fields: ["Content-Type": "text/html"], body: Array("<html>".utf8))
            )
            let none = try await all.broker.call(.post, "/login/initialize", body: "{}")
            #expect(none.status == 424)
            all.controls.script(Fault(.metadata, times: 2, mode: .dropBeforeWork))
            let away = try await all.broker.call(.post, "/login/initialize", body: "{}")
            #expect(away.status == 503)
            #expect(away.code == "network_error")
            all.controls.script(Fault(.metadata, status: .notFound))
            #expect(try await all.broker.logIn().status == 200)
            #expect(all.controls.counters.requests(.metadata) == 6)
        }
    }

    @Test(arguments: ProviderProfile.withLoginPage)
    func `is completed although its browser went away`(profile: ProviderProfile) async throws {
        let delays = ProviderClock()
        try await EndToEnd.run(profile, delays: delays) { all async throws in
            let login = try await all.broker.begin()
            let location = try await all.broker.decide(login.uri)
            all.controls.script(Fault(.token, answerDelay: .seconds(1)))
            let browser = Task { try await all.broker.send(.get, location) }
            await delays.waitForSleepers(1)
            browser.cancel()
            await #expect(throws: TransportError.cancelled) { try await browser.value }
            all.time.holdSleeps()
            // The broker learns that the connection has ended, and then the provider answers.
            try await Task.sleep(for: .milliseconds(250))
            delays.advance(by: .seconds(1))
            let ended = try await all.broker.call(.get, "/login/\(login.id)?wait=60")
            #expect(ended.json["status"]?.string == "completed")
            #expect(try await all.token().json["level"]?.string == "user")
        }
    }
}
