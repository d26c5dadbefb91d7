package import CredentialStore
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Synchronization
import Testing

/// A provider whose answers about device logins are scripted. It notes at what time it was polled.
package final class DeviceScript: Sendable {
    private struct State {
        var codes = DeviceScript.codes()
        var steps: [ScriptedTransport.Step] = []
        var polls: [Duration] = []
        var pollForms: [[String: String]] = []
        var revoked: [String] = []
    }

    private let time: ManualTime
    private let state = Mutex(State())

    /// - Parameter time: what polls are timed by, from its beginning.
    package init(_ time: ManualTime) {
        self.time = time
    }

    /// When each poll came.
    package var polls: [Duration] { state.withLock { $0.polls } }

    package var pollForms: [[String: String]] { state.withLock { $0.pollForms } }

    /// The tokens that were revoked.
    package var revoked: [String] { state.withLock { $0.revoked } }

    /// What the device authorization request is answered, with 200.
    package func setCodes(_ body: String) { state.withLock { $0.codes = body } }

    /// What the next polls are answered; after them `authorization_pending`.
    package func enqueue(_ steps: ScriptedTransport.Step...) { state.withLock { $0.steps += steps } }

    /// For `ScriptedTransport.always`.
    package var step: ScriptedTransport.Step { .decide { self.answer(to: $0) } }

    private func answer(to seen: ScriptedTransport.Seen) -> ScriptedTransport.Step {
        let now = ManualTime.beginning.duration(to: time.now)
        return state.withLock { state in
            if let token = seen.form["token"] {
                state.revoked.append(token)
                return .json(200, "")
            }
            guard seen.form["device_code"] != nil else { return .json(200, state.codes) }
            state.polls.append(now)
            state.pollForms.append(seen.form)
            return state.steps.isEmpty ? Self.pending : state.steps.removeFirst()
        }
    }

    package static let pending = ScriptedTransport.Step.json(400, #"{"error": "authorization_pending"}"#)
    package static let slowDown = ScriptedTransport.Step.json(400, #"{"error": "slow_down"}"#)

    package static func granted(_ access: String = "access-1") -> ScriptedTransport.Step {
        .json(200, BrokerHarness.token(access, refresh: "refresh-of-\(access)", scope: "r_usr", userID: 42))
    }

    /// An answer to the device authorization request, as RFC 8628 §3.2 spells it.
    package static func codes(interval: Int? = 5, expiresIn: Int = 300) -> String {
        let interval = interval.map { #", "interval": \#($0)"# } ?? ""
        return #"""
            {"device_code": "the-provider's-code", "user_code": "WDJB-MJHT",
             "verification_uri": "https://example.com/device",
             "verification_uri_complete": "https://example.com/device?user_code=WDJB-MJHT",
             "expires_in": \#(expiresIn)\#(interval)}
            """#
    }
}

/// A store that remembers its commits.
package final class RecordingStore: ForwardingStore {
    package let inner: any RecordStore
    package let revalidateAfter: Duration?
    private let seen = Mutex<[[RecordChange]]>([])

    package init(_ inner: any RecordStore = MemoryRecordStore(), revalidateAfter: Duration? = nil) {
        self.inner = inner
        self.revalidateAfter = revalidateAfter
    }

    /// The commits that were made.
    package var commits: [[RecordChange]] { seen.withLock { $0 } }

    package func admit() throws(StoreError) {}

    package func commit(_ changes: [RecordChange]) async throws(StoreError) {
        try await inner.commit(changes)
        seen.withLock { $0.append(changes) }
    }
}

extension BrokerHarness {
    /// A tenant of the preset `oidc` whose provider has every endpoint that a device login can use.
    package static let deviceTenant = #"""
        {"client_id": "c1", "provider": "oidc",
         "endpoints": {"authorization": "https://p.example/authorize", "token": "https://p.example/token",
                       "device_authorization": "https://p.example/device", "revocation": "https://p.example/revoke"}}
        """#

    /// A broker whose time a test moves, with a tenant `t1` at the scripted provider.
    package static func devices(
        store: any RecordStore = MemoryRecordStore(), script: DeviceScript? = nil,
        time: ManualTime = ManualTime(skipsSleeps: false), tenant: String? = deviceTenant
    ) async throws -> (broker: BrokerHarness, script: DeviceScript) {
        let script = script ?? DeviceScript(time)
        let broker = try await BrokerHarness(store: store, time: time)
        broker.transport.always(script.step)
        if let tenant { await broker.makeTenant("t1", tenant) }
        return (broker, script)
    }

    /// Begins a device login, and waits until the broker sleeps before the first poll. Returns its `device_code`.
    /// Fails the test when the login is refused.
    package func beginDevice(storageKey: String = "default", tenant: String = "t1") async -> String {
        let sleeps = time.sleepsBegun
        let answer = await call(.post, "/device", tenant: tenant, body: #"{"storage_key": "\#(storageKey)"}"#)
        guard answer.status == 201, let handle = answer.json["device_code"]?.text else {
            Issue.record("device login refused: \(answer.text)")
            return ""
        }
        if !time.skipsSleeps { await time.sleep(after: sleeps) }
        return handle
    }

    /// What `GET /device/{device_code}` tells.
    package func deviceProgress(_ handle: String, query: String = "", tenant: String = "t1") async -> Answer {
        await call(.get, "/device/\(handle)\(query)", tenant: tenant)
    }

    /// Waits for the end of a login that ends without more time passing. Returns the answer's text.
    package func deviceEnd(_ handle: String, tenant: String = "t1") async -> String {
        await deviceProgress(handle, query: "?wait=60", tenant: tenant).text
    }
}
