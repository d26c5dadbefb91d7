import BrokerTesting
import CredentialStore
import HTTPCodec
import JSON
import Synchronization
import Testing
import TokenBroker

@testable import BrokerCore

/// Requests that change a tenant or a profile only where it is as they say.
@Suite(.timeLimit(.minutes(1))) struct `A condition of a request` {
    private static let body = #"{"client_id": "c2"}"#
    private static let profile = #"""
        {"documentation": "https://acme.example/oauth", "as_of": "2026-11-29", "required": ["client_id"], "notes": [],
         "endpoints": {"authorization": "https://acme.example/a", "token": "https://acme.example/t"}}
        """#

    @Test func `keeps a tenant that was changed from being deleted`() async throws {
        let broker = try await BrokerHarness { $0.core.audit.changes = true }
        await broker.makeTenant()
        let first = await broker.call(.get, "/tenants/t1").tag
        let second = await broker.call(.patch, "/tenants/t1", body: #"{"display_name": "T"}"#).tag
        let path = "/tenants/t1"
        for tag in [#""1""#, first, "W/\(second)"] {
            let answer = await broker.call(.delete, path, fields: ["If-Match": "\(tag)"])
            #expect((answer.status, answer.code) == (412, "precondition_failed"), "\(tag)")
            #expect(answer.text.contains("read it again"))
        }
        #expect(await broker.call(.get, path).tag == second)
        #expect(await broker.call(.delete, path, fields: ["If-Match": #""1", \#(second)"#]).status == 204)
        #expect(await broker.call(.get, path).status == 404)
        for tag in ["*", second] {
            #expect(await broker.call(.delete, path, fields: ["If-Match": "\(tag)"]).status == 404)
        }
        await broker.makeTenant()
        #expect(await broker.call(.delete, path, fields: ["If-Match": "*"]).status == 204)
        // Each deletion is told once.
        let told = Mutex(0)
        _ = try await AuditExport().run(broker.store) { line in
            if (try? JSONValue(parsing: Array(line)))?["action"]?.text == "tenant.removed" { told.withLock { $0 += 1 } }
        }
        #expect(told.withLock { $0 } == 2)
    }

    @Test func `is compared with the tenant at the moment of its removal`() async throws {
        let store = FaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        let tag = await broker.call(.get, "/tenants/t1").tag
        let gate = Gate()
        store.onCommit(of: .tenant, .hold(gate))
        async let deleted = broker.call(.delete, "/tenants/t1", fields: ["If-Match": "\(tag)"])
        await gate.arrivals()
        let changed = await broker.call(.put, "/tenants/t1", body: Self.body)
        #expect(changed.status == 200)
        gate.open()
        #expect(await deleted.status == 412)
        #expect(await broker.call(.get, "/tenants/t1").tag == changed.tag)
    }

    @Test func `creates a tenant and replaces none`() async throws {
        let broker = try await BrokerHarness()
        let path = "/tenants/t1"
        let made = await broker.call(.put, path, body: Self.body, fields: ["If-None-Match": "*"])
        #expect(made.status == 201, "\(made.text)")
        for tag in ["*", made.tag, "W/\(made.tag)", #""1", \#(made.tag)"#] {
            let answer = await broker.call(
                .put, path, body: #"{"client_id": "c3"}"#, fields: ["If-None-Match": "\(tag)"])
            #expect((answer.status, answer.code) == (412, "precondition_failed"), "\(tag)")
            #expect(answer.json["detail"]?.text == "There is a tenant with this name, which If-None-Match forbids.")
        }
        #expect(await broker.call(.get, path).json["client_id"]?.text == "c2")
        #expect(await broker.call(.put, path, body: Self.body, fields: ["If-None-Match": #""1""#]).status == 200)
        let both: Fields = ["If-Match": "*", "If-None-Match": "*"]
        #expect(await broker.call(.put, path, body: Self.body, fields: both).status == 412)
        #expect(await broker.call(.put, "/tenants/t2", body: Self.body, fields: both).status == 412)
    }

    @Test func `creates a profile and replaces none that was put`() async throws {
        let broker = try await BrokerHarness()
        // That the broker carries one is no obstacle.
        for path in ["/providers/acme", "/providers/slack"] {
            let made = await broker.call(.put, path, body: Self.profile, fields: ["If-None-Match": "*"])
            #expect(made.status == 201, "\(made.text)")
            let again = await broker.call(.put, path, body: Self.profile, fields: ["If-None-Match": "*"])
            #expect((again.status, again.code) == (412, "precondition_failed"))
            #expect(again.json["detail"]?.text == "A profile of this name was put, which If-None-Match forbids.")
            #expect(await broker.call(.get, path).tag == made.tag)
            #expect(await broker.call(.delete, path).status == 204)
            #expect(await broker.call(.put, path, body: Self.profile, fields: ["If-None-Match": "*"]).status == 201)
        }
    }
}
