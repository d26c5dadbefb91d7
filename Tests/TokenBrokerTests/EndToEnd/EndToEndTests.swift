import BrokerCore
import BrokerTesting
import DevelopmentProvider
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import Testing
import TokenBroker

@Suite struct `Credentials from end to end` {
    private static let grace = RefreshTokenRotation.rotate(grace: .seconds(60))
    private static let strict = RefreshTokenRotation.rotate(grace: .zero)

    /// Past the lifetime of every access token, for both sides.
    private static func expire(_ all: EndToEnd) {
        all.time.advance(by: .seconds(14_400))
        all.controls.expire(.accessTokens)
        all.time.forgetSleeps()
    }

    /// The token is the provider's newest and works there.
    private static func expectAlive(_ answer: RunningBroker.Answer, _ all: EndToEnd) throws {
        #expect(answer.status == 200)
        #expect(answer.json["level"]?.string == "user")
        let token = try #require(answer.json["token"]?.text)
        #expect(all.controls.introspect(accessToken: token)?.user == EndToEnd.user)
    }

    private static func expectNoReuse(_ all: EndToEnd) {
        #expect(all.controls.ledger.reuseDetections == 0)
        #expect(all.controls.ledger.familiesRevoked == 0)
    }

    // MARK: Refresh

    @Test(arguments: ProviderProfile.withLoginPage, [RefreshTokenRotation.none, grace, strict])
    func `an expired token is refreshed, round after round`(
        profile: ProviderProfile, rotation: RefreshTokenRotation
    ) async throws {
        try await EndToEnd.run(profile, rotation: rotation) { all async throws in
            #expect(try await all.broker.logIn().status == 200)
            var tokens: Set<String> = []
            for round in 1...5 {
                Self.expire(all)
                let answer = try await all.token()
                try Self.expectAlive(answer, all)
                tokens.insert(answer.json["token"]?.text ?? "")
                #expect(try await all.token().json["token"] == answer.json["token"])
                #expect(all.requests(.refreshToken).count == round)
            }
            #expect(tokens.count == 5)
            Self.expectNoReuse(all)
        }
    }

    @Test(arguments: ProviderProfile.withLoginPage)
    func `a token that the API refuses is refreshed before its time`(profile: ProviderProfile) async throws {
        try await EndToEnd.run(profile, rotation: Self.strict) { all async throws in
            #expect(try await all.broker.logIn().status == 200)
            let old = try await all.token()
            all.controls.expire(.accessTokens)
            let tag = try #require(old.fields["ETag"]?.text)
            let answers = try await withThrowingTaskGroup(of: RunningBroker.Answer.self) { group in
                for _ in 0..<20 {
                    group.addTask {
                        try await all.broker.call(
                            .get, "/credentials?api_error_sub_status=11003", fields: ["If-None-Match": tag])
                    }
                }
                return try await group.reduce(into: []) { $0.append($1) }
            }
            for answer in answers { try Self.expectAlive(answer, all) }
            #expect(Set(answers.map { $0.json["token"]?.text }).count == 1)
            #expect(all.requests(.refreshToken).count == 1)
            Self.expectNoReuse(all)
        }
    }

    // Q26
    @Test(arguments: ProviderProfile.withLoginPage)
    func `a hundred readers of an expired token cause one request and no reuse`(
        profile: ProviderProfile
    ) async throws {
        try await EndToEnd.run(profile, rotation: Self.strict) { all async throws in
            #expect(try await all.broker.logIn().status == 200)
            for round in 1...3 {
                Self.expire(all)
                let answers = try await withThrowingTaskGroup(of: RunningBroker.Answer.self) { group in
                    for _ in 0..<100 { group.addTask { try await all.token() } }
                    return try await group.reduce(into: []) { $0.append($1) }
                }
                #expect(answers.count == 100)
                for answer in answers { try Self.expectAlive(answer, all) }
                #expect(Set(answers.map { $0.json["token"]?.text }).count == 1)
                #expect(all.requests(.refreshToken).count == round)
            }
            Self.expectNoReuse(all)
        }
    }

    @Test(arguments: ProviderProfile.withLoginPage)
    func `a session that the provider ended gives way to the next level`(profile: ProviderProfile) async throws {
        try await EndToEnd.run(profile) { all async throws in
            #expect(try await all.broker.logIn().status == 200)
            #expect(all.controls.revokeAll(userID: EndToEnd.user.id) == 1)
            Self.expire(all)
            let answer = try await all.token()
            #expect(answer.status == 200)
            #expect(answer.json["level"]?.string == "client")
            #expect(all.requests(.refreshToken).count == 1)
            #expect(all.requests(.clientCredentials).count == 1)
        }
    }

    // MARK: Faults under a refresh

    // H078 Q27
    @Test(arguments: ProviderProfile.withLoginPage, [Fault.Mode.dropBeforeWork, .dropAfterWork, .answerAfterWork])
    func `a refresh whose answer was lost is made again within the provider's grace`(
        profile: ProviderProfile, mode: Fault.Mode
    ) async throws {
        try await EndToEnd.run(profile, rotation: Self.grace) { all async throws in
            #expect(try await all.broker.logIn().status == 200)
            Self.expire(all)
            all.controls.script(Fault(.token, grant: .refreshToken, times: 2, mode: mode))
            try Self.expectAlive(try await all.token(), all)
            #expect(all.requests(.refreshToken).count == 3)
            #expect(all.time.slept == [.milliseconds(500), .seconds(1)])
            Self.expire(all)
            try Self.expectAlive(try await all.token(), all)
            Self.expectNoReuse(all)
        }
    }

    @Test(arguments: ProviderProfile.withLoginPage)
    func `a provider that stays away ends no session`(profile: ProviderProfile) async throws {
        try await EndToEnd.run(profile, rotation: Self.strict) { all async throws in
            #expect(try await all.broker.logIn().status == 200)
            Self.expire(all)
            all.controls.script(Fault(.token, times: 6, status: .serviceUnavailable))
            let retryable = try await all.token()
            #expect(retryable.status == 503)
            #expect(retryable.code == "retryable_error")
            #expect(all.requests(.refreshToken).count == 6)
            all.controls.script(Fault(.token, times: 6, mode: .dropBeforeWork))
            let network = try await all.token()
            #expect(network.status == 503)
            #expect(network.code == "network_error")
            #expect(all.requests(.refreshToken).count == 12)
            try Self.expectAlive(try await all.token(), all)
            Self.expectNoReuse(all)
        }
    }

    @Test(arguments: ProviderProfile.withLoginPage)
    func `half an answer is asked for again and ends no session`(profile: ProviderProfile) async throws {
        try await EndToEnd.run(profile, rotation: Self.grace) { all async throws in
            #expect(try await all.broker.logIn().status == 200)
            Self.expire(all)
            all.controls.script(Fault(.token, mode: .malformed))
            try Self.expectAlive(try await all.token(), all)
            Self.expectNoReuse(all)
        }
    }

    @Test func `a slow provider holds no caller up longer than wished, and its answer is not lost`() async throws {
        try await EndToEnd.run(.rfc, rotation: Self.strict) { all async throws in
            #expect(try await all.broker.logIn().status == 200)
            Self.expire(all)
            all.controls.script(Fault(.token, answerDelay: .milliseconds(500)))
            let hasty = try await all.broker.call(.get, "/credentials", fields: ["Prefer": "wait=0"])
            #expect(hasty.status == 503)
            #expect(hasty.code == "retryable_error")
            #expect(hasty.fields["Retry-After"] != nil)
            try Self.expectAlive(try await all.token(), all)
            #expect(all.requests(.refreshToken).count == 1)
            Self.expectNoReuse(all)
        }
    }

    // MARK: Other levels, other lives

    @Test(arguments: ProviderProfile.withLoginPage)
    func `a client with a secret has credentials of its own`(profile: ProviderProfile) async throws {
        try await EndToEnd.run(profile) { all async throws in
            let answer = try await all.token()
            #expect(answer.status == 200)
            #expect(answer.json["level"]?.string == "client")
            let token = try #require(answer.json["token"]?.text)
            let known = try #require(all.controls.introspect(accessToken: token))
            #expect(known.clientID == "the app")
            #expect(known.user == nil)
            #expect(try await all.token().json["token"]?.string == token)
            #expect(all.requests(.clientCredentials).count == 1)
            Self.expire(all)
            #expect(try await all.token().json["token"]?.string != token)
            #expect(all.requests(.clientCredentials).count == 2)
        }
    }

    @Test(arguments: ProviderProfile.withLoginPage)
    func `a client without a secret is basic until its user logs in`(profile: ProviderProfile) async throws {
        try await EndToEnd.run(profile, secret: nil) { all async throws in
            #expect(try await all.token().json["level"]?.string == "basic")
            #expect(try await all.broker.logIn().status == 200)
            try Self.expectAlive(try await all.token(), all)
            #expect(all.requests(.authorizationCode).first?.clientAuthentication == ClientAuthenticationMethod.none)
            Self.expire(all)
            try Self.expectAlive(try await all.token(), all)
        }
    }

    @Test(arguments: ProviderProfile.withLoginPage)
    func `a restart on the same directory keeps the credentials`(profile: ProviderProfile) async throws {
        try await EndToEnd.run(profile, rotation: Self.strict) { all async throws in
            #expect(try await all.broker.logIn().status == 200)
            let before = try await all.token()
            await all.broker.close()
            let second = try await RunningBroker(directory: all.directory.path, time: all.time)
            let after = try await second.call(.get, "/credentials")
            try Self.expectAlive(after, all)
            #expect(after.json["token"] == before.json["token"])
            #expect(after.fields["ETag"] == before.fields["ETag"])
            #expect(all.requests(.refreshToken).isEmpty)
            Self.expire(all)
            try Self.expectAlive(try await second.call(.get, "/credentials"), all)
            await second.close()
            let third = try await RunningBroker(directory: all.directory.path, time: all.time)
            Self.expire(all)
            try Self.expectAlive(try await third.call(.get, "/credentials"), all)
            await third.close()
            Self.expectNoReuse(all)
        }
    }

    // H099
    @Test func `a shutdown in the middle of a refresh loses nothing`() async throws {
        try await EndToEnd.run(.rfc, rotation: Self.strict) { all async throws in
            #expect(try await all.broker.logIn().status == 200)
            Self.expire(all)
            let arrived = all.controls.counters.requests(.token)
            all.controls.script(Fault(.token, answerDelay: .milliseconds(300)))
            let reader = Task { try await all.token() }
            try await all.controls.waitForRequests(arrived + 1, at: .token)
            await all.broker.close()
            try Self.expectAlive(try await reader.value, all)
            let second = try await RunningBroker(directory: all.directory.path, time: all.time)
            Self.expire(all)
            try Self.expectAlive(try await second.call(.get, "/credentials"), all)
            await second.close()
            Self.expectNoReuse(all)
        }
    }

    @Test(arguments: [(ProviderProfile.tidal, "unsupported"), (.rfc, "revoked")])
    func `a logout is told to the provider where it can be`(profile: ProviderProfile, outcome: String) async throws {
        try await EndToEnd.run(profile, secret: nil) { all async throws in
            #expect(try await all.broker.logIn().status == 200)
            let answer = try await all.broker.call(.delete, "/credentials?revoke=true")
            #expect(answer.status == 204)
            #expect(answer.fields["Token-Revocation"] == outcome)
            #expect(try await all.token().json["level"]?.string == "basic")
            #expect(all.controls.ledger.familiesRevoked == (profile == .rfc ? 1 : 0))
        }
    }
}
