import CredentialStore
import OAuth
import Testing

extension StoreConformance {
    /// Listing, and removal by time.
    static let queries: [StoreConformance] = [
        StoreConformance("a list is in the order of tenants and keys, octet by octet") { store async throws in
            let keys = ["-", ".", "0", "10", "2", ":", "@", "A", "B", "Z", "a", "aa", "ab", "b", "z", "~"]
            let tenants = [
                TenantName.broker, TenantName("0")!, TenantName("a")!, TenantName("a-b")!, TenantName("ab")!,
            ]
            var expected: [RecordID] = []
            for tenant in tenants {
                for key in keys { expected.append(RecordID(.credentials, tenant, key: key)) }
            }
            for id in expected.shuffled() { try await store.commit([.insert(StoredRecord(id: id))]) }
            try await store.commit([.insert(StoreSample.record(.login, tenants[2], "other-kind"))])

            #expect(try await store.list(.credentials, tenant: nil, after: nil, limit: 1000).map(\.id) == expected)
            for tenant in tenants {
                let listed = try await store.list(.credentials, tenant: tenant, after: nil, limit: 1000)
                #expect(listed.map(\.id) == expected.filter { $0.tenant == tenant })
            }
            #expect(try await store.list(.apiKey, tenant: nil, after: nil, limit: 1000) == [])
            #expect(try await store.list(.credentials, tenant: TenantName("b")!, after: nil, limit: 9) == [])
        },
        StoreConformance("a list goes on after any record, and stops at its limit") { store async throws in
            var ids: [RecordID] = []
            for tenant in [StoreSample.alpha, StoreSample.beta] {
                for key in ["b", "d", "f"] { ids.append(RecordID(.login, tenant, key: key)) }
            }
            for id in ids { try await store.commit([.insert(StoredRecord(id: id))]) }
            var places: [RecordID?] = [nil]
            for tenant in [TenantName.broker, StoreSample.alpha, StoreSample.beta, TenantName("gamma")!] {
                for key in ["", "a", "b", "c", "d", "e", "f", "g"] {
                    places.append(RecordID(.login, tenant, key: key))
                }
            }
            for place in places {
                let rest = ids.filter { id in place.map { $0 < id } ?? true }
                for limit in [0, 1, 2, 3, 6, 7] {
                    let listed = try await store.list(.login, tenant: nil, after: place, limit: limit)
                    #expect(listed.map(\.id) == Array(rest.prefix(limit)))
                }
                for tenant in [StoreSample.alpha, StoreSample.beta] {
                    let own = rest.filter { $0.tenant == tenant }
                    let listed = try await store.list(.login, tenant: tenant, after: place, limit: 2)
                    #expect(listed.map(\.id) == Array(own.prefix(2)))
                }
            }
        },
        StoreConformance("a list heeds what comes and goes between its pages") { store async throws in
            func id(_ key: String) -> RecordID { RecordID(.credentials, StoreSample.alpha, key: key) }
            func page(after key: String?, _ kind: RecordKind = .credentials) async throws -> [String] {
                let after = key.map { RecordID(kind, StoreSample.alpha, key: $0) }
                return try await store.list(kind, tenant: StoreSample.alpha, after: after, limit: 2).map(\.id.key)
            }
            for key in ["a", "c", "e", "g", "i"] {
                try await store.commit([.insert(StoredRecord(id: id(key), version: 1, sealed: [1]))])
                try await store.commit([
                    .insert(
                        StoredRecord(
                            id: RecordID(.quarantine, StoreSample.alpha, key: key), version: 1, sealed: [1],
                            expires: Timestamp(seconds: 5)))
                ])
            }
            #expect(try await page(after: nil) == ["a", "c"])
            #expect(try await page(after: nil, .quarantine) == ["a", "c"])
            // What is new stands at its place, what has gone nowhere, and what was replaced at the same.
            try await store.commit([
                .insert(StoredRecord(id: id("d"), version: 1, sealed: [1])), .remove(id("e"), version: 1),
            ])
            try await store.commit([
                .replace(StoredRecord(id: id("g"), version: 2, sealed: [2], due: .latest), version: 1)
            ])
            #expect(try await page(after: "c") == ["d", "g"])
            #expect(try await page(after: "c", .quarantine) == ["e", "g"])
            #expect(try await store.removeExpired(before: Timestamp(seconds: 6), limit: 10) == 5)
            #expect(try await page(after: nil, .quarantine) == [])
            #expect(try await page(after: "g") == ["i"])
            #expect(try await page(after: "e") == ["g", "i"])
            #expect(try await page(after: "i") == [])
            try await store.commit([.removeAll(StoreSample.alpha)])
            #expect(try await page(after: nil) == [])
            try await store.commit([.insert(StoredRecord(id: id("b"), version: 1, sealed: [1]))])
            #expect(try await page(after: nil) == ["b"])
        },
        StoreConformance("versions come in the order of their records, and nil for what is not there") {
            store async throws in
            #expect(try await store.versions(of: []) == [])
            let ids = [
                RecordID(.credentials, StoreSample.alpha, key: "k"), RecordID(.tenant, StoreSample.alpha),
                RecordID(.apiKey, StoreSample.alpha, key: "k"), RecordID(.credentials, StoreSample.beta, key: "k"),
                RecordID(.credentials, StoreSample.alpha, key: "a._~:@-Z"), RecordID(.keyCheck, .broker, key: "k"),
            ]
            #expect(try await store.versions(of: ids) == ids.map { _ in nil })
            let versions: [Int64] = [.max, 0, 7, 1, -3, 255]
            for (id, version) in zip(ids, versions) {
                try await store.commit([.insert(StoredRecord(id: id, version: version, sealed: [1]))])
            }
            for order in [Array(ids.indices), ids.indices.reversed(), [3, 3, 0, 3]] {
                #expect(try await store.versions(of: order.map { ids[$0] }) == order.map { versions[$0] })
            }
            // Of another kind, another tenant, another key.
            for absent in [
                RecordID(.login, StoreSample.alpha, key: "k"), RecordID(.credentials, .broker, key: "k"),
                RecordID(.credentials, StoreSample.alpha, key: "K"), RecordID(.tenant, StoreSample.beta),
            ] {
                #expect(try await store.versions(of: [ids[3], absent, ids[2]]) == [1, nil, 7])
            }
        },
        StoreConformance("versions are those of the last commit") { store async throws in
            let (record, other) = (StoreSample.record(version: 5), StoreSample.record(.credentials, StoreSample.beta))
            let ids = [record.id, other.id]
            try await store.commit([.insert(record), .insert(other)])
            #expect(try await store.versions(of: ids) == [5, 1])
            try await store.commit([.claim(record.id, version: 5, holder: "h", replacing: nil, for: .seconds(60))])
            #expect(try await store.versions(of: ids) == [5, 1])
            try await store.commit([.replace(StoreSample.record(version: 6), version: 5)])
            #expect(try await store.versions(of: ids) == [6, 1])
            #expect(try await store.conflicts([.replace(StoreSample.record(version: 8), version: 5)]))
            #expect(try await store.versions(of: ids) == [6, 1])
            try await store.commit([.remove(record.id, version: 6)])
            #expect(try await store.versions(of: ids) == [nil, 1])
            try await store.commit([.insert(StoreSample.record(version: 9)), .removeAll(StoreSample.beta)])
            #expect(try await store.versions(of: ids) == [9, nil])
        },
        StoreConformance("a record is read with the versions of others") { store async throws in
            let (record, other) = (StoreSample.record(version: 5), StoreSample.record(.credentials, StoreSample.beta))
            let others = [other.id, RecordID(.tombstone, StoreSample.alpha, key: "k"), record.id, other.id]
            #expect(try await store.read(record.id, with: others) == nil)
            try await store.commit([.insert(other)])
            #expect(try await store.read(record.id, with: others) == nil)
            try await store.commit([.insert(record)])
            let found = try #require(try await store.read(record.id, with: others))
            #expect(found.record == record)
            #expect(found.versions == [1, nil, 5, 1])
            #expect(try await store.read(record.id, with: [])?.versions == [])
            try await store.commit([
                .insert(StoreSample.record(.tombstone, version: .max)), .remove(other.id, version: 1),
                .claim(record.id, version: 5, holder: "h", replacing: nil, for: .seconds(60)),
            ])
            let again = try #require(try await store.read(record.id, with: others))
            #expect(again.record.lease?.holder == "h")
            #expect(again.versions == [nil, .max, 5, nil])
        },
        StoreConformance("versions of thousands of records are told at once") { store async throws in
            let records = (0..<200).map { number in
                StoreSample.record(.credentials, StoreSample.alpha, "k\(number)", version: Int64(number))
            }
            for record in records { try await store.commit([.insert(record)]) }
            let numbers = (0..<10_000).map { $0 * 7 % 400 }
            let ids = numbers.map { RecordID(.credentials, StoreSample.alpha, key: "k\($0)") }
            #expect(try await store.versions(of: ids) == numbers.map { $0 < 200 ? Int64($0) : nil })
        },
        StoreConformance("only what expires before the given time is removed") { store async throws in
            let now: Int64 = 1_700_000_000_000
            for (key, expires) in [("early", now - 1), ("now", now), ("late", now + 1), ("first", Int64(-5))] {
                let record = StoreSample.record(
                    .login, StoreSample.alpha, key, expires: Timestamp(milliseconds: expires))
                try await store.commit([.insert(record)])
            }
            try await store.commit([.insert(StoreSample.record(.login, StoreSample.alpha, "never"))])
            let credentials = StoreSample.record(.credentials, expires: Timestamp(milliseconds: now - 1))
            try await store.commit([.insert(credentials)])

            #expect(try await store.removeExpired(before: Timestamp(milliseconds: -5), limit: 10) == 0)
            #expect(try await store.removeExpired(before: Timestamp(milliseconds: now), limit: 10) == 3)
            #expect(try await store.everything().map(\.id.key) == ["late", "never", "now"])
            #expect(try await store.removeExpired(before: Timestamp(milliseconds: now), limit: 10) == 0)
            #expect(try await store.removeExpired(before: .latest, limit: 10) == 2)
            #expect(try await store.everything().map(\.id.key) == ["never"])
        },
        StoreConformance("expired records go up to the limit, with their look-up digests") { store async throws in
            for index in 0..<5 {
                let record = StoreSample.record(
                    .login, StoreSample.alpha, "\(index)", lookup: StoreSample.digest(UInt8(index)),
                    expires: Timestamp(seconds: 1))
                try await store.commit([.insert(record)])
            }
            let now = Timestamp(seconds: 2)
            #expect(try await store.removeExpired(before: now, limit: 0) == 0)
            #expect(try await store.removeExpired(before: now, limit: 2) == 2)
            #expect(try await store.everything().count == 3)
            #expect(try await store.removeExpired(before: now, limit: 3) == 3)
            #expect(try await store.removeExpired(before: now, limit: 3) == 0)
            let successor = StoreSample.record(.login, StoreSample.beta, "new", lookup: StoreSample.digest(0))
            try await store.commit([.insert(successor)])
            #expect(try await store.find(.login, lookup: StoreSample.digest(0)) == successor)
        },
        StoreConformance("a replacement moves the expiry") { store async throws in
            try await store.commit([.insert(StoreSample.record(expires: Timestamp(seconds: 1)))])
            let extended = StoreSample.record(version: 2, expires: Timestamp(seconds: 9))
            try await store.commit([.replace(extended, version: 1)])
            #expect(try await store.removeExpired(before: Timestamp(seconds: 5), limit: 10) == 0)
            let shortened = StoreSample.record(version: 3, expires: Timestamp(seconds: 2))
            try await store.commit([.replace(shortened, version: 2)])
            #expect(try await store.removeExpired(before: Timestamp(seconds: 5), limit: 10) == 1)
            #expect(try await store.everything() == [])
        },
    ]
}

extension StoredRecord {
    /// A record whose content does not matter.
    fileprivate init(id: RecordID) {
        self.init(id: id, version: 1, sealed: [1])
    }
}
