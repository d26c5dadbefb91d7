import BrokerTesting
import CredentialStore
import HTTPCodec
import JSON
import OAuth
import Synchronization
import Testing
import TokenBroker

@testable import BrokerCore

/// How many profiles a broker has room for, and what deleted ones take of it.
@Suite(.timeLimit(.minutes(2))) struct `The room for operators' profiles` {
    private static let body = #"""
        {"documentation": "https://acme.example/oauth", "as_of": "2026-11-29", "required": ["client_id"], "notes": [],
         "endpoints": {"authorization": "https://acme.example/a", "token": "https://acme.example/t"}}
        """#

    private static func put(_ name: String, _ broker: BrokerHarness) async -> BrokerHarness.Answer {
        await broker.call(.put, "/providers/\(name)", body: body)
    }

    private static func delete(_ name: String, _ broker: BrokerHarness) async -> Int {
        await broker.call(.delete, "/providers/\(name)").status
    }

    /// The names of the records that stay, deleted profiles among them.
    private static func stored(_ broker: BrokerHarness) async throws -> [String] {
        try await broker.store.list(.provider, tenant: .broker, after: nil, limit: 1000).map(\.id.key)
    }

    @Test func `is that for two hundred, which a replacement takes none of`() async throws {
        let broker = try await BrokerHarness()
        #expect(await Self.put("gone", broker).status == 201)
        #expect(await Self.delete("gone", broker) == 204)
        for number in 1...OperatorProfiles.most { #expect(await Self.put("p-\(number)", broker).status == 201) }
        for name in ["new", "tidal", "gone"] {
            let answer = await Self.put(name, broker)
            #expect((answer.status, answer.code) == (409, "conflict"), "\(name)")
            #expect(answer.text.contains("has 200 profiles of its own"))
        }
        #expect(await Self.put("p-7", broker).status == 200)
        #expect(await Self.delete("p-7", broker) == 204)
        #expect(await Self.put("gone", broker).status == 201)
        #expect(await Self.put("p-7", broker).status == 409)
    }

    @Test func `is not used up by deleted ones, whose oldest records go`() async throws {
        let broker = try await BrokerHarness { $0.core.audit.changes = true }
        for number in 1...OperatorProfiles.mostRemoved + 2 {
            #expect(await Self.put("p-\(number)", broker).status == 201, "\(number)")
            #expect(await Self.delete("p-\(number)", broker) == 204, "\(number)")
            broker.time.advance(by: .seconds(1))
        }
        let names = try await Self.stored(broker)
        #expect(names.count == OperatorProfiles.mostRemoved)
        #expect(!names.contains("p-1") && !names.contains("p-2") && names.contains("p-3"))
        // The audit log tells each deletion once.
        let told = Mutex(0)
        _ = try await AuditExport().run(broker.store) { line in
            if (try? JSONValue(parsing: Array(line)))?["action"]?.text == "provider.removed" {
                told.withLock { $0 += 1 }
            }
        }
        #expect(told.withLock { $0 } == OperatorProfiles.mostRemoved + 2)
        let replica = try await BrokerHarness(store: broker.store, time: broker.time)
        for (name, broker) in [("tidal", broker), ("new", replica)] {
            let answer = await Self.put(name, broker)
            #expect(answer.status == 201, "\(answer.text)")
        }
        // One whose record has gone can be put and deleted anew.
        #expect(await Self.put("p-1", replica).status == 201)
        #expect(await Self.delete("p-1", replica) == 204)
        #expect(try await Self.stored(broker).count == OperatorProfiles.mostRemoved + 2)
    }
}
