import BrokerTesting
import CredentialStore
import DevelopmentProvider
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

@testable import BrokerCore

/// Profiles that operators put, and the tenants that use them.
@Suite(.timeLimit(.minutes(1))) struct `A profile that an operator puts` {
    private static let acme = profile("acme.example")

    /// A profile with a region in its addresses.
    /// - Parameter more: further members, with a comma after each.
    private static func profile(_ host: String, _ more: String = "") -> String {
        #"""
        {\#(more)"documentation": "https://\#(host)/oauth", "as_of": "2026-11-29",
         "required": ["client_id", "client_secret", "parameters.region"], "notes": [],
         "parameters": {"region": {"description": "The region.", "example": "eu"}},
         "endpoints": {"authorization": "https://{region}.\#(host)/authorize", "token": "https://{region}.\#(host)/token"}}
        """#
    }

    private static let tenant =
        #"{"provider": "acme", "client_id": "c1", "client_secret": "s1", "scopes": ["a"], "parameters": {"region": "eu"}}"#

    /// The host and the path at which a login begins.
    private static func place(_ broker: BrokerHarness, tenant: String = "t1") async -> String {
        String(await broker.beginLogin(tenant: tenant).uri.prefix { $0 != "?" })
    }

    // MARK: The profile

    @Test func `is shown and listed beside the shipped ones, and can be changed and sent`() async throws {
        let broker = try await BrokerHarness()
        let made = await broker.call(.put, "/providers/acme", body: Self.profile("acme.example", #""title": "Acme", "#))
        #expect(made.status == 201, "\(made.text)")
        #expect(made.json["name"]?.text == "acme" && made.json["source"]?.text == "operator")
        await broker.makeTenant()
        let key = await broker.makeKey()
        let shown = await broker.call(.get, "/providers/acme", key: key)
        #expect(shown.status == 200 && shown.text == made.text && !made.tag.isEmpty && shown.tag == made.tag)
        let list = await broker.call(.get, "/providers", key: key)
        let names = (list.json["providers"]?.array ?? []).compactMap { $0["name"]?.text }
        #expect(names == (ShippedProfiles.names + ["acme"]).sorted())
        let sources = (list.json["providers"]?.array ?? []).compactMap { $0["source"]?.text }
        #expect(sources.count == names.count && sources.count { $0 == "operator" } == 1)

        let changed = shown.text.replacing("Acme", with: "Acme ID")
        let replaced = await broker.call(.put, "/providers/acme", body: changed)
        #expect(replaced.status == 200 && replaced.json["title"]?.text == "Acme ID" && replaced.tag != made.tag)
        let slack = await broker.call(.get, "/providers/slack", key: key)
        #expect(slack.json["source"]?.text == "shipped" && slack.tag.isEmpty)
        #expect(broker.log.contains { $0.contains("provider_configured") })
    }

    @Test func `is an admin's to put and to delete`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let key = await broker.makeKey()
        #expect(await broker.call(.put, "/providers/acme", key: key, body: Self.acme).status == 403)
        #expect(await broker.call(.delete, "/providers/acme", key: key).status == 403)
        #expect(await broker.call(.delete, "/providers/acme").status == 404)
    }

    @Test(arguments: ["Acme", "-a", "a_b", "a.b", String(repeating: "a", count: 64)])
    func `has a name that a tenant can write`(name: String) async throws {
        let broker = try await BrokerHarness()
        #expect(await broker.call(.put, "/providers/\(name)", body: Self.acme).status == 400)
        let longest = String(repeating: "a", count: 63)
        #expect(await broker.call(.put, "/providers/\(longest)", body: Self.acme).status == 201)
    }

    @Test func `is changed only from the version that If-Match names`() async throws {
        let broker = try await BrokerHarness()
        let path = "/providers/acme"
        #expect(await broker.call(.put, path, body: Self.acme, fields: ["If-Match": "*"]).status == 412)
        let first = await broker.call(.put, path, body: Self.acme)
        let second = await broker.call(.put, path, body: Self.acme, fields: ["If-Match": first.tag])
        #expect(second.status == 200 && second.tag != first.tag)
        let late = await broker.call(.put, path, body: Self.acme, fields: ["If-Match": first.tag])
        #expect((late.status, late.code) == (412, "precondition_failed"))
        #expect(await broker.call(.delete, path, fields: ["If-Match": first.tag]).status == 412)
        #expect(await broker.call(.delete, path, fields: ["If-Match": second.tag]).status == 204)
        // It can be put anew.
        #expect(await broker.call(.put, path, body: Self.acme, fields: ["If-Match": "*"]).status == 412)
        #expect(await broker.call(.put, path, body: Self.acme).status == 201)
    }

    @Test(arguments: [
        (#""colour": 1, "#, "/colour", "is not a known member"),
        (#""name": "other", "#, "/name", "The name must be the one in the path, or be left out."),
        (#""source": "somewhere", "#, "/source", "is not a known member"),
        (#""pkce": "plain", "#, "/pkce", "must be one of required, allowed, forbidden"),
        (
            #""registration": "http://a.example", "#, "/registration",
            "must be an https URL without spaces, user information and fragment"
        ),
        (#""default_lifetime": 0, "#, "/default_lifetime", "must be a whole number from 1 to 315360000, or \"never\""),
        (
            #""pinned_certificates": ["sha256/a"], "#, "/pinned_certificates/0",
            "must be sha256/ and the base64 of 32 bytes"
        ),
        (
            #""refresh": {"endpoint": "https://x.example/{nope}", "parameters": {"a": "b"}}, "#, "/refresh/endpoint",
            "has {nope}, which parameters does not have"
        ),
        (
            #""exchange_for_long_lived": {"endpoint": "https://x.example/{client_secret}", "parameters": {"a": "b"}}, "#,
            "/exchange_for_long_lived/endpoint", "has {client_secret}, which parameters does not have"
        ),
    ])
    func `is refused with the place of what is wrong`(more: String, pointer: String, text: String) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(.put, "/providers/acme", body: Self.profile("acme.example", more))
        #expect((answer.status, answer.code) == (400, "invalid_request"))
        #expect(answer.pointers == [pointer], "\(answer.text)")
        #expect(answer.json["errors"]?.array?.first?["detail"]?.text == text)
        #expect(await broker.call(.get, "/providers/acme").status == 404)
    }

    @Test(arguments: ["acme", "slack", "tidal"]) func `is not put by a request without a body`(name: String)
        async throws
    {
        let broker = try await BrokerHarness()
        let before = await broker.call(.get, "/providers/\(name)")
        for fields in [[:], ["Content-Type": "application/json"]] as [Fields] {
            let answer = await broker.call(.put, "/providers/\(name)", fields: fields)
            #expect((answer.status, answer.code) == (400, "invalid_request"))
            #expect(answer.pointers == [""] && answer.text.contains("send the whole profile"), "\(answer.text)")
        }
        let blank = await broker.call(.put, "/providers/\(name)", body: " ")
        #expect((blank.status, blank.code) == (400, "invalid_request"))
        let after = await broker.call(.get, "/providers/\(name)")
        #expect(after.status == before.status && after.json == before.json && after.tag.isEmpty)
    }

    // MARK: Tenants

    @Test func `is used for logins and refreshes`() async throws {
        let broker = try await BrokerHarness()
        let body = Self.profile(
            "acme.example", #""token_endpoint_auth_method": "client_secret_post", "refresh_parameters": {"x": "y"}, "#)
        #expect(await broker.call(.put, "/providers/acme", body: body).status == 201)
        await broker.makeTenant("t1", Self.tenant)
        #expect(await Self.place(broker) == "https://eu.acme.example/authorize")
        await broker.logIn()
        let exchange = try #require(broker.transport.seen.last)
        #expect(exchange.url == "https://eu.acme.example/token" && exchange.form["client_secret"] == "s1")
        broker.time.advance(by: .seconds(3600))
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-2", refresh: "refresh-2")))
        #expect(await broker.get().token == "access-2")
        let refresh = try #require(broker.transport.seen.last)
        #expect(refresh.form["refresh_token"] == "refresh-1" && refresh.form["x"] == "y")
        let tenant = await broker.call(.get, "/tenants/t1")
        #expect(tenant.json["provider"]?.text == "acme" && tenant.json["profile"] == nil)
    }

    @Test func `is used with a provider that answers, found by a tenant's issuer`() async throws {
        try await EndToEnd.run(.rfc) { all async throws in
            let issuer = try #require(try await all.broker.call(.get, "/tenants/t1").json["issuer"]?.text)
            let put = try await all.broker.call(
                .put, "/providers/home",
                body: #"""
                    {"documentation": "https://home.example", "as_of": "2026-11-29", "required": ["client_id", "issuer"],
                     "notes": [], "token_endpoint_auth_method": "client_secret_post", "prefers_own_auth_method": true}
                    """#)
            #expect(put.status == 201, "\(put.text)")
            let tenant = try await all.broker.call(
                .put, "/tenants/t1",
                body: #"""
                    {"provider": "home", "issuer": "\#(issuer)", "client_id": "the app", "client_secret": "the secret:%",
                     "scopes": ["w_usr", "r_usr"]}
                    """#)
            #expect(tenant.status == 200, "\(tenant.text)")
            let login = try await all.broker.begin()
            #expect(try await all.broker.send(.get, try await all.broker.decide(login.uri)).status == 200)
            #expect(all.requests(.authorizationCode).map(\.clientAuthentication) == [.post])
            let first = try #require(try await all.token().json["token"]?.text)
            all.time.advance(by: .seconds(3600))
            let second = try #require(try await all.token().json["token"]?.text)
            #expect(first != second && all.requests(.refreshToken).map(\.clientAuthentication) == [.post])
        }
    }

    @Test(arguments: ["acme", "slack-two", "", "Slack"])
    func `must be there when a tenant names it`(name: String) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(.put, "/tenants/t1", body: #"{"provider": "\#(name)", "client_id": "c1"}"#)
        #expect(answer.status == 400 && answer.pointers.contains("/provider"), "\(answer.text)")
        await broker.makeTenant()
        let patched = await broker.call(.patch, "/tenants/t1", body: #"{"provider": "\#(name)"}"#)
        #expect(patched.status == 400 && patched.pointers.contains("/provider"), "\(patched.text)")
    }

    @Test func `is kept by a change of a tenant that does not name it`() async throws {
        let broker = try await BrokerHarness()
        _ = await broker.call(.put, "/providers/acme", body: Self.acme)
        await broker.makeTenant("t1", Self.tenant)
        let patched = await broker.call(.patch, "/tenants/t1", body: #"{"display_name": "Acme"}"#)
        #expect(patched.status == 200 && patched.json["provider"]?.text == "acme", "\(patched.text)")
        #expect(await broker.call(.patch, "/tenants/t1", body: #"{"profile": {}}"#).pointers == ["/profile"])
        #expect(await Self.place(broker) == "https://eu.acme.example/authorize")
        let away = await broker.call(
            .patch, "/tenants/t1", body: #"{"provider": "spotify", "parameters": null}"#)
        #expect(away.status == 200 && away.text.contains(#""dropped":["parameters"]"#), "\(away.text)")
        let back = await broker.call(
            .patch, "/tenants/t1", body: #"{"provider": "acme", "parameters": {"region": "us"}}"#)
        #expect(back.status == 200, "\(back.text)")
        #expect(await Self.place(broker) == "https://us.acme.example/authorize")
    }

    @Test func `is used by all its tenants once it is replaced, but not by logins that began before`() async throws {
        let broker = try await BrokerHarness()
        _ = await broker.call(.put, "/providers/acme", body: Self.acme)
        for name in ["t1", "t2"] { await broker.makeTenant(name, Self.tenant) }
        await broker.makeTenant("t3")
        let before = await broker.call(.get, "/tenants/t1").tag
        let login = await broker.beginLogin()
        let put = await broker.call(.put, "/providers/acme", body: Self.profile("acme2.example"))
        #expect(put.status == 200, "\(put.text)")
        for name in ["t1", "t2"] {
            #expect(await Self.place(broker, tenant: name) == "https://eu.acme2.example/authorize")
        }
        #expect(await broker.call(.get, "/tenants/t1").tag != before)
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-1", refresh: "refresh-1")))
        let ended = await broker.call(.get, "/login/callback?code=c-1&state=\(login.state)", key: nil)
        #expect(ended.status == 200, "\(ended.text)")
        #expect(broker.transport.seen.last?.url == "https://eu.acme.example/token")
    }

    @Test func `is not taken where a tenant could not be used with it`() async throws {
        let broker = try await BrokerHarness()
        _ = await broker.call(.put, "/providers/acme", body: Self.acme)
        await broker.makeTenant("t1", Self.tenant)
        let other = Self.acme.replacing("region", with: "zone")
        let answer = await broker.call(.put, "/providers/acme", body: other)
        #expect((answer.status, answer.code) == (409, "conflict"))
        #expect(answer.text.contains("1 tenant") && answer.text.contains("t1 (/parameters/region is not a parameter"))
        #expect(await broker.call(.get, "/providers/acme").text.contains("{region}"))
        #expect(await Self.place(broker) == "https://eu.acme.example/authorize")
    }

    @Test func `stays while tenants use it, which the refusal names`() async throws {
        let broker = try await BrokerHarness()
        _ = await broker.call(.put, "/providers/acme", body: Self.acme)
        for number in 1...7 { await broker.makeTenant("t\(number)", Self.tenant) }
        let answer = await broker.call(.delete, "/providers/acme")
        #expect((answer.status, answer.code) == (409, "conflict"))
        #expect(answer.text.contains("7 tenants") && answer.text.contains("t1, t2, t3, t4, t5 and 2 more"))
        #expect(await broker.call(.get, "/providers/acme").status == 200)
        for number in 1...7 { _ = await broker.call(.delete, "/tenants/t\(number)") }
        #expect(await broker.call(.delete, "/providers/acme").status == 204)
        #expect(await broker.call(.get, "/providers/acme").status == 404)
        #expect(!(await broker.call(.get, "/providers").text.contains("acme")))
        #expect(await broker.call(.put, "/tenants/t1", body: Self.tenant).pointers.contains("/provider"))
    }

    @Test func `takes the place of a shipped one until it is deleted`() async throws {
        let broker = try await BrokerHarness()
        let tenant = #"{"provider": "spotify", "client_id": "c1", "client_secret": "s1"}"#
        await broker.makeTenant("t1", tenant)
        let shipped = await Self.place(broker)
        let own = #"""
            {"documentation": "https://a.example", "as_of": "2026-11-29", "required": ["client_id"], "notes": [],
             "endpoints": {"authorization": "https://a.example/a", "token": "https://a.example/t"}}
            """#
        #expect(await broker.call(.put, "/providers/spotify", body: own).status == 201)
        await broker.makeTenant("t2", tenant)
        for name in ["t1", "t2"] { #expect(await Self.place(broker, tenant: name) == "https://a.example/a") }
        #expect(await broker.call(.get, "/providers/spotify").json["source"]?.text == "operator")
        #expect(await broker.call(.delete, "/providers/spotify").status == 204)
        for name in ["t1", "t2"] { #expect(await Self.place(broker, tenant: name) == shipped) }
        #expect(await broker.call(.get, "/providers/spotify").json["source"]?.text == "shipped")
        #expect(await broker.call(.delete, "/providers/spotify").status == 404)
    }

    @Test func `takes the place of the default, which a tenant need not name`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let own = #"""
            {"documentation": "https://a.example", "as_of": "2026-11-29", "required": ["client_id"], "notes": [],
             "endpoints": {"authorization": "https://a.example/a", "token": "https://a.example/t"}}
            """#
        #expect(await broker.call(.put, "/providers/tidal", body: own).status == 201)
        await broker.makeTenant("t2")
        for name in ["t1", "t2"] { #expect(await Self.place(broker, tenant: name) == "https://a.example/a") }
    }

    // MARK: Replicas, restarts and failures

    @Test func `is used at once by every replica, and after a restart`() async throws {
        let (time, group) = (ManualTime(), ReplicaStore.Group())
        let records = MemoryRecordStore { time.monotonic }
        let ways = [ReplicaStore(records, in: group), ReplicaStore(records, in: group)]
        let one = try await BrokerHarness(store: ways[0], time: time)
        let two = try await BrokerHarness(store: ways[1], time: time)
        for way in ways { way.follow() }
        _ = await one.call(.put, "/providers/acme", body: Self.acme)
        await two.makeTenant("t1", Self.tenant)
        for broker in [one, two] { #expect(await Self.place(broker) == "https://eu.acme.example/authorize") }
        #expect(await two.call(.put, "/providers/acme", body: Self.profile("acme2.example")).status == 200)
        for broker in [one, two] { #expect(await Self.place(broker) == "https://eu.acme2.example/authorize") }
        let restarted = try await BrokerHarness(store: ReplicaStore(records, in: group), time: time)
        #expect(await Self.place(restarted) == "https://eu.acme2.example/authorize")
        #expect(await restarted.call(.get, "/providers/acme").text.contains("acme2.example"))
    }

    @Test func `reaches the tenants that a process left which has died`() async throws {
        let (store, time) = (FaultyStore(), ManualTime())
        let broker = try await BrokerHarness(store: store, time: time)
        _ = await broker.call(.put, "/providers/acme", body: Self.acme)
        await broker.makeTenant("t1", Self.tenant)
        store.onCommit(of: .tenant, .refuse(.unavailable))
        #expect(await broker.call(.put, "/providers/acme", body: Self.profile("acme2.example")).status == 503)
        #expect(await Self.place(broker) == "https://eu.acme.example/authorize")
        let next = try await BrokerHarness(store: store, time: time)
        await next.broker.core.profiles.settleDue()
        #expect(await Self.place(next) == "https://eu.acme.example/authorize")
        time.advance(by: OperatorProfiles.pause + .milliseconds(1))
        await next.broker.core.profiles.settleDue()
        #expect(await Self.place(next) == "https://eu.acme2.example/authorize")
        // Then it is done.
        #expect(try await store.nextDue(.provider) == nil)
    }

    @Test func `is there again where a tenant was put while it was deleted`() async throws {
        let (store, time) = (FaultyStore(), ManualTime())
        let broker = try await BrokerHarness(store: store, time: time)
        _ = await broker.call(.put, "/providers/acme", body: Self.acme)
        // The tenant has read the profile, and is stored once that is deleted.
        let gate = Gate()
        store.onCommit(of: .tenant, .hold(gate))
        async let made = broker.call(.put, "/tenants/t1", body: Self.tenant)
        await gate.arrivals()
        #expect(await broker.call(.delete, "/providers/acme").status == 204)
        gate.open()
        #expect(await made.status == 201)
        #expect(await broker.call(.get, "/providers/acme").status == 404)
        #expect(await Self.place(broker) == "https://eu.acme.example/authorize")
        time.advance(by: OperatorProfiles.pause + .milliseconds(1))
        await broker.broker.core.profiles.settleDue()
        #expect(await broker.call(.get, "/providers/acme").status == 200)
        #expect(broker.log.contains { $0.contains("provider_profile_put_back") })
    }
}
