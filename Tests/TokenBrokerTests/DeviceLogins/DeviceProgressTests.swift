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

@Suite(.timeLimit(.minutes(1))) struct `Asking how far a device login is` {
    @Test(arguments: ["abc", "-1", "1.5", "", "1s", "0x10", "%2B5", "1%200", "%D9%A1"])
    func `wait takes a whole number`(wait: String) async throws {
        let (broker, _) = try await BrokerHarness.devices()
        let handle = await broker.beginDevice()
        let answer = await broker.deviceProgress(handle, query: "?wait=\(wait)")
        #expect(answer.status == 400)
        #expect(answer.code == "invalid_request")
        #expect(answer.pointers == ["wait"])
    }

    @Test(arguments: [("0", 0), ("1", 1), ("59", 59), ("60", 60), ("61", 60), ("99999999999999999999", 60)])
    func `it waits that long, sixty seconds at most`(wait: String, seconds: Int) async throws {
        let (broker, script) = try await BrokerHarness.devices()
        script.setCodes(DeviceScript.codes(interval: 600, expiresIn: 600))
        let handle = await broker.beginDevice()
        broker.time.forgetSleeps()
        let waiter = Task { await broker.deviceProgress(handle, query: "?wait=\(wait)").text }
        if seconds > 0 {
            await broker.time.sleepers(of: .seconds(600), .seconds(seconds))
            broker.time.advance(by: .seconds(seconds))
        }
        #expect(await waiter.value == #"{"status":"pending"}"#)
        #expect(broker.time.slept == (seconds == 0 ? [] : [.seconds(seconds)]))
    }

    @Test func `no other parameter is known`() async throws {
        let (broker, _) = try await BrokerHarness.devices()
        let handle = await broker.beginDevice()
        #expect(await broker.deviceProgress(handle, query: "?waits=1").status == 400)
        #expect(await broker.deviceProgress(handle, query: "?wait=1&wait=1").status == 400)
        #expect(await broker.call(.delete, "/device/\(handle)?revoke=true", tenant: "t1").status == 400)
        #expect(await broker.deviceProgress(handle).status == 200)
    }

    @Test func `every waiting caller is answered the moment the login ends`() async throws {
        let (broker, script) = try await BrokerHarness.devices()
        let handle = await broker.beginDevice()
        await broker.time.sleepers(of: .seconds(5))
        let waiters = (0..<3).map { _ in Task { await broker.deviceEnd(handle) } }
        await broker.time.sleepers(of: .seconds(5), .seconds(60), .seconds(60), .seconds(60))
        script.enqueue(DeviceScript.granted())
        broker.time.advance(by: .seconds(5))
        for waiter in waiters { #expect(await waiter.value == #"{"status":"completed"}"#) }
    }

    @Test func `every waiting caller is answered the moment the login expires`() async throws {
        let (broker, script) = try await BrokerHarness.devices()
        script.setCodes(DeviceScript.codes(interval: 600, expiresIn: 30))
        let handle = await broker.beginDevice()
        await broker.time.sleepers(of: .seconds(30))
        let waiter = Task { await broker.deviceEnd(handle) }
        await broker.time.sleepers(of: .seconds(30), .seconds(30))
        broker.time.advance(by: .seconds(30))
        #expect(await waiter.value == #"{"status":"expired"}"#)
    }

    @Test func `a caller that has gone is let go of, and the login goes on`() async throws {
        let (broker, script) = try await BrokerHarness.devices()
        let handle = await broker.beginDevice()
        await broker.time.sleepers(of: .seconds(5))
        let waiter = Task { await broker.deviceEnd(handle) }
        await broker.time.sleepers(of: .seconds(5), .seconds(60))
        waiter.cancel()
        #expect(await waiter.value == #"{"status":"pending"}"#)
        script.enqueue(DeviceScript.granted())
        broker.time.advance(by: .seconds(5))
        #expect(await broker.deviceEnd(handle) == #"{"status":"completed"}"#)
    }

    @Test func `waiting callers are answered when the broker begins to stop`() async throws {
        let (broker, _) = try await BrokerHarness.devices()
        let handle = await broker.beginDevice()
        await broker.time.sleepers(of: .seconds(5))
        let waiter = Task { await broker.deviceEnd(handle) }
        await broker.time.sleepers(of: .seconds(5), .seconds(60))
        broker.broker.beginDraining()
        #expect(await waiter.value == #"{"status":"pending"}"#)
    }

    @Test func `HEAD tells the same without a body`() async throws {
        let (broker, _) = try await BrokerHarness.devices()
        let handle = await broker.beginDevice()
        let get = await broker.deviceProgress(handle)
        let head = await broker.call(.head, "/device/\(handle)", tenant: "t1")
        #expect(head.status == 200)
        #expect(head.fields["Content-Type"] == get.fields["Content-Type"])
        #expect(get.fields["Cache-Control"] == "no-store")
        #expect(await broker.call(.head, "/device/\(String(repeating: "A", count: 43))", tenant: "t1").status == 404)
    }

    // H022 H023
    @Test func `another caller's login cannot be told from a login that never was, nor ended`() async throws {
        let (broker, _) = try await BrokerHarness.devices()
        await broker.makeTenant("t2", BrokerHarness.deviceTenant)
        let handle = await broker.beginDevice(storageKey: "b")
        await broker.time.sleepers(of: .seconds(5))
        broker.time.forgetSleeps()
        let stranger = await broker.makeKey("t2")
        let narrowed = await broker.makeKey("t1", #"{"name": "n", "permissions": ["login"], "storage_keys": ["a"]}"#)
        let unknown = await broker.call(.get, "/device/\(String(repeating: "A", count: 43))", key: stranger)
        #expect(unknown.status == 404)
        #expect(unknown.code == "not_found")
        for key in [stranger, narrowed] {
            for method in [Method.get, .delete] {
                let query = method == .get ? "?wait=60" : ""
                let answer = await broker.call(method, "/device/\(handle)\(query)", key: key)
                #expect(answer.status == 404)
                #expect(answer.body == unknown.body)
            }
        }
        #expect(await broker.deviceProgress(handle, tenant: "t2").status == 404)
        #expect(broker.time.slept.isEmpty)
        for method in [Method.get, .delete] {
            #expect(await broker.call(method, "/device/\(handle)", key: nil).status == 401)
            let reader = await broker.makeKey("t1", #"{"name": "r", "permissions": ["credentials:read", "events"]}"#)
            #expect(await broker.call(method, "/device/\(handle)", key: reader).status == 403)
        }
        let own = await broker.makeKey("t1", #"{"name": "n", "permissions": ["login"], "storage_keys": ["b"]}"#)
        let pattern = await broker.makeKey("t1", #"{"name": "n", "permissions": ["login"], "storage_keys": ["b*"]}"#)
        for key in [own, pattern] {
            #expect(await broker.call(.get, "/device/\(handle)", key: key).text == #"{"status":"pending"}"#)
        }
        #expect(await broker.call(.delete, "/device/\(handle)", key: own).status == 204)
        #expect(await broker.call(.get, "/device/\(handle)", key: own).status == 404)
        for handle in ["x", "..%2F..", "%00", handle + "A", String(handle.dropLast()), handle.dropLast() + "%2F"] {
            #expect(await broker.deviceProgress(handle).status == 404)
            #expect(await broker.call(.delete, "/device/\(handle)", tenant: "t1").status == 404)
        }
    }

    @Test func `the provider's own code names no login`() async throws {
        let (broker, script) = try await BrokerHarness.devices()
        let code = String(repeating: "c", count: 43)
        script.setCodes(DeviceScript.codes().replacing("the-provider's-code", with: code))
        let handle = await broker.beginDevice()
        #expect(handle != code)
        #expect(await broker.deviceProgress(code).status == 404)
    }

    @Test func `an outcome is told for an hour after the code's life, then the login is forgotten`() async throws {
        let (broker, script) = try await BrokerHarness.devices()
        let handle = await broker.beginDevice()
        script.enqueue(DeviceScript.granted())
        broker.time.advance(by: .seconds(5))
        #expect(await broker.deviceEnd(handle) == #"{"status":"completed"}"#)
        broker.time.advance(by: .seconds(3895))
        #expect(try await broker.vault.removeExpired(before: broker.time.now, limit: 10) == 0)
        #expect(await broker.deviceProgress(handle).text == #"{"status":"completed"}"#)
        broker.time.advance(by: .milliseconds(1))
        #expect(try await broker.vault.removeExpired(before: broker.time.now, limit: 10) == 1)
        #expect(await broker.deviceProgress(handle).status == 404)
    }

    @Test func `a store that is away is told as such`() async throws {
        let store = BrokerFaultyStore()
        let (broker, _) = try await BrokerHarness.devices(store: store)
        let handle = await broker.beginDevice()
        let key = await broker.makeKey()
        #expect(await broker.call(.get, "/device/\(handle)", key: key).status == 200)
        store.isAway = true
        for method in [Method.get, .delete] {
            let answer = await broker.call(method, "/device/\(handle)", key: key)
            #expect(answer.status == 503)
            #expect(answer.code == "storage_unavailable")
        }
        store.isAway = false
        #expect(await broker.call(.get, "/device/\(handle)", key: key).status == 200)
    }
}
