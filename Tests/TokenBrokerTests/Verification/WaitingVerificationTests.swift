import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

/// Sets of tokens that are granted while the provider's keys do not answer.
@Suite struct `Tokens that wait for keys` {
    private static let provider = SigningProvider()
    private static let keysAddress = SigningProvider.keysAddress
    private static let members = #"""
        {"client_id": "c1", "scopes": ["read"], \#(SigningProvider.members), "token_verification": {"access_token": {"audience": "api"}}}
        """#

    private static func access(_ name: String, at now: Timestamp, of subject: String = "ada", audience: String = "api")
        -> String
    {
        provider.signed("read", audience: audience, of: subject, at: now, name: name)
    }

    /// A broker that does not get its provider's keys.
    private static func broker() async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        broker.transport.standing(at: keysAddress, .failure(.connectFailed))
        await broker.makeTenant("t1", members)
        return broker
    }

    /// A broker whose user `ada` has an expired token `1`, started anew, so that it knows no keys and does not get them.
    private static func restarted(expired: Bool = true) async throws -> (broker: BrokerHarness, earlier: String) {
        let (first, earlier) = try await loggedIn()
        first.time.advance(by: expired ? .seconds(3601) : .seconds(60))
        return (try await replica(of: first), earlier)
    }

    /// A broker whose user `ada` has the token `1`, and which knows the keys. No other replica gets them.
    private static func loggedIn() async throws -> (broker: BrokerHarness, earlier: String) {
        let broker = try await broker()
        publishKeys(broker)
        let earlier = access("1", at: broker.time.now)
        await broker.logIn(token: BrokerHarness.token(earlier, refresh: "r1"))
        broker.transport.standing(at: keysAddress, .failure(.connectFailed))
        return (broker, earlier)
    }

    private static func replica(of broker: BrokerHarness) async throws -> BrokerHarness {
        try await BrokerHarness(store: broker.store, transport: broker.transport, time: broker.time)
    }

    private static func publishKeys(_ broker: BrokerHarness) {
        broker.transport.standing(at: keysAddress, .json(200, provider.keySet))
    }

    /// Lets the job run that verifies what waits.
    private static func runJob(_ broker: BrokerHarness) async {
        broker.time.advance(by: .seconds(31))
        _ = await broker.broker.core.expiryJob.handleAllDue()
        await broker.broker.core.expiryJob.finish()
    }

    // MARK: Refreshes

    @Test func `are stored, not served, and served once they are verified`() async throws {
        let (broker, earlier) = try await Self.restarted()
        let next = Self.access("2", at: broker.time.now)
        broker.transport.enqueue(.json(200, BrokerHarness.token(next, refresh: "r2")))
        for _ in 0..<3 {
            let answer = await broker.get()
            #expect((answer.status, answer.code) == (503, "network_error"))
            #expect(answer.retryAfter != nil)
        }
        #expect(await broker.get("policy=local").token == earlier)
        #expect(try await broker.events().last?.kind.rawValue == "refresh.failed")
        // Nothing else is asked for meanwhile.
        #expect((broker.transport.seen.count, broker.transport.unforeseen) == (2, 0))

        Self.publishKeys(broker)
        broker.time.advance(by: .seconds(6))
        let answer = await broker.get()
        #expect((answer.status, answer.token, answer.json["user_id"]?.text) == (200, next, "ada"))
        #expect((broker.transport.seen.count, broker.transport.unforeseen) == (2, 0))
        #expect(try await broker.events().last?.kind == .credentialsUpdated)
    }

    @Test func `leave the token before to callers while it is valid`() async throws {
        let (broker, earlier) = try await Self.restarted(expired: false)
        let next = Self.access("2", at: broker.time.now)
        broker.transport.enqueue(.json(200, BrokerHarness.token(next, refresh: "r2")))
        #expect(await broker.get("policy=local_force_refresh").code == "network_error")
        #expect(await broker.get().token == earlier)
        let status = await broker.status()
        #expect((status.json["logged_in"]?.bool, status.json["refreshable"]?.bool) == (true, true))
        Self.publishKeys(broker)
        broker.time.advance(by: .seconds(6))
        #expect(await broker.get().token == earlier)
        #expect(await broker.get("policy=local_force_refresh").token == next)
        #expect(broker.transport.seen.count == 2)
    }

    @Test func `leave the token before its entity tag, and are the answer once an API has refused it`() async throws {
        let (broker, earlier) = try await Self.restarted(expired: false)
        let tag = await broker.get().tag
        let next = Self.access("2", at: broker.time.now)
        broker.transport.enqueue(.json(200, BrokerHarness.token(next, refresh: "r2")))
        let refused: Fields = ["If-None-Match": tag]
        #expect(await broker.get("api_error_sub_status=11003", fields: refused).code == "network_error")
        for replica in [broker, try await Self.replica(of: broker)] {
            let answer = await replica.get()
            #expect((answer.token, answer.tag) == (earlier, tag))
            #expect(await replica.get(fields: refused).status == 304)
            #expect(await replica.get("api_error_sub_status=11003", fields: refused).code == "network_error")
        }
        Self.publishKeys(broker)
        broker.time.advance(by: .seconds(6))
        let answer = await broker.get("api_error_sub_status=11003", fields: refused)
        #expect(answer.token == next)
        let versions = try await broker.events().compactMap { $0.data["version"]?.integer.map(CredentialsSnapshot.tag) }
        #expect(versions.contains(tag) && versions.last == answer.tag && answer.tag != tag)
        #expect(broker.transport.seen.count == 2)
    }

    @Test func `that are refused in the end leave the token before its entity tag`() async throws {
        let (broker, earlier) = try await Self.restarted(expired: false)
        let tag = await broker.get().tag
        broker.transport.enqueue(
            .json(200, BrokerHarness.token(Self.access("2", at: broker.time.now, audience: "web"), refresh: "r2")))
        #expect(await broker.get("policy=local_force_refresh").code == "network_error")
        Self.publishKeys(broker)
        await Self.runJob(broker)
        for replica in [broker, try await Self.replica(of: broker)] {
            let answer = await replica.get()
            #expect((answer.token, answer.tag) == (earlier, tag))
        }
    }

    @Test func `are verified by another replica's job when the process that got them has died`() async throws {
        let (broker, _) = try await Self.restarted()
        let next = Self.access("2", at: broker.time.now)
        broker.transport.enqueue(.json(200, BrokerHarness.token(next, refresh: "r2")))
        #expect(await broker.get().code == "network_error")
        let other = try await Self.replica(of: broker)
        await Self.runJob(other)
        #expect(await other.get("policy=local").token != next)
        Self.publishKeys(broker)
        await Self.runJob(other)
        #expect(await other.get("policy=local").token == next)
        #expect(broker.transport.seen.count == 2)
    }

    @Test func `that are refused in the end leave the session with the refresh token that came last`() async throws {
        let (broker, _) = try await Self.restarted()
        let now = broker.time.now
        broker.transport.enqueue(
            .json(200, BrokerHarness.token(Self.access("2", at: now, audience: "web"), refresh: "r2")))
        #expect(await broker.get().code == "network_error")
        Self.publishKeys(broker)
        broker.time.advance(by: .seconds(6))
        #expect(await broker.get().code == "token_response_error")
        let next = Self.access("3", at: broker.time.now)
        broker.transport.enqueue(.json(200, BrokerHarness.token(next, refresh: "r3")))
        #expect(await broker.get().token == next)
        #expect(broker.transport.seen.last?.form["refresh_token"] == "r2")
    }

    @Test func `of another user put the session aside`() async throws {
        let (broker, _) = try await Self.restarted()
        broker.transport.enqueue(
            .json(200, BrokerHarness.token(Self.access("2", at: broker.time.now, of: "eve"), refresh: "r2")))
        #expect(await broker.get().code == "network_error")
        #expect(await broker.subjectChanges(provider: "oidc") == 0)
        Self.publishKeys(broker)
        broker.time.advance(by: .seconds(6))
        #expect(await broker.get().code == "token_response_error")
        #expect(try await broker.quarantined()?.credentials.userID == "ada")
        #expect(await broker.status().json["logged_in"]?.bool == false)
        #expect(await broker.subjectChanges(provider: "oidc") == 1)
        #expect(
            broker.log.contains { $0.contains(#""event":"subject_changed""#) && $0.contains(#""provider":"oidc""#) })
    }

    @Test func `are gone after a logout`() async throws {
        let (broker, _) = try await Self.restarted()
        broker.transport.enqueue(.json(200, BrokerHarness.token(Self.access("2", at: broker.time.now), refresh: "r2")))
        #expect(await broker.get().code == "network_error")
        #expect(await broker.logOut().status == 204)
        Self.publishKeys(broker)
        await Self.runJob(broker)
        #expect(await broker.get("policy=local").code == "missing_token_container")
        #expect(try await broker.events().last?.kind == .credentialsDeauthorized)
    }

    @Test func `survive the encoding of their record`() throws {
        let held = HeldCredentials(
            level: .user, accessToken: SecretBytes(utf8: "a"), refreshToken: SecretBytes(utf8: "r"),
            expires: Timestamp(seconds: 10), grantedScopes: .empty,
            userID: "ada",
            obtainedWith: ClientFingerprint(
                clientID: "c", scopes: .empty, clientUniqueKey: nil, clientSecretDigest: nil), grantedBy: nil)
        var granted = held
        granted.proof = TokenProof(accessToken: true, refreshToken: true, idToken: SecretBytes(utf8: "i"))
        for earlier in [nil, held] {
            for origin in WaitingVerification.Origin.allCases {
                let record = CredentialRecord(held: granted, renewed: Timestamp(seconds: 5)).waiting(
                    for: WaitingVerification(
                        origin: origin, replacing: earlier, idToken: SecretBytes(utf8: "t"), nonce: "n", login: "l",
                        granted: Timestamp(seconds: 5)), since: 7)
                #expect(record.heldSince == (earlier == nil ? nil : 7))
                #expect(CredentialRecord(decoding: record.encoded) == record)
                #expect(record.held == earlier)
            }
        }
    }

    /// The lifetime at the grant; 6 s later the set is verified.
    @Test(arguments: [(65, "3"), (66, "2"), (67, "2")])
    func `that have less left than a caller asks for are verified, and refreshed like others`(
        lifetime: Int, served: String
    ) async throws {
        let (broker, _) = try await Self.restarted()
        let now = broker.time.now
        let tokens = ["2", "3"].map { (name: $0, text: Self.access($0, at: now)) }
        for token in tokens {
            broker.transport.enqueue(
                .json(200, BrokerHarness.token(token.text, refresh: "r\(token.name)", expiresIn: lifetime)))
        }
        #expect(await broker.get("min_ttl=60").code == "network_error")
        Self.publishKeys(broker)
        broker.time.advance(by: .seconds(6))
        let answer = await broker.get("min_ttl=60")
        #expect(answer.token == tokens.first { $0.name == served }?.text)
        #expect(broker.transport.remaining == (served == "3" ? 0 : 1))
    }

    @Test func `that expire while they wait are verified, and refreshed like others`() async throws {
        let (broker, _) = try await Self.restarted()
        broker.transport.enqueue(.json(200, BrokerHarness.token(Self.access("2", at: broker.time.now), refresh: "r2")))
        #expect(await broker.get().code == "network_error")
        Self.publishKeys(broker)
        broker.time.advance(by: .seconds(4000))
        let next = Self.access("3", at: broker.time.now)
        broker.transport.enqueue(.json(200, BrokerHarness.token(next, refresh: "r3")))
        #expect(await broker.get().token == next)
        #expect(broker.transport.seen.last?.form["refresh_token"] == "r2")
    }

    // MARK: Logins

    @Test func `leave their login pending, which completes when they are verified`() async throws {
        let broker = try await Self.broker()
        let login = await broker.beginLogin()
        let token = Self.access("1", at: broker.time.now)
        broker.transport.enqueue(.json(200, BrokerHarness.token(token, refresh: "r1")))
        let answer = await broker.call(.get, "/login/callback?code=c-1&state=\(login.state)", key: nil)
        #expect(answer.status == 503)
        #expect(await broker.progress(login.id).json["status"]?.text == "pending")
        #expect(await broker.get("policy=local").code == "missing_token_container")
        #expect(await broker.get().code == "network_error")

        // Longer than a code is redeemed for.
        broker.time.advance(by: .seconds(950))
        #expect(await broker.progress(login.id).json["status"]?.text == "pending")
        Self.publishKeys(broker)
        await Self.runJob(broker)
        #expect(await broker.progress(login.id).json["status"]?.text == "completed")
        #expect(await broker.get("policy=local").token == token)
        let kinds = try await broker.events().suffix(2).map(\.kind)
        #expect(kinds == [.credentialsUpdated, .loginCompleted])
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `that are refused fail their login, and the session before stays`() async throws {
        let (broker, earlier) = try await Self.restarted(expired: false)
        let login = await broker.beginLogin()
        broker.transport.enqueue(
            .json(200, BrokerHarness.token(Self.access("9", at: broker.time.now, audience: "web"))))
        _ = await broker.call(.get, "/login/callback?code=c-1&state=\(login.state)", key: nil)
        #expect(await broker.get().token == earlier)
        Self.publishKeys(broker)
        await Self.runJob(broker)
        #expect(await broker.progress(login.id).json["error"]?.text == "token_response_error")
        #expect(await broker.get().token == earlier)
        #expect(try await broker.events().last?.kind == .loginFailed)
        // Its refresh token is still the session's.
        #expect(await broker.status().json["refreshable"]?.bool == true)
    }

    @Test func `that are refused leave the refresh token of a refresh that waited before their login`() async throws {
        let (broker, _) = try await Self.restarted()
        broker.transport.enqueue(.json(200, BrokerHarness.token(Self.access("2", at: broker.time.now), refresh: "r2")))
        #expect(await broker.get().code == "network_error")
        let login = await broker.beginLogin()
        broker.transport.enqueue(
            .json(200, BrokerHarness.token(Self.access("9", at: broker.time.now, audience: "web"), refresh: "r9")))
        _ = await broker.call(.get, "/login/callback?code=c-1&state=\(login.state)", key: nil)
        Self.publishKeys(broker)
        await Self.runJob(broker)
        #expect(await broker.progress(login.id).json["error"]?.text == "token_response_error")
        let next = Self.access("3", at: broker.time.now)
        broker.transport.enqueue(.json(200, BrokerHarness.token(next, refresh: "r3")))
        #expect(await broker.get().token == next)
        // The provider has spent r1.
        #expect(broker.transport.seen.last?.form["refresh_token"] == "r2")
    }

    /// Begins a renewal at a replica, and stores the set of a login while the provider has not answered the renewal.
    /// - Parameters:
    ///   - granted: the access token and the refresh token that the login is granted.
    ///   - isStored: runs once the login's set is stored, before the provider answers the renewal.
    /// - Returns: the renewed access token, whose refresh token is r2, and the login's id.
    private static func renew(
        at renewing: BrokerHarness, andLogInAt loggingIn: BrokerHarness, granted: (access: String, refresh: String),
        isStored: () async throws -> Void = {}
    ) async throws -> (renewed: String, login: String) {
        let gate = Gate()
        let renewed = access("2", at: renewing.time.now)
        renewing.transport.enqueue(.after(gate, .json(200, BrokerHarness.token(renewed, refresh: "r2"))))
        let renewal = Task { await renewing.get("policy=local_force_refresh") }
        await gate.arrivals()
        let login = await loggingIn.beginLogin()
        loggingIn.transport.enqueue(.json(200, BrokerHarness.token(granted.access, refresh: granted.refresh)))
        _ = await loggingIn.call(.get, "/login/callback?code=c-1&state=\(login.state)", key: nil)
        try await isStored()
        gate.open()
        _ = await renewal.value
        return (renewed, login.id)
    }

    /// Expects that the next refresh presents r2.
    private static func expectSuccessor(at broker: BrokerHarness) async {
        let next = access("4", at: broker.time.now)
        broker.transport.enqueue(.json(200, BrokerHarness.token(next, refresh: "r4")))
        #expect(await broker.get("policy=local_force_refresh").token == next)
        #expect(broker.transport.seen.last?.form["refresh_token"] == "r2")
    }

    /// Whether the replica that renews has the provider's keys.
    @Test(arguments: [false, true])
    func `that are refused leave a session that was renewed meanwhile`(hasKeys: Bool) async throws {
        let (first, earlier) = try await Self.loggedIn()
        let (second, login) = try await Self.renew(
            at: hasKeys ? first : try await Self.replica(of: first), andLogInAt: try await Self.replica(of: first),
            granted: (Self.access("9", at: first.time.now, audience: "web"), "r9"))
        let reader = try await Self.replica(of: first)
        let tag = await reader.get().tag
        #expect(await reader.get().token == (hasKeys ? second : earlier))
        let told = try await first.events().compactMap { $0.data["version"]?.integer.map(CredentialsSnapshot.tag) }
        #expect(told.last == tag)

        Self.publishKeys(first)
        await Self.runJob(reader)
        #expect(await reader.progress(login).json["error"]?.text == "token_response_error")
        #expect(await reader.get().tag == tag)
        await Self.expectSuccessor(at: reader)
    }

    @Test func `of a login outlive a renewal beneath them that the next process takes from the journal`() async throws {
        let (first, _) = try await Self.loggedIn()
        let directory = StoreFixtureDirectory()
        let (store, ending) = (
            BrokerFaultyStore(first.store, revalidateAfter: .seconds(5)), try await directory.journal()
        )
        let renewing = try await BrokerHarness(
            store: store, transport: first.transport, time: first.time, journal: ending)
        let (_, login) = try await Self.renew(
            at: renewing, andLogInAt: try await Self.replica(of: first),
            granted: (Self.access("9", at: first.time.now, audience: "web"), "r9")
        ) {
            // The store goes away after the conflict of the two.
            let row = RecordID(.credentials, TenantName("t1")!, key: "default")
            let standing = try #require(try await first.vault.read(row)).version
            store.disturb(Array(repeating: .refuse, count: 1000)) { change in
                if case .replace(let record, standing, _) = change { record.id == row } else { false }
            }
        }
        while await renewing.metric("token_broker_journal_entries") != 1 { await Task.yield() }
        store.isAway = true
        await renewing.broker.core.finish()
        await ending.close()

        let next = try await BrokerHarness(
            store: BrokerFaultyStore(first.store, revalidateAfter: .seconds(5)), transport: first.transport,
            time: first.time, journal: try await directory.journal())
        try await next.broker.core.takeUpJournal()
        while await next.metric("token_broker_journal_entries") != 0 { await Task.yield() }
        #expect(await next.progress(login).json["status"]?.text == "pending")
        Self.publishKeys(first)
        await Self.runJob(next)
        #expect(await next.progress(login).json["error"]?.text == "token_response_error")
        await Self.expectSuccessor(at: next)
        await next.broker.core.finish()
    }

    /// Whether the login is verified in the end, or refused.
    @Test(arguments: [false, true])
    func `that were granted the refresh token of a session get its successor, too`(isGood: Bool) async throws {
        let (first, _) = try await Self.loggedIn()
        let (_, login) = try await Self.renew(
            at: try await Self.replica(of: first), andLogInAt: try await Self.replica(of: first),
            granted: (Self.access("3", at: first.time.now, audience: isGood ? "api" : "web"), "r1"))
        Self.publishKeys(first)
        let reader = try await Self.replica(of: first)
        await Self.runJob(reader)
        #expect(await reader.progress(login).json["status"]?.text == (isGood ? "completed" : "failed"))
        await Self.expectSuccessor(at: reader)
    }

    /// A device login that was granted `token` while its replica does not get the provider's keys before `gate` is open.
    /// Another replica gets them.
    private struct WaitingDevice {
        let broker: BrokerHarness
        let other: BrokerHarness
        let script: DeviceScript
        let handle: String
        let token: String
        /// What is stored before; nil where nothing is.
        let earlier: String?
        let gate = Gate()

        /// - Parameter successor: the refresh token that the login is granted.
        init(overEarlier: Bool = false, granting successor: String? = nil) async throws {
            let store = BrokerFaultyStore(MemoryRecordStore(), revalidateAfter: .seconds(5))
            (broker, script) = try await BrokerHarness.devices(store: store, tenant: nil)
            other = try await BrokerHarness.devices(store: store, script: script, time: broker.time, tenant: nil).broker
            publishKeys(other)
            await broker.makeTenant(
                "t1",
                #"""
                {"client_id": "c1", "scopes": ["r_usr"], "provider": "oidc", "issuer": "\#(SigningProvider.issuer)",
                 "endpoints": {"authorization": "https://op.example/authorize", "token": "https://op.example/token",
                               "device_authorization": "https://op.example/device", "jwks": "\#(keysAddress)",
                               "revocation": "https://op.example/revoke"},
                 "token_verification": {"access_token": {"audience": "api"}}}
                """#)
            earlier = overEarlier ? access("0", at: broker.time.now) : nil
            if let earlier { await other.set(earlier, refresh: "r0") }
            broker.transport.standing(at: keysAddress, .after(gate, .json(200, provider.keySet)))
            handle = await broker.beginDevice()
            token = access("1", at: broker.time.now)
            let refresh = successor ?? "refresh-of-\(token)"
            script.enqueue(.json(200, BrokerHarness.token(token, refresh: refresh)))
            broker.time.advance(by: .seconds(5))
            await gate.arrivals()
        }

        /// Cancels the login at a replica, runs the job that revokes, and lets the keys come.
        /// - Returns: the status of the answer.
        func cancel(at replica: BrokerHarness) async -> Int {
            let status = await replica.call(.delete, "/device/\(handle)", tenant: "t1").status
            replica.time.advance(by: .seconds(1))
            _ = await replica.broker.core.revocations.handleAllDue()
            gate.open()
            await broker.broker.deviceLogins.finish()
            return status
        }
    }

    @Test func `are a login's although another replica verifies them before their commit is sent again`() async throws {
        let store = BrokerFaultyStore(revalidateAfter: .zero)
        let (one, two) = (try await BrokerHarness(store: store), try await BrokerHarness(store: store))
        one.transport.standing(at: Self.keysAddress, .failure(.connectFailed))
        await one.makeTenant("t1", Self.members)
        let token = Self.access("1", at: one.time.now)
        let login = await one.beginLogin()
        one.time.holdSleeps()
        store.disturb([.loseAnswer]) { $0.writes(.credentials) }
        one.transport.enqueue(.json(200, BrokerHarness.token(token, refresh: "r1")))
        async let answer = one.callback("code=c-1&state=\(login.state)")
        await one.time.sleepers(of: .milliseconds(200))
        Self.publishKeys(two)
        await Self.runJob(two)
        #expect(await two.get("policy=local").token == token)
        one.time.advance(by: .milliseconds(200))
        #expect(await answer.status == 200)
        #expect(await two.progress(login.id).json["status"]?.string == "completed")
    }

    @Test func `leave their device login pending, which is not polled any more`() async throws {
        let login = try await WaitingDevice()
        let broker = login.broker
        #expect(await broker.deviceProgress(login.handle).json["status"]?.text == "pending")
        #expect(await broker.get("policy=local").code == "missing_token_container")
        // The provider's code has expired by now.
        broker.time.advance(by: .seconds(400))
        #expect(await broker.deviceProgress(login.handle).json["status"]?.text == "pending")
        login.gate.open()
        #expect(await broker.deviceEnd(login.handle).contains("completed"))
        #expect(await broker.get("policy=local").token == login.token)
        #expect(login.script.polls.count == 1)
    }

    @Test(arguments: [false, true], [false, true])
    func `are dropped and revoked when their device login is cancelled`(overEarlier: Bool, atOther: Bool) async throws {
        let login = try await WaitingDevice(overEarlier: overEarlier)
        let before = try await login.broker.events().count
        #expect(await login.cancel(at: atOther ? login.other : login.broker) == 204)
        for replica in [login.broker, login.other] {
            await Self.runJob(replica)
            #expect(await replica.get("policy=local").token == login.earlier)
            #expect(await replica.deviceProgress(login.handle).status == 404)
        }
        #expect(login.script.revoked == ["refresh-of-\(login.token)"])
        #expect(try await login.broker.count(.revocation) == 0)
        #expect(try await login.broker.count(.device) == 0)
        #expect(try await login.broker.events().count == before)
        #expect(await login.broker.call(.delete, "/device/\(login.handle)", tenant: "t1").status == 404)
    }

    @Test func `are dropped and not revoked when the session before has the same refresh token`() async throws {
        let login = try await WaitingDevice(overEarlier: true, granting: "r0")
        #expect(await login.cancel(at: login.other) == 204)
        #expect(login.script.revoked.isEmpty)
        #expect(try await login.other.count(.revocation) == 0)
        #expect(await login.other.get("policy=local").token == login.earlier)
    }

    @Test func `stay when their device login is cancelled after they were verified`() async throws {
        let login = try await WaitingDevice()
        await Self.runJob(login.other)
        #expect(await login.cancel(at: login.other) == 204)
        #expect(await login.other.get("policy=local").token == login.token)
        #expect(login.script.revoked.isEmpty)
    }

    @Test func `that were set later stay when the device login before it is cancelled`() async throws {
        let login = try await WaitingDevice()
        let later = Self.access("2", at: login.broker.time.now)
        await login.other.set(later)
        #expect(await login.cancel(at: login.other) == 204)
        #expect(await login.other.get("policy=local").token == later)
        #expect(try await login.other.count(.device) == 0)
        #expect(try await login.other.count(.revocation) == 0)
    }
}
