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

@Suite(.timeLimit(.minutes(1))) struct `Beginning a device login` {
    /// A broker at TIDAL whose clock moves with each sleep, so that retries take no time.
    private static func tidal() async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "client_unique_key": "u1", "scopes": ["r_usr", "w_usr"]}"#)
        return broker
    }

    private static let tidalCodes = #"""
        {"deviceCode": "d-1", "userCode": "WQTUF", "verificationUri": "link.tidal.com",
         "verificationUriComplete": "link.tidal.com/WQTUF", "expiresIn": 300, "interval": 2}
        """#

    // MARK: What comes back

    @Test func `TIDAL's answer is told in the RFC's words, with a scheme before its addresses`() async throws {
        let broker = try await Self.tidal()
        broker.time.holdSleeps()
        broker.transport.enqueue(.json(200, Self.tidalCodes))
        let answer = await broker.call(.post, "/device", tenant: "t1")
        #expect(answer.status == 201)
        #expect(answer.fields["Cache-Control"] == "no-store")
        let members = try #require(answer.json.object)
        #expect(
            members.keys.sorted() == [
                "device_code", "expires_in", "interval", "user_code", "verification_uri", "verification_uri_complete",
            ])
        #expect(members["user_code"]?.string == "WQTUF")
        #expect(members["verification_uri"]?.string == "https://link.tidal.com")
        #expect(members["verification_uri_complete"]?.string == "https://link.tidal.com/WQTUF")
        #expect(members["expires_in"]?.integer == 300)
        #expect(members["interval"]?.integer == 2)
        let handle = try #require(members["device_code"]?.text)
        #expect(handle.utf8.count == 43)
        #expect(!answer.text.contains("d-1"))
        #expect(broker.transport.seen.map(\.url) == ["https://auth.tidal.com/v1/oauth2/device_authorization"])
        #expect(broker.transport.seen[0].form == ["client_id": "c1", "scope": "r_usr w_usr"])
    }

    @Test func `the RFC's answer is told as it is; without an interval it is five seconds`() async throws {
        let (broker, script) = try await BrokerHarness.devices()
        script.setCodes(
            #"{"device_code": "d", "user_code": "U", "verification_uri": "http://p.example/d", "expires_in": 1800}"#)
        let answer = await broker.call(.post, "/device", tenant: "t1", body: "{}")
        #expect(answer.status == 201)
        #expect(answer.json["verification_uri"]?.string == "http://p.example/d")
        #expect(answer.json["verification_uri_complete"] == nil)
        #expect(answer.json["expires_in"]?.integer == 1800)
        #expect(answer.json["interval"]?.integer == 5)
        await broker.time.sleepers(of: .seconds(5))
        await broker.time.pass(.milliseconds(4500))
        #expect(script.polls.isEmpty)
        await broker.time.pass(.milliseconds(500))
        #expect(script.polls == [.seconds(5)])
    }

    @Test func `each login has a handle of its own`() async throws {
        let (broker, _) = try await BrokerHarness.devices()
        let handles = [await broker.beginDevice(), await broker.beginDevice(), await broker.beginDevice()]
        #expect(Set(handles).count == 3)
        for handle in handles { #expect(await broker.deviceProgress(handle).text == #"{"status":"pending"}"#) }
    }

    @Test func `TIDAL is polled with the grant of RFC 8628 and the unique key`() async throws {
        let broker = try await Self.tidal()
        broker.time.holdSleeps()
        broker.transport.enqueue(.json(200, Self.tidalCodes))
        let handle = await broker.beginDevice()
        broker.transport.enqueue(DeviceScript.granted())
        broker.time.advance(by: .seconds(2))
        #expect(await broker.deviceEnd(handle) == #"{"status":"completed"}"#)
        let poll = try #require(broker.transport.seen.last)
        #expect(poll.url == "https://auth.tidal.com/v1/oauth2/token")
        #expect(poll.form["grant_type"] == "urn:ietf:params:oauth:grant-type:device_code")
        #expect(poll.form["device_code"] == "d-1")
        #expect(poll.form["client_id"] == "c1")
        #expect(poll.form["client_unique_key"] == "u1")
        #expect(poll.isPinned)
    }

    // MARK: A provider that fails

    // T14
    @Test(arguments: [500, 502, 503, 599])
    func `a server that fails is asked six times, then the call can be repeated`(status: Int) async throws {
        let broker = try await Self.tidal()
        broker.transport.always(.json(status, #"{"error": "server_error"}"#))
        let answer = await broker.call(.post, "/device", tenant: "t1")
        #expect(answer.status == 503)
        #expect(answer.code == "retryable_error")
        #expect(answer.json["error_code"]?.string == "server_error")
        #expect(answer.retryAfter != nil)
        #expect(broker.transport.seen.count == 6)
        #expect(
            broker.time.slept == [.milliseconds(500), .seconds(1), .seconds(2), .seconds(4), .seconds(8)])
        #expect(try await broker.count(.device) == 0)
    }

    // T14
    @Test func `the sixth answer counts`() async throws {
        let broker = try await Self.tidal()
        for _ in 0..<4 { broker.transport.enqueue(.json(503, "{}")) }
        broker.transport.enqueue(.failure(.connectionLost(requestSent: true)), .json(200, Self.tidalCodes))
        // From here on only the poll is left to come; it never ends in this test.
        broker.transport.always(.after(Gate(), DeviceScript.pending))
        #expect(await broker.call(.post, "/device", tenant: "t1").status == 201)
    }

    @Test(
        arguments: [
            (400, #"{"error": "invalid_scope"}"#, "invalid_scope"),
            (401, #"{"error": "invalid_client"}"#, "invalid_client"),
            (403, #"{"status": 403, "sub_status": 4001}"#, "4001"), (404, "{}", nil),
        ] as [(Int, String, String?)])
    func `a refusal is final after one call`(status: Int, body: String, errorCode: String?) async throws {
        let broker = try await Self.tidal()
        broker.transport.always(.json(status, body))
        let answer = await broker.call(.post, "/device", tenant: "t1")
        #expect(answer.status == 502)
        #expect(answer.code == "unexpected_error")
        #expect(answer.json["error_code"]?.string == errorCode)
        #expect(broker.transport.seen.count == 1)
        #expect(try await broker.count(.device) == 0)
    }

    @Test(arguments: [
        TransportError.connectFailed, .timedOut(.firstByte, requestSent: true), .connectionLost(requestSent: true),
    ])
    func `a provider that is not reached is a network error`(failure: TransportError) async throws {
        let broker = try await Self.tidal()
        broker.transport.always(.failure(failure))
        let answer = await broker.call(.post, "/device", tenant: "t1")
        #expect(answer.status == 503)
        #expect(answer.code == "network_error")
        #expect(answer.retryAfter != nil)
        #expect(broker.transport.seen.count == 6)
    }

    @Test(arguments: [
        "", "[]", "{}", #"{"device_code": "d", "user_code": "U"}"#,
        #"{"device_code": "d", "verification_uri": "https://p.example/"}"#,
        #"{"user_code": "U", "verification_uri": "https://p.example/"}"#,
        #"{"device_code": "d", "user_code": "U", "verification_uri": "javascript:alert(1)"}"#,
    ])
    func `an answer without usable codes is final after one call`(body: String) async throws {
        let broker = try await Self.tidal()
        broker.transport.always(.json(200, body))
        let answer = await broker.call(.post, "/device", tenant: "t1")
        #expect(answer.status == 502)
        #expect(answer.code == "token_response_error")
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `a provider that is not who it should be is told nothing more`() async throws {
        let broker = try await Self.tidal()
        broker.transport.always(.failure(.untrusted(.pin)))
        let answer = await broker.call(.post, "/device", tenant: "t1")
        #expect(answer.status == 502)
        #expect(answer.code == "provider_untrusted")
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `a provider without a device authorization endpoint is a matter of configuration`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1",
            #"""
            {"client_id": "c1", "provider": "oidc",
             "endpoints": {"authorization": "https://p.example/authorize", "token": "https://p.example/token"}}
            """#)
        let answer = await broker.call(.post, "/device", tenant: "t1")
        #expect(answer.status == 424)
        #expect(answer.code == "illegal_configuration")
        #expect(broker.transport.seen.isEmpty)
    }

    // MARK: The store and the tenant

    @Test(arguments: [BrokerFaultyStore.Fault.refuse, .loseAnswer])
    func `nothing is polled for a login that no client was told of`(fault: BrokerFaultyStore.Fault) async throws {
        let store = BrokerFaultyStore()
        let (broker, script) = try await BrokerHarness.devices(store: store)
        store.disturb([fault]) { $0.writes(.device) }
        let answer = await broker.call(.post, "/device", tenant: "t1")
        #expect(answer.status == 503)
        #expect(answer.code == "storage_unavailable")
        broker.time.advance(by: .seconds(60))
        await broker.broker.deviceLogins.finish()
        #expect(script.polls.isEmpty)
    }

    @Test func `a tenant that is removed while the provider answers has no login`() async throws {
        let (broker, script) = try await BrokerHarness.devices()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, DeviceScript.codes())))
        async let answer = broker.call(.post, "/device", tenant: "t1")
        await gate.arrivals()
        #expect(await broker.call(.delete, "/tenants/t1").status == 204)
        gate.open()
        #expect(await answer.status == 404)
        #expect(try await broker.count(.device) == 0)
        #expect(script.polls.isEmpty)
    }

    // MARK: Callers

    @Test(arguments: [
        (#"{"storagekey": "a"}"#, "/storagekey"), (#"{"storage_key": "a b"}"#, "/storage_key"),
        (#"{"storage_key": 1}"#, "/storage_key"), (#"{"scopes": []}"#, "/scopes"),
    ])
    func `what the body may not say is refused by its pointer`(body: String, pointer: String) async throws {
        let (broker, _) = try await BrokerHarness.devices()
        let answer = await broker.call(.post, "/device", tenant: "t1", body: body)
        #expect(answer.status == 400)
        #expect(answer.code == "invalid_request")
        #expect(answer.pointers == [pointer])
        #expect(broker.transport.seen.isEmpty)
    }

    @Test func `strangers, and callers without the permission, reach no provider`() async throws {
        let (broker, _) = try await BrokerHarness.devices()
        await broker.makeTenant("t2")
        let narrowed = await broker.makeKey("t1", #"{"name": "n", "permissions": ["login"], "storage_keys": ["a"]}"#)
        let reader = await broker.makeKey(
            "t1", #"{"name": "r", "permissions": ["credentials:read", "credentials:write", "events"]}"#)
        #expect(await broker.call(.post, "/device", key: nil).status == 401)
        #expect(await broker.call(.post, "/device", key: reader).status == 403)
        #expect(await broker.call(.post, "/device", key: narrowed).status == 403)
        #expect(await broker.call(.post, "/device", key: narrowed, body: #"{"storage_key": "b"}"#).status == 403)
        #expect(await broker.call(.post, "/device", key: narrowed, tenant: "t2").status == 403)
        #expect(await broker.call(.post, "/device").status == 400)
        #expect(await broker.call(.post, "/device", tenant: "nobody").status == 404)
        #expect(await broker.call(.post, "/device?storage_key=a", tenant: "t1").status == 400)
        let text = await broker.call(
            .post, "/device", tenant: "t1", body: "{}", fields: ["Content-Type": "text/plain"])
        #expect(text.status == 415)
        #expect(broker.transport.seen.isEmpty)
        #expect(await broker.call(.post, "/device", key: narrowed, body: #"{"storage_key": "a"}"#).status == 201)
    }

    @Test func `other methods are not allowed`() async throws {
        let (broker, _) = try await BrokerHarness.devices()
        let list = await broker.call(.get, "/device", tenant: "t1")
        #expect(list.status == 405)
        #expect(list.fields["Allow"]?.text.contains("POST") == true)
        let put = await broker.call(.put, "/device/\(String(repeating: "A", count: 43))", tenant: "t1")
        #expect(put.status == 405)
    }
}
