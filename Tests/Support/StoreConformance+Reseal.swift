import CredentialStore
import OAuth
import Testing

extension StoreConformance {
    /// Other octets for sealed contents.
    static let reseals: [StoreConformance] = [
        StoreConformance("a reseal changes nothing of a record but its octets") { store async throws in
            let record = StoreSample.record(
                .apiKey, version: 7, lookup: StoreSample.digest(1), expires: Timestamp(seconds: 9_000_000_000),
                due: Timestamp(seconds: 8))
            try await store.commit([.insert(record), .append(StoreSample.entry("e"))])
            let held = RecordChange.claim(record.id, version: 7, holder: "h", replacing: nil, for: .seconds(60))
            try await store.commit([held])
            var expected = record
            expected.sealed = [9, 9, 9]
            #expect(try await store.reseal([Reseal(.record(record), sealed: [9, 9, 9])]) == 1)
            var read = try #require(try await store.read(record.id))
            #expect(read.lease?.holder == "h")
            read.lease = nil
            #expect(read == expected)
            #expect(try await store.find(.apiKey, lookup: StoreSample.digest(1))?.sealed == [9, 9, 9])
            #expect(try await store.list(.apiKey, tenant: nil, after: nil, limit: 9).map(\.sealed) == [[9, 9, 9]])
            #expect(try await store.nextDue(.apiKey) == Timestamp(seconds: 8))
            #expect(try await store.logKeys() == ["e"])
        },
        StoreConformance("a reseal leaves what is not as it was read") { store async throws in
            let (first, second) = (
                StoreSample.record(.credentials, StoreSample.alpha, "a"),
                StoreSample.record(.credentials, StoreSample.alpha, "b")
            )
            let removed = StoreSample.record(.credentials, StoreSample.alpha, "c")
            try await store.commit([.insert(first), .insert(second)])
            let next = StoreSample.record(.credentials, StoreSample.alpha, "a", version: 2)
            try await store.commit([.replace(next, version: 1)])
            let other = StoreSample.record(.credentials, StoreSample.alpha, "b", sealed: [7])
            let stale = [first, other, removed].map { Reseal(.record($0), sealed: [9]) }
            #expect(try await store.reseal(stale) == 0)
            #expect(try await store.everything() == [next, second])
            #expect(try await store.reseal([stale[0], Reseal(.record(second), sealed: [8])]) == 1)
            #expect(try await store.everything().map(\.sealed) == [next.sealed, [8]])
        },
        StoreConformance(opening: "entries keep their place in the log when they are sealed again") { open in
            let store = try await open()
            for name in ["a", "b", "c", "d", "e"] { try await store.commit([.append(StoreSample.entry(name))]) }
            try await store.commit([.append(StoreSample.entry("f")), .append(StoreSample.entry("g"))])
            let before = try await store.entries(after: 0, tenant: nil, limit: 9)
            var expected = before
            var changes: [Reseal] = []
            for place in [1, 3, 6] {
                expected[place].entry.sealed = Array("SEALED x".utf8)
                changes.append(Reseal(.entry(before[place]), sealed: expected[place].entry.sealed))
            }
            #expect(try await store.reseal(changes) == 3)
            #expect(try await store.reseal(changes) == 0)
            #expect(try await store.entries(after: 0, tenant: nil, limit: 9) == expected)
            try await store.commit([.append(StoreSample.entry("h"))])
            let after = try await store.entries(after: 0, tenant: nil, limit: 9)
            #expect(after.dropLast() == expected[...])
            #expect(after.last?.key == "h")
            #expect(try await store.logBounds().last == after.last?.sequence)
            await store.close()
        },
    ]

    /// For stores that outlive the process.
    static let durableReseals: [StoreConformance] = [
        StoreConformance(opening: "what was sealed again is there after a start") { open in
            var store = try await open()
            let record = StoreSample.record()
            try await store.commit([.insert(record), .append(StoreSample.entry("a")), .append(StoreSample.entry("b"))])
            let entries = try await store.entries(after: 0, tenant: nil, limit: 9)
            #expect(try await store.reseal([Reseal(.record(record), sealed: [6])]) == 1)
            #expect(try await store.reseal([Reseal(.entry(entries[0]), sealed: Array("SEALED a".utf8))]) == 1)
            await store.close()
            store = try await open()
            #expect(try await store.read(record.id)?.sealed == [6])
            let after = try await store.entries(after: 0, tenant: nil, limit: 9)
            #expect(after.map(\.entry.sealed) == [Array("SEALED a".utf8), Array("sealed b".utf8)])
            await store.close()
        }
    ]
}
