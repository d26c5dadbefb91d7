import CredentialStore
import OAuth
import Testing

extension StoreConformance {
    /// Marks of what is to be done.
    static let dueMarks: [StoreConformance] = [
        StoreConformance("what is due before the given time is found, the earliest first") { store async throws in
            let now: Int64 = 1_700_000_000_000
            #expect(try await store.nextDue(.login) == nil)
            #expect(try await store.due(.login, before: .latest, limit: 9) == [])
            let times = [("late", now + 1), ("early", now - 1), ("now", now), ("first", Int64(-5)), ("b", now - 1)]
            for (key, due) in times {
                let record = StoreSample.record(.login, StoreSample.alpha, key, due: Timestamp(milliseconds: due))
                try await store.commit([.insert(record)])
            }
            try await store.commit([.insert(StoreSample.record(.login, StoreSample.alpha, "never"))])
            let other = StoreSample.record(.device, due: Timestamp(milliseconds: -9))
            try await store.commit([.insert(other)])

            func keys(_ now: Int64, limit: Int = 9) async throws -> [String] {
                try await store.due(.login, before: Timestamp(milliseconds: now), limit: limit).map(\.id.key)
            }
            #expect(try await keys(now) == ["first", "b", "early"])
            #expect(try await keys(now - 1) == ["first"])
            #expect(try await keys(now + 1) == ["first", "b", "early", "now"])
            #expect(try await keys(now + 2) == ["first", "b", "early", "now", "late"])
            #expect(try await keys(-5) == [])
            #expect(try await keys(-4) == ["first"])
            for limit in 0...3 {
                #expect(try await keys(now, limit: limit) == Array(["first", "b", "early"].prefix(limit)))
            }
            #expect(try await store.due(.device, before: Timestamp(milliseconds: 0), limit: 9) == [other])
            #expect(try await store.nextDue(.login) == Timestamp(milliseconds: -5))
            #expect(try await store.nextDue(.device) == Timestamp(milliseconds: -9))
            #expect(try await store.nextDue(.credentials) == nil)
        },
        StoreConformance("a tenant's marks after a time are counted, up to a limit") { store async throws in
            let now: Int64 = 1_700_000_000_000
            func count(
                _ kind: RecordKind = .login, _ tenant: TenantName = StoreSample.alpha, limit: Int = 9
            ) async throws -> Int {
                try await store.countDue(kind, tenant: tenant, after: Timestamp(milliseconds: now), limit: limit)
            }
            #expect(try await count() == 0)
            for (key, due) in [("past", now - 1), ("now", now), ("a", now + 1), ("b", now + 600_000)] {
                let record = StoreSample.record(.login, StoreSample.alpha, key, due: Timestamp(milliseconds: due))
                try await store.commit([.insert(record)])
            }
            try await store.commit([.insert(StoreSample.record(.login, StoreSample.alpha, "never"))])
            for (kind, tenant) in [(RecordKind.device, StoreSample.alpha), (.login, StoreSample.beta)] {
                let record = StoreSample.record(kind, tenant, "c", due: Timestamp(milliseconds: now + 1))
                try await store.commit([.insert(record)])
            }
            #expect(try await count() == 2)
            #expect(try await count(.device) == 1)
            #expect(try await count(.login, StoreSample.beta) == 1)
            for limit in 0...3 { #expect(try await count(limit: limit) == min(limit, 2)) }
            let settled = StoreSample.record(.login, StoreSample.alpha, "a", version: 2)
            try await store.commit([.replace(settled, version: 1)])
            #expect(try await count() == 1)
        },
        StoreConformance("records of all tenants are due, in the order of their identities") { store async throws in
            var expected: [StoredRecord] = []
            for tenant in [StoreSample.beta, StoreSample.alpha] {
                for key in ["b", "B", "a"] {
                    expected.append(StoreSample.record(.quarantine, tenant, key, due: Timestamp(seconds: 1)))
                }
            }
            for record in expected { try await store.commit([.insert(record)]) }
            #expect(
                try await store.due(.quarantine, before: Timestamp(seconds: 2), limit: 9)
                    == expected.sorted { $0.id < $1.id })
        },
        StoreConformance("a replacement moves the due mark, or takes it away") { store async throws in
            try await store.commit([.insert(StoreSample.record(due: Timestamp(seconds: 1)))])
            let moved = StoreSample.record(version: 2, due: Timestamp(seconds: 5))
            try await store.commit([.replace(moved, version: 1)])
            #expect(try await store.due(.credentials, before: Timestamp(seconds: 5), limit: 9) == [])
            #expect(try await store.due(.credentials, before: Timestamp(seconds: 6), limit: 9) == [moved])
            try await store.commit([.replace(StoreSample.record(version: 3), version: 2)])
            #expect(try await store.due(.credentials, before: .latest, limit: 9) == [])
            #expect(try await store.nextDue(.credentials) == nil)
            #expect(try await store.everything() == [StoreSample.record(version: 3)])
            try await store.commit([.replace(StoreSample.record(version: 4, due: Timestamp(seconds: 7)), version: 3)])
            #expect(try await store.nextDue(.credentials) == Timestamp(seconds: 7))
            try await store.commit([.remove(StoreSample.record().id, version: 4)])
            #expect(try await store.nextDue(.credentials) == nil)
        },
        StoreConformance("settling takes the mark and nothing else") { store async throws in
            let records = [
                StoreSample.record(version: 5, due: Timestamp(seconds: 1)),
                StoreSample.record(
                    .login, version: 5, lookup: StoreSample.digest(1), expires: Timestamp(seconds: 3),
                    due: Timestamp(seconds: 1)),
            ]
            for var record in records {
                try await store.commit([.insert(record)])
                for stale in [Int64.min, 4, 6, .max] {
                    #expect(try await store.conflicts([.settleDue(record.id, version: stale)]))
                }
                #expect(try await store.read(record.id) == record)
                try await store.commit([.settleDue(record.id, version: 5)])
                record.due = nil
                #expect(try await store.read(record.id) == record)
                #expect(try await store.due(record.id.kind, before: .latest, limit: 9) == [])
                #expect(try await store.conflicts([.settleDue(record.id, version: 5)]))
            }
            #expect(try await store.find(.login, lookup: StoreSample.digest(1))?.version == 5)
            #expect(try await store.removeExpired(before: Timestamp(seconds: 3), limit: 9) == 0)
            #expect(try await store.removeExpired(before: Timestamp(seconds: 4), limit: 9) == 1)
            let next = StoreSample.record(version: 6)
            try await store.commit([.replace(next, version: 5)])
            #expect(try await store.everything() == [next])
        },
        StoreConformance("what has no mark, or is missing, cannot be settled") { store async throws in
            let bare = StoreSample.record(version: 5, expires: Timestamp(seconds: 9))
            try await store.commit([.insert(bare)])
            #expect(try await store.conflicts([.settleDue(bare.id, version: 5)]))
            let missing = RecordID(.credentials, StoreSample.alpha, key: "missing")
            #expect(try await store.conflicts([.settleDue(missing, version: 1)]))
            #expect(
                try await store.conflicts([
                    .settleDue(missing, version: 1), .append(StoreSample.entry("no")),
                    .replace(StoreSample.record(version: 6), version: 5),
                ]))
            #expect(try await store.everything() == [bare])
            #expect(try await store.logBounds() == LogBounds())
        },
        StoreConformance("what is due is not expired") { store async throws in
            let due = StoreSample.record(.login, StoreSample.alpha, "due", due: Timestamp(seconds: 1))
            let late = StoreSample.record(
                .login, StoreSample.alpha, "late", expires: Timestamp(seconds: 9), due: Timestamp(seconds: 1))
            let expired = StoreSample.record(
                .login, StoreSample.alpha, "expired", expires: Timestamp(seconds: 1), due: Timestamp(seconds: 9))
            try await store.commit([.insert(due), .insert(late), .insert(expired)])
            #expect(try await store.removeExpired(before: Timestamp(seconds: 5), limit: 9) == 1)
            #expect(try await store.everything() == [due, late])
            #expect(try await store.nextDue(.login) == Timestamp(seconds: 1))
            try await store.commit([.removeAll(StoreSample.alpha)])
            #expect(try await store.nextDue(.login) == nil)
        },
        StoreConformance("of 32 who settle one mark one succeeds, and its entry is the only one") {
            store async throws in
            let record = StoreSample.record(due: Timestamp(seconds: 1))
            try await store.commit([.insert(record)])
            let won = try await winners(32) { index in
                try await !store.conflicts([
                    .settleDue(record.id, version: 1), .append(StoreSample.entry("notice-\(index)")),
                ])
            }
            #expect(won.count == 1)
            #expect(try await store.logKeys() == won.map { "notice-\($0)" })
        },
    ]
}
