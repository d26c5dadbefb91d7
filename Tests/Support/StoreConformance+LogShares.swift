import CredentialStore
import DevelopmentProvider
import OAuth
import Testing

extension StoreConformance {
    private static let gamma = TenantName("gamma")!

    /// Appends an entry for each name; its first letter says whose it is.
    private static func write(_ names: String..., to store: any RecordStore) async throws {
        let tenants: [Character: TenantName] = ["a": StoreSample.alpha, "b": StoreSample.beta, "c": gamma]
        for name in names {
            try await store.commit([.append(StoreSample.entry(name, try #require(tenants[name.first!])))])
        }
    }

    private static func trim(
        _ store: any RecordStore, keeping count: Int, before time: Int64 = 0, limit: Int = 99
    ) async throws -> Int {
        try await store.trimLog(before: Timestamp(milliseconds: time), keeping: count, limit: limit)
    }

    /// How tenants share the room of the log.
    static let logShares: [StoreConformance] = [
        StoreConformance("of too many entries those of the tenant go that has the most") { store async throws in
            try await write("b1", "a1", "a2", "a3", "b2", "a4", "a5", "a6", to: store)
            for count in [9, 8] { #expect(try await trim(store, keeping: count) == 0) }
            #expect(try await trim(store, keeping: 7) == 1)
            #expect(try await store.logMarks() == ["b1", "a1*", "a2", "a3", "b2", "a4", "a5", "a6"])
            #expect(try await trim(store, keeping: 5) == 2)
            #expect(try await store.logMarks() == ["b1", "a3*", "b2", "a4", "a5", "a6"])
            #expect(try await trim(store, keeping: 4) == 1)
            #expect(try await store.logMarks() == ["b1", "b2", "a4*", "a5", "a6"])
            // From here on both lose.
            #expect(try await trim(store, keeping: 2) == 2)
            #expect(try await store.logMarks() == ["b1*", "b2", "a5*", "a6"])
            #expect(try await trim(store, keeping: 2) == 0)
            try await write("b3", to: store)
            #expect(try await trim(store, keeping: 2) == 1)
            #expect(try await store.logMarks() == ["b2*", "a5*", "a6", "b3"])
            #expect(try await store.logBounds().trimmed == 0)
        },
        StoreConformance("of tenants with equal numbers the first by name loses first") { store async throws in
            try await write("c1", "b1", "a1", "c2", "b2", "a2", "c3", "b3", "a3", to: store)
            #expect(try await trim(store, keeping: 9) == 0)
            #expect(try await trim(store, keeping: 8) == 1)
            #expect(try await store.logMarks() == ["c1", "b1", "a1*", "c2", "b2", "a2", "c3", "b3", "a3"])
            #expect(try await trim(store, keeping: 6) == 2)
            #expect(try await store.logMarks() == ["c1*", "b1*", "a1*", "c2", "b2", "a2", "c3", "b3", "a3"])
            #expect(try await trim(store, keeping: 4) == 2)
            #expect(try await store.logMarks() == ["c1*", "c2", "b2*", "a2*", "c3", "b3", "a3"])
            #expect(try await trim(store, keeping: 0) == 4)
            #expect(try await store.logMarks() == ["c3*", "b3*", "a3*"])
        },
        StoreConformance("a surplus goes in pieces, and other tenants' entries stay in between") { store async throws in
            for index in 1...9 { try await write("a\(index)", to: store) }
            try await write("b1", "c1", to: store)
            for (limit, removed) in [(0, 0), (1, 1), (4, 4), (3, 3), (3, 0)] {
                #expect(try await trim(store, keeping: 3, limit: limit) == removed)
                #expect(try await store.logMarks().suffix(2) == ["b1", "c1"])
            }
            #expect(try await store.logMarks() == ["a8*", "a9", "b1", "c1"])
        },
        StoreConformance("a reader sees the marker from before it, and from nowhere else") { store async throws in
            try await write("b1", "a1", "a2", "a3", "a4", "b2", to: store)
            let all = try await store.entries(after: 0, tenant: nil, limit: 9)
            #expect(try await trim(store, keeping: 4) == 2)
            let marker = try #require(try await store.entries(after: 0, tenant: StoreSample.alpha, limit: 1).first)
            #expect(marker.sequence == all[2].sequence)
            #expect(
                marker.entry
                    == StoredLogEntry(
                        tenant: StoreSample.alpha, key: "a2", version: 1, time: Timestamp(seconds: 1), sealed: []))
            for (place, seen) in [(0, "b1 a2* a3 a4 b2"), (1, "a2* a3 a4 b2"), (2, "a2* a3 a4 b2"), (3, "a3 a4 b2")] {
                let sequence = place == 0 ? 0 : all[place - 1].sequence
                #expect(try await store.logMarks(after: sequence).joined(separator: " ") == seen)
            }
            #expect(try await store.logMarks(tenant: StoreSample.beta) == ["b1", "b2"])
            #expect(try await store.logMarks(after: marker.sequence, tenant: StoreSample.alpha) == ["a3", "a4"])
            // It is not as a reader has read it that wanted to seal it again.
            #expect(try await store.reseal([Reseal(.entry(all[2]), sealed: Array("sealed A2".utf8))]) == 0)
            #expect(try await store.entries(after: all[1].sequence, tenant: nil, limit: 1) == [marker])
        },
        StoreConformance("a marker goes with its tenant, and is none of the next tenant of the name") {
            store async throws in
            try await write("a1", "a2", "a3", "b1", "b2", "c1", to: store)
            #expect(try await trim(store, keeping: 5) == 1)
            try await store.commit([.removeAll(StoreSample.alpha)])
            #expect(try await store.logMarks() == ["b1", "b2", "c1"])
            try await write("a4", to: store)
            #expect(try await store.logMarks(tenant: StoreSample.alpha) == ["a4"])
            // What was removed is not counted.
            #expect(try await trim(store, keeping: 4) == 0)
            #expect(try await trim(store, keeping: 3) == 1)
            #expect(try await store.logMarks() == ["b1*", "b2", "c1", "a4"])
            try await write("a5", "a6", "a7", to: store)
            #expect(try await trim(store, keeping: 4) == 2)
            #expect(try await store.logMarks() == ["b1*", "b2", "c1", "a5*", "a6", "a7"])
            try await store.commit([.removeAll(StoreSample.beta), .removeAll(StoreSample.alpha)])
            #expect(try await store.logMarks() == ["c1"])
        },
        StoreConformance("a marker goes when it is too old, and moves the bound then") { store async throws in
            for (name, time) in [("a1", 10), ("a2", 20), ("b1", 30), ("a3", 40)] {
                let tenant = name.hasPrefix("a") ? StoreSample.alpha : StoreSample.beta
                let entry = StoreSample.entry(name, tenant, time: Timestamp(milliseconds: Int64(time)))
                try await store.commit([.append(entry)])
            }
            let all = try await store.entries(after: 0, tenant: nil, limit: 9)
            #expect(try await trim(store, keeping: 2) == 2)
            #expect(try await store.logMarks() == ["a2*", "b1", "a3"])
            // What was removed before is too old now; the marker is not.
            #expect(try await trim(store, keeping: 2, before: 20) == 0)
            #expect(try await store.logMarks() == ["a2*", "b1", "a3"])
            #expect(try await store.logBounds().trimmed < all[1].sequence)
            #expect(try await trim(store, keeping: 2, before: 21) == 1)
            #expect(try await store.logMarks() == ["b1", "a3"])
            #expect(try await store.logBounds() == LogBounds(trimmed: all[1].sequence, last: all[3].sequence))
            // What is too old and what is too many goes in one call.
            #expect(try await trim(store, keeping: 0, before: 31) == 2)
            #expect(try await store.logMarks() == ["a3*"])
            #expect(try await store.logBounds().trimmed == all[2].sequence)
        },
        StoreConformance("whatever is written and removed, the log is that of the memory's store") {
            store async throws in
            var generator = SplitMix64(seed: 11)
            let model = MemoryRecordStore()
            let tenants = [StoreSample.alpha, StoreSample.beta, gamma, .broker]
            for round in 0..<60 {
                var changes: [RecordChange] = []
                for index in 0..<Int.random(in: 0...4, using: &generator) {
                    // The first writes as much as the others together.
                    let tenant = tenants[max(0, Int.random(in: -2...3, using: &generator))]
                    changes.append(
                        .append(
                            StoreSample.entry(
                                "\(round)-\(index)", tenant, time: Timestamp(milliseconds: Int64(round)))))
                }
                if round % 17 == 16 { changes.append(.removeAll(tenants[round % 4])) }
                for target: any RecordStore in [store, model] { try await target.commit(changes) }
                let count = Int.random(in: 0...12, using: &generator)
                let time = Int64(max(0, round - Int.random(in: 4...9, using: &generator)))
                let removed = try await trim(model, keeping: count, before: time)
                #expect(try await trim(store, keeping: count, before: time) == removed)
                let entries = try await store.entries(after: 0, tenant: nil, limit: 999).map(\.entry)
                #expect(try await model.entries(after: 0, tenant: nil, limit: 999).map(\.entry) == entries)
                #expect(entries.count { !$0.isMarker } <= count)
            }
        },
    ]
}
