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

/// Apps' logins, which their browsers carry until they come back from the provider.
@Suite(.timeLimit(.minutes(1))) struct `Logins that browsers carry` {
    private static let granted = BrokerHarness.token("access-1", refresh: "refresh-1", userID: 42)
    private static let publicClient = #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "default"}"#
    private static let secretClient =
        #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "default", "client_secret": "0123456789abcdef"}"#

    private static func prepare(_ broker: BrokerHarness, _ client: String = secretClient) async {
        await broker.makeTenant()
        await broker.makeClient("app", of: "t1", client)
    }

    private static func broker(_ client: String = secretClient) async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await prepare(broker, client)
        return broker
    }

    /// Whether the login ends at the app with a code, after a question where there is one.
    private static func ends(
        _ login: BrokerHarness.AppLogin, at broker: BrokerHarness, asking other: BrokerHarness? = nil,
        cookie: String? = nil, code: String = "c-1"
    ) async -> Bool {
        let other = other ?? broker
        let answer = await broker.bring("code=\(code)", for: login, cookie: cookie)
        let location = answer.fields["Location"]?.text ?? ""
        if !location.contains("/login/confirm/") { return BrokerHarness.parameters(of: location)["code"] != nil }
        return await other.confirm(answer, login).parameters["code"] != nil
    }

    private static func token(_ broker: BrokerHarness) {
        let answer = ScriptedTransport.Step.json(200, granted)
        broker.transport.enqueue(answer)
    }

    // MARK: What is stored

    @Test func `are stored when they come back, and not before`() async throws {
        let time = ManualTime()
        let store = FaultyStore(MemoryRecordStore { time.monotonic })
        let broker = try await BrokerHarness(store: store, time: time)
        await Self.prepare(broker)
        let before = store.commits
        var last: BrokerHarness.AppLogin?
        for _ in 0..<50 { last = await broker.beginAppLogin() }
        #expect(store.commits == before)
        #expect(try await broker.count(.login) == 0)
        let login = try #require(last)
        Self.token(broker)
        #expect(await Self.ends(login, at: broker))
        #expect(try await broker.count(.login) == 1)
        // The pages of a login's end know it, and it has no start address.
        #expect(await broker.call(.get, "/login/ended/t1/\(login.id)", key: nil).status == 200)
        #expect(await broker.progress(login.id).json["status"]?.text == "completed")
        #expect(await broker.call(.get, "/login/start/t1/\(login.id)", key: nil).status == 409)
    }

    @Test func `have no start address while their users are asked`() async throws {
        let broker = try await Self.broker(Self.publicClient)
        let login = await broker.beginAppLogin()
        let path = "/login/start/t1/\(login.id)"
        #expect(await broker.call(.get, path, key: nil).status == 410)
        #expect(await broker.bring(for: login).status == 303)
        for cookie in ["", login.cookie] {
            let answer = await broker.call(
                .get, path, key: nil, fields: ["Accept": BrokerHarness.browserAccept, "Cookie": cookie])
            #expect((answer.status, answer.fields["Set-Cookie"]) == (410, nil))
        }
    }

    @Test func `leave their browser when they have ended`() async throws {
        for client in [Self.publicClient, Self.secretClient] {
            let broker = try await Self.broker(client)
            let (_, answer) = await broker.logIn(app: BrokerHarness.authorization(), token: Self.granted)
            let cookie = try #require(answer.fields["Set-Cookie"]?.text)
            #expect(cookie.hasPrefix("__Host-token-broker-login-"))
            #expect(cookie.hasSuffix("=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax; Secure"))
        }
    }

    // MARK: Where they end

    @Test(arguments: [publicClient, secretClient])
    func `end at any replica`(_ client: String) async throws {
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .seconds(2))
        await Self.prepare(one, client)
        let login = await one.beginAppLogin()
        // Who confirms does so at the first replica, which has not seen the record before.
        for broker in [one, two] { Self.token(broker) }
        #expect(await Self.ends(login, at: two, asking: one))
        #expect(one.transport.seen.count + two.transport.seen.count == 1)
        #expect(await one.bring(for: login, accept: "application/json").status == 409)
    }

    private static let rotated = "k2:HRwbGhkYFxYVFBMSERAPDg0MCwoJCAcGBQQDAgEAHx4=," + BrokerHarness.masterKeys

    @Test(arguments: [publicClient, secretClient])
    func `outlive a change of the master key`(_ client: String) async throws {
        let broker = try await Self.broker(client)
        let (login, other) = (await broker.beginAppLogin(), await broker.beginAppLogin())
        let asked = await broker.bring("error=access_denied", for: other)
        #expect(asked.status == 303)
        try await broker.vault.adopt(try Keyring(parsing: Self.rotated))
        Self.token(broker)
        #expect(await Self.ends(login, at: broker))
        // One that has begun with the new key ends at a replica that knows both, in the old order.
        let begun = await broker.beginAppLogin()
        let old = "\(BrokerHarness.masterKeys),\(Self.rotated.split(separator: ",")[0])"
        let replica = try await BrokerHarness(store: broker.store, time: broker.time, masterKeys: old)
        Self.token(replica)
        #expect(await Self.ends(begun, at: replica))
    }

    @Test func `of one browser do not disturb each other`() async throws {
        let broker = try await Self.broker(Self.publicClient)
        let one = await broker.beginAppLogin()
        let two = await broker.beginAppLogin(cookie: one.cookie)
        #expect(one.id != two.id)
        for (login, code) in [(two, "c-2"), (one, "c-1")] {
            Self.token(broker)
            #expect(await Self.ends(login, at: broker, cookie: "\(one.cookie); \(two.cookie)", code: code))
        }
        #expect(broker.transport.seen.map { $0.form["code"] } == ["c-2", "c-1"])
    }

    @Test func `that come by a posted form are led to the address, with the cookie`() async throws {
        let broker = try await Self.broker()
        let login = await broker.beginAppLogin()
        let answer = await broker.formPost("code=c-1&state=\(login.state)")
        let location = try #require(answer.fields["Location"]?.text)
        #expect(answer.status == 303 && location.contains("/login/callback?"))
        #expect(BrokerHarness.parameters(of: location)["state"] == login.state)
        #expect(await broker.formPost("code=c-1&state=unknown").status == 410)
        Self.token(broker)
        #expect(await Self.ends(login, at: broker))
    }

    // MARK: Other browsers

    @Test func `end with their own cookie only`() async throws {
        let broker = try await Self.broker()
        let other = try await BrokerHarness(masterKeys: String(Self.rotated.split(separator: ",")[0]))
        await Self.prepare(other)
        let (login, second) = (await broker.beginAppLogin(), await broker.beginAppLogin())
        let foreign = await other.beginAppLogin()
        var altered = Array(login.value.utf8)
        altered[40] = altered[40] == UInt8(ascii: "A") ? UInt8(ascii: "B") : UInt8(ascii: "A")
        let values = [
            nil, second.value, foreign.value, String(decoding: altered, as: UTF8.self), "", "AAAA",
            String(login.value.dropLast(4)), login.value + "AAAA", String(repeating: "A", count: 5000),
            Base64URL.encode(SHA256.digest(Array(login.value.utf8))),
        ]
        for value in values {
            let cookie = value.map { "\(login.name)=\($0)" } ?? second.cookie
            let json = await broker.bring(for: login, cookie: cookie, accept: "application/json")
            #expect((json.status, json.code) == (403, "forbidden"), "\(value ?? "none")")
            let page = await broker.following(await broker.bring(for: login, cookie: cookie))
            #expect(page.status == 403)
            #expect(page.text.contains("started in another browser"))
        }
        // A state that no login has is unknown, whatever the cookie.
        let wrong = login.state.dropLast() + (login.state.last == "A" ? "E" : "A")
        for state in [wrong, "x", String(repeating: "A", count: 59), foreign.state[...]] {
            for cookie in [login.cookie, foreign.cookie] {
                let answer = await broker.callback("code=c-1&state=\(state)", cookie: cookie)
                #expect(answer.status == 410)
            }
        }
        #expect(try await broker.count(.login) == 0)
        #expect(broker.transport.seen.isEmpty)
        Self.token(broker)
        #expect(await Self.ends(login, at: broker))
        // The record does not take another cookie either.
        #expect(await broker.bring(for: login, cookie: second.cookie, accept: "application/json").status == 409)
    }

    @Test func `that wait for an answer of their user take no other cookie`() async throws {
        let broker = try await Self.broker(Self.publicClient)
        let (login, second) = (await broker.beginAppLogin(), await broker.beginAppLogin())
        let asked = await broker.bring(for: login)
        let digest = Base64URL.encode(SHA256.digest(Array(login.value.utf8)))
        for cookie in [second.cookie, "\(login.name)=\(digest)", "\(login.name)=\(second.value)"] {
            #expect(await broker.bring(for: login, cookie: cookie, accept: nil).status == 403)
            let both = [cookie, BrokerHarness.cookie(asked) ?? ""].joined(separator: "; ")
            let path = BrokerHarness.path(of: asked.fields["Location"]?.text ?? "")
            #expect(await broker.press(at: path, cookie: both).status == 403)
        }
        Self.token(broker)
        #expect(await broker.confirm(asked, login).parameters["code"] != nil)
    }

    @Test(arguments: [(599_999, true), (600_000, false)])
    func `end within ten minutes`(_ milliseconds: Int64, _ isInTime: Bool) async throws {
        let broker = try await Self.broker()
        let login = await broker.beginAppLogin()
        broker.time.advance(by: .milliseconds(milliseconds))
        if isInTime {
            Self.token(broker)
            #expect(await Self.ends(login, at: broker))
            return
        }
        for cookie in [login.cookie, "a=b"] {
            #expect(await broker.bring(for: login, cookie: cookie, accept: "application/json").code == "gone")
            #expect(await broker.following(await broker.bring(for: login, cookie: cookie)).status == 410)
        }
        #expect(try await broker.count(.login) == 0)
    }

    // MARK: Twice

    @Test func `that come twice at once present one code`() async throws {
        let broker = try await Self.broker()
        let login = await broker.beginAppLogin()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, Self.granted)))
        async let first = Self.ends(login, at: broker)
        await gate.arrivals()
        #expect(await broker.bring(for: login, accept: "application/json").status == 409)
        gate.open()
        #expect(await first)
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `whose record another request makes meanwhile go on with that`() async throws {
        let time = ManualTime()
        let store = FaultyStore(MemoryRecordStore { time.monotonic })
        let broker = try await BrokerHarness(store: store, time: time)
        await Self.prepare(broker, Self.publicClient)
        let login = await broker.beginAppLogin()
        let gate = Gate()
        store.onCommit(of: .login, .hold(gate))
        async let held = broker.bring(for: login)
        await gate.arrivals()
        let asked = await broker.bring(for: login)
        #expect(asked.fields["Location"]?.text.contains("/login/confirm/") == true)
        gate.open()
        // The browser is asked by both answers; the later one counts.
        let later = await held
        #expect(later.fields["Location"] == asked.fields["Location"])
        Self.token(broker)
        #expect(await broker.confirm(later, login).parameters["code"] != nil)
        #expect(try await broker.count(.login) == 1)
        #expect(broker.transport.seen.count == 1)
    }

    /// A browser whose user presses twice, or loads again, shows the answer to the last request only.
    @Test(arguments: [publicClient, secretClient])
    func `that are finished twice lead to the app both times, with one code`(_ client: String) async throws {
        let broker = try await BrokerHarness(time: ManualTime(skipsSleeps: false))
        await Self.prepare(broker, client)
        let login = await broker.beginAppLogin()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, Self.granted)))
        let asked = client == Self.publicClient ? await broker.bring(for: login) : nil
        @Sendable func finish(_ cookie: String) async -> String? {
            if let asked {
                let both = [cookie, BrokerHarness.cookie(asked) ?? ""].joined(separator: "; ")
                let answer = await broker.press(
                    "continue", at: BrokerHarness.path(of: asked.fields["Location"]?.text ?? ""), cookie: both)
                return answer.text.split(separator: "code=").dropFirst().first.map { String($0.prefix(43)) }
            }
            let answer = await broker.bring(for: login, cookie: cookie)
            return BrokerHarness.parameters(of: answer.fields["Location"]?.text ?? "")["code"]
        }
        async let first = finish(login.cookie)
        await gate.arrivals()
        async let second = finish(login.cookie)
        // It waits for the end that the first one brings about.
        await broker.time.sleepers(of: .seconds(20))
        gate.open()
        let codes = [await first, await second, await finish(login.cookie)]
        let code = try #require(codes[0])
        #expect(codes == [code, code, code])
        #expect(broker.transport.seen.count == 1)
        let digest = Base64URL.encode(SHA256.digest(Array(login.value.utf8)))
        for cookie in ["a=b", "\(login.name)=\(digest)", "\(login.name)=\(await broker.beginAppLogin().value)"] {
            #expect(await finish(cookie) == nil)
        }
        let secret = client == Self.publicClient ? nil : "0123456789abcdef"
        #expect(await broker.exchange(code, ["client_secret": secret]).status == 200)
        // The app has the code, and another use would end its session.
        #expect(await finish(login.cookie) == nil)
    }

    @Test func `that are brought back with ever new codes end`() async throws {
        let broker = try await Self.broker(Self.publicClient)
        let login = await broker.beginAppLogin()
        for number in 1...10 {
            let asked = await broker.bring("code=c-\(number)", for: login)
            #expect(asked.fields["Location"]?.text.contains("/login/confirm/") == true)
        }
        let refused = await broker.following(await broker.bring("code=c-11", for: login))
        #expect(refused.status == 410)
        #expect(refused.text.contains("begin again"), "\(refused.text)")
    }

    @Test(arguments: [
        ("x=y", secretClient, 400), ("code=c-1&iss=https%3A%2F%2Fother.example", secretClient, 400),
        ("code=", secretClient, 400), ("code=c-1", publicClient, 403),
        ("code=" + String(repeating: "c", count: 4097), publicClient, 403),
    ])
    func `that a response does not end store nothing`(_ response: String, _ client: String, _ status: Int) async throws
    {
        let broker = try await Self.broker(client)
        let login = await broker.beginAppLogin()
        #expect(await broker.bring(response, for: login, accept: "application/json").status == status)
        #expect(try await broker.count(.login) == 0)
        Self.token(broker)
        #expect(await Self.ends(login, at: broker))
    }

    // MARK: The configuration

    @Test(arguments: [
        (#"{"client_id": "c2"}"#, false), (#"{"client_id": "c1", "scopes": ["r_usr"]}"#, false),
        (#"{"client_id": "c1", "auth_service_base_uri": "https://other.example"}"#, false),
        (#"{"client_id": "c1", "login_service_base_uri": "https://other.example"}"#, false),
        (
            #"""
            {"provider": "oidc", "client_id": "c1", "endpoints": {"authorization": "https://login.tidal.com/authorize",
             "token": "https://auth.tidal.com/v1/oauth2/token"}}
            """#, false
        ),
        (#"{"client_id": "c1", "client_secret": "new", "display_name": "Acme"}"#, true),
        (#"{"client_id": "c1", "callback_uri": "per_tenant"}"#, true),
    ])
    func `of another registration have to begin again`(_ tenant: String, _ isSame: Bool) async throws {
        let broker = try await Self.broker()
        let login = await broker.beginAppLogin()
        await broker.makeTenant("t1", tenant)
        if isSame {
            Self.token(broker)
            #expect(await Self.ends(login, at: broker))
            return
        }
        let json = await broker.bring(for: login, accept: "application/json")
        #expect((json.status, json.code) == (410, "gone"))
        #expect(json.text.contains("another registration"))
        let page = await broker.following(await broker.bring(for: login))
        #expect(page.status == 410)
        #expect(page.text.contains("registration at this login service was replaced"))
        #expect(broker.transport.seen.isEmpty)
        #expect(try await broker.count(.login) == 0)
    }

    @Test func `present a code with the client's present secret`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "client_secret": "old"}"#)
        await broker.makeClient("app", of: "t1", Self.secretClient)
        let login = await broker.beginAppLogin()
        await broker.makeTenant("t1", #"{"client_id": "c1", "client_secret": "new"}"#)
        Self.token(broker)
        #expect(await Self.ends(login, at: broker))
        let seen = try #require(broker.transport.seen.first)
        let sent = seen.form["client_secret"] ?? seen.fields["Authorization"]?.text ?? ""
        #expect(sent == "new" || sent == "Basic " + Base64.encode(Array("c1:new".utf8)))
    }

    private static func client(_ changes: String) -> String { String(publicClient.dropLast()) + ", \(changes)}" }

    @Test(
        arguments: [
            (#"{"redirect_uris": ["https://other.example/cb"], "storage_key": "default"}"#, false),
            (#"{"redirect_uris": ["https://app.example/cb"], "storage_key": "other"}"#, false),
            (#"{"redirect_uris": ["https://app.example/cb"]}"#, false),
            (secretClient, false), (nil, false), (client(#""name": "Renamed""#), true),
            (#"{"redirect_uris": ["https://a.example/", "https://app.example/cb"], "storage_key": "default"}"#, true),
        ] as [(String?, Bool)])
    func `of an app that was changed have to begin again, unless they still end there`(
        _ changed: String?, _ isSame: Bool
    ) async throws {
        let broker = try await Self.broker(Self.publicClient)
        let login = await broker.beginAppLogin()
        if let changed {
            await broker.makeClient("app", of: "t1", changed)
        } else {
            #expect(await broker.call(.delete, "/tenants/t1/clients/app").status == 204)
        }
        if isSame {
            Self.token(broker)
            #expect(await Self.ends(login, at: broker))
            return
        }
        let json = await broker.bring(for: login, accept: "application/json")
        #expect((json.status, json.code) == (410, "gone"))
        #expect(json.text.contains("Begin another login"))
        let page = await broker.following(await broker.bring(for: login))
        #expect(page.status == 410)
        #expect(page.text.contains("The app was changed"), "\(page.text)")
        #expect(broker.transport.seen.isEmpty)
        #expect(try await broker.count(.login) == 0)
    }

    @Test(arguments: [true, false])
    func `of an app that is removed while its user is asked end nowhere`(isRemoved: Bool) async throws {
        let broker = try await Self.broker(Self.publicClient)
        let login = await broker.beginAppLogin()
        let asked = await broker.bring(for: login)
        if isRemoved {
            #expect(await broker.call(.delete, "/tenants/t1/clients/app").status == 204)
        } else {
            await broker.makeClient("app", of: "t1", Self.publicClient.replacing("app.example", with: "b.example"))
        }
        #expect(await broker.confirm(asked, login).answer.status == 410)
        #expect(broker.transport.seen.isEmpty)
        #expect(try await broker.count(.credentials) == 0)
    }

    @Test func `of a tenant that was made anew are another tenant's`() async throws {
        let broker = try await Self.broker()
        let (login, ended) = (await broker.beginAppLogin(), await broker.beginAppLogin())
        Self.token(broker)
        #expect(await Self.ends(ended, at: broker))
        #expect(await broker.call(.delete, "/tenants/t1").status == 204)
        broker.time.advance(by: .seconds(1))
        await Self.prepare(broker)
        for login in [login, ended] {
            #expect(await broker.bring(for: login, accept: "application/json").status == 410)
        }
        #expect(broker.transport.seen.count == 1)
        #expect(try await broker.count(.credentials) == 0)
    }

    @Test func `of a tenant that is gone are unknown`() async throws {
        let broker = try await Self.broker()
        let login = await broker.beginAppLogin()
        #expect(await broker.call(.delete, "/tenants/t1").status == 204)
        #expect(await broker.bring(for: login, accept: "application/json").status == 410)
    }

    // MARK: Sizes

    private static func target(state count: Int) -> String {
        BrokerHarness.authorization(["state": String(repeating: "s", count: count)])
    }

    @Test(arguments: [0, 1, 1024, 2048])
    func `bear the app's state`(_ count: Int) async throws {
        let broker = try await Self.broker()
        let begun = await broker.authorize(Self.target(state: count))
        let login = try #require(BrokerHarness.appLogin(begun))
        #expect(begun.fields.values("Set-Cookie").allSatisfy { $0.count <= 4096 })
        #expect(login.state.utf8.count == 59)
        Self.token(broker)
        let answer = await broker.bring(for: login)
        let parameters = BrokerHarness.parameters(of: answer.fields["Location"]?.text ?? "")
        #expect(parameters["state"] == (count == 0 ? nil : String(repeating: "s", count: count)))
        #expect(parameters["code"] != nil)
    }

    @Test func `say by how much a state is too long for a cookie`() async throws {
        let broker = try await Self.broker()
        let answer = await broker.authorize(Self.target(state: 3000))
        #expect((answer.status, answer.fields["Set-Cookie"]) == (303, nil))
        let parameters = BrokerHarness.parameters(of: answer.fields["Location"]?.text ?? "")
        #expect(parameters["error"] == "invalid_request")
        #expect(parameters["state"]?.utf8.count == 3000)
        let told = try #require(parameters["error_description"])
        let number = try #require(told.split(separator: " ").compactMap { Int($0) }.first, "\(told)")
        let fitting = await broker.beginAppLogin(Self.target(state: 3000 - number))
        #expect((3490...3500).contains(fitting.value.utf8.count))
        Self.token(broker)
        #expect(await Self.ends(fitting, at: broker))
    }

    @Test func `that a browser has left lying give way to a new one, the oldest first`() async throws {
        let broker = try await Self.broker()
        await broker.makeTenant("t2")
        let stored = await broker.beginLogin(tenant: "t2")
        let short = try #require(BrokerHarness.cookie(await broker.start(stored)))
        var jar = [short]
        var names: [String] = []
        for _ in 0..<30 {
            let answer = await broker.authorize(Self.target(state: 500), cookie: jar.joined(separator: "; "))
            let set = answer.fields.values("Set-Cookie").map(\.text)
            let login = try #require(BrokerHarness.appLogin(answer))
            names.append(login.name)
            for removed in set.dropFirst() {
                #expect(removed.contains("=; Path=/; Max-Age=0;"))
                jar.removeAll { cookie in removed.hasPrefix(cookie.prefix { $0 != "=" } + "=") }
            }
            jar.append(login.cookie)
            #expect(jar.joined(separator: "; ").utf8.count <= 7300)
        }
        #expect(jar.first == short)
        let left = jar.dropFirst().map { String($0.prefix { $0 != "=" }) }
        #expect(left == Array(names.suffix(left.count)) && left.count >= 3, "\(left.count)")
    }

    @Test func `with the longest cookies are two at once`() async throws {
        let broker = try await Self.broker()
        let one = await broker.beginAppLogin(Self.target(state: 2000))
        let begun = await broker.authorize(Self.target(state: 2000), cookie: "other=1; \(one.cookie)")
        #expect(begun.fields.values("Set-Cookie").count == 1)
        // What only looks like a login's cookie is left alone.
        let strange =
            "__Host-token-broker-login-\(String(repeating: "A", count: 21)),=\(String(repeating: "A", count: 7000))"
        let beside = await broker.authorize(Self.target(state: 2000), cookie: strange)
        #expect(beside.fields.values("Set-Cookie").count == 1)
        let third = await broker.authorize(
            Self.target(state: 2000), cookie: "\(one.cookie); \(BrokerHarness.cookie(begun) ?? "")")
        #expect(third.fields.values("Set-Cookie").last?.text.hasPrefix("\(one.name)=; ") == true)
    }

    /// A provider whose endpoints each replica learns from its metadata.
    @Test func `end at a replica that does not know the provider's endpoints yet`() async throws {
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .seconds(2))
        await one.makeTenant("t1", #"{"provider": "oidc", "issuer": "https://op.example", "client_id": "c1"}"#)
        await one.makeClient("app", of: "t1", Self.secretClient)
        let document = #"""
            {"issuer": "https://op.example", "authorization_endpoint": "https://op.example/a",
             "token_endpoint": "https://op.example/t", "response_types_supported": ["code"]}
            """#
        let address = "https://op.example/.well-known/oauth-authorization-server"
        one.transport.standing(at: address, .json(200, document))
        let login = await one.beginAppLogin()
        // While the metadata cannot be had, the login stays as it is.
        two.transport.standing(at: address, .failure(.connectFailed))
        two.transport.standing(at: "https://op.example/.well-known/openid-configuration", .failure(.connectFailed))
        let away = await two.bring(for: login, accept: "application/json")
        #expect(away.status == 503)
        #expect(try await two.count(.login) == 0)
        two.transport.standing(at: address, .json(200, document))
        two.time.advance(by: .seconds(61))
        Self.token(two)
        #expect(await Self.ends(login, at: two))
    }

    // MARK: Earlier builds

    @Test func `leave those that an earlier build has stored as they were`() async throws {
        let broker = try await Self.broker(Self.publicClient)
        let begun = await broker.beginLogin()
        let tenant = try #require(TenantName("t1"))
        let record = try #require(try await broker.vault.read(RecordID(.login, tenant, key: begun.id)))
        guard case .object(var members) = try JSONValue(parsing: record.content.revealedBytes) else { return }
        members["app"] = try JSONValue(
            parsing: Array(
                #"""
                {"client_id": "app", "title": "app", "redirect_uri": "https://app.example/cb", "named_redirect_uri": true,
                 "state": "s-1", "code_challenge": "\#(BrokerHarness.appChallenge)", "stores_by_user": false, "asks_user": false}
                """#.utf8))
        members["bound"] = .bool(true)
        var json = JSONWriter()
        json.value(.object(members))
        try await broker.vault.commit([
            .replace(
                OpenRecord(
                    id: record.id, version: record.version + 1, content: SecretBytes(json.bytes),
                    lookup: record.lookup, expires: record.expires), version: record.version)
        ])
        let started = await broker.start(begun)
        #expect(started.fields["Location"]?.text == begun.uri)
        Self.token(broker)
        let answer = await broker.callback(
            "code=c-1&state=\(begun.state)", cookie: BrokerHarness.cookie(started), followsToEnd: false)
        let parameters = BrokerHarness.parameters(of: answer.fields["Location"]?.text ?? "")
        #expect(await broker.exchange(parameters["code"] ?? "").status == 200)
    }
}
