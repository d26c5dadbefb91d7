import CredentialStore
import OAuth
import Testing

extension StoreConformance {
    /// What is written comes back.
    static let roundTrips: [StoreConformance] = [
        StoreConformance("what is not there is nil") { store async throws in
            #expect(try await store.read(RecordID(.credentials, StoreSample.alpha, key: "k")) == nil)
            #expect(try await store.find(.apiKey, lookup: StoreSample.digest(1)) == nil)
            #expect(try await store.everything() == [])
        },
        StoreConformance("a record comes back as it was written") { store async throws in
            let bytes = (0...255).map { UInt8($0) }
            let records = [
                StoreSample.record(.tenant, StoreSample.alpha, "", sealed: []),
                StoreSample.record(.credentials, sealed: bytes, expires: Timestamp(milliseconds: 1_700_000_000_123)),
                StoreSample.record(.apiKey, lookup: Array(bytes.prefix(32))),
                StoreSample.record(.login, lookup: Array(bytes.suffix(32)), expires: .latest),
                StoreSample.record(.keyCheck, .broker, "main.0011aabb", version: .max),
                StoreSample.record(.credentials, StoreSample.beta, version: 0, expires: Timestamp(milliseconds: -1)),
                StoreSample.record(.credentials, StoreSample.beta, "z", expires: Timestamp(milliseconds: 0)),
            ]
            for record in records { try await store.commit([.insert(record)]) }
            for record in records { #expect(try await store.read(record.id) == record) }
            #expect(try await store.everything() == records.sorted { $0.id < $1.id })
        },
        StoreConformance("content of 1 MiB comes back") { store async throws in
            var state: UInt64 = 1
            let content = (0..<1 << 20).map { _ in
                state = state &* 6_364_136_223_846_793_005 &+ 1_442_695_040_888_963_407
                return UInt8(truncatingIfNeeded: state >> 56)
            }
            let record = StoreSample.record(sealed: content)
            try await store.commit([.insert(record)])
            #expect(try await store.read(record.id) == record)
        },
        StoreConformance("keys of every spelling stay apart") { store async throws in
            let long = String(repeating: "k", count: 199)
            let keys = [
                "", ".", "..", "...", "-", "--", "~", "~x", "~~", "@", ":", "a:b", "a.b", "a", "A", "aA", "Aa", "AA",
                "con", "..-", "~-", "0", "00", ".tmp", "a.tmp", long + "a", long + "A", long + "b", long + ".",
                String(repeating: ".", count: 200), String(repeating: "A", count: 200),
            ]
            var records: [StoredRecord] = []
            for (index, key) in keys.enumerated() {
                records.append(StoreSample.record(.credentials, StoreSample.alpha, key, sealed: [UInt8(index)]))
            }
            for record in records { try await store.commit([.insert(record)]) }
            for record in records { #expect(try await store.read(record.id) == record) }
            for record in records where record.id.key.count > 1 {
                try await store.commit([.remove(record.id, version: 1)])
            }
            for record in records {
                #expect(try await store.read(record.id) == (record.id.key.count > 1 ? nil : record))
            }
        },
        StoreConformance("one key under several tenants and kinds is several records") { store async throws in
            var records: [StoredRecord] = []
            for tenant in [StoreSample.alpha, StoreSample.beta, .broker] {
                for kind in RecordKind.allCases {
                    records.append(StoreSample.record(kind, tenant, "same", sealed: [UInt8(records.count)]))
                }
            }
            for record in records { try await store.commit([.insert(record)]) }
            for record in records { #expect(try await store.read(record.id) == record) }
            try await store.commit([.remove(records[0].id, version: 1)])
            #expect(try await store.everything() == records.dropFirst().sorted { $0.id < $1.id })
        },
        StoreConformance("a store in order passes its check") { store async throws in
            try await store.check()
            try await store.commit([.insert(StoreSample.record())])
            try await store.check()
            #expect(try await store.everything() == [StoreSample.record()])
        },
    ]

    /// For stores that keep their records when the process ends.
    package static let durableChecks: [StoreConformance] =
        durableLeases + durableReseals + [
            StoreConformance(opening: "what was committed is there after the store is opened again") {
                open async throws in
                var store = try await open()
                let kept = StoreSample.record(.apiKey, lookup: StoreSample.digest(1), expires: Timestamp(seconds: 5))
                let changed = StoreSample.record(.login, lookup: StoreSample.digest(2), expires: Timestamp(seconds: 9))
                let removed = StoreSample.record(.login, StoreSample.alpha, "gone", lookup: StoreSample.digest(3))
                try await store.commit([.insert(kept), .insert(changed), .insert(removed)])
                var replacement = changed
                replacement.version = 2
                replacement.lookup = StoreSample.digest(4)
                try await store.commit([.replace(replacement, version: 1), .remove(removed.id, version: 1)])
                await store.close()

                store = try await open()
                #expect(try await store.everything() == [kept, replacement])
                #expect(try await store.find(.apiKey, lookup: StoreSample.digest(1)) == kept)
                #expect(try await store.find(.login, lookup: StoreSample.digest(2)) == nil)
                #expect(try await store.find(.login, lookup: StoreSample.digest(3)) == nil)
                #expect(try await store.find(.login, lookup: StoreSample.digest(4)) == replacement)
                let rival = StoreSample.record(.login, StoreSample.beta, lookup: StoreSample.digest(4))
                #expect(try await store.conflicts([.insert(rival)]))
                #expect(try await store.removeExpired(before: Timestamp(seconds: 6), limit: 10) == 1)
                #expect(try await store.everything() == [replacement])
                await store.close()
            }
        ] + durableLog

    /// For stores that several processes may have open at once.
    package static let sharedChecks: [StoreConformance] =
        [
            StoreConformance(opening: "what one store commits, another sees at once") { open async throws in
                let first = try await open()
                let second = try await open()
                #expect(first.revalidateAfter != nil)
                let record = StoreSample.record(.apiKey, lookup: StoreSample.digest(1))
                try await first.commit([.insert(record)])
                #expect(try await second.read(record.id) == record)
                #expect(try await second.find(.apiKey, lookup: StoreSample.digest(1)) == record)
                #expect(try await second.conflicts([.insert(record)]))
                try await second.commit([.remove(record.id, version: 1)])
                #expect(try await first.read(record.id) == nil)
                await first.close()
                await second.close()
            },
            StoreConformance(opening: "of many claimants at two stores one wins") { open async throws in
                let first = try await open()
                let second = try await open()
                let won = try await winners(64) { index in
                    let record = StoreSample.record(sealed: [UInt8(index)])
                    return try await !(index % 2 == 0 ? first : second).conflicts([.insert(record)])
                }
                #expect(won.count == 1)
                #expect(try await first.everything().map(\.sealed) == won.map { [UInt8($0)] })
                await first.close()
                await second.close()
            },
        ] + sharedLog

    /// The attempts, of those made at once, that said they succeeded.
    static func winners(
        _ count: Int, _ attempt: @escaping @Sendable (Int) async throws -> Bool
    ) async throws -> [Int] {
        try await withThrowingTaskGroup(of: Int?.self) { group in
            for index in 0..<count {
                group.addTask { try await attempt(index) ? index : nil }
            }
            var won: [Int] = []
            for try await index in group {
                if let index { won.append(index) }
            }
            return won
        }
    }
}
