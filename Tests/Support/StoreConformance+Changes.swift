import CredentialStore
import OAuth
import Testing

extension StoreConformance {
    /// Each change on its own.
    static let changes: [StoreConformance] = [
        StoreConformance("a second insert is a conflict") { store async throws in
            try await store.commit([.insert(StoreSample.record(version: 7))])
            #expect(try await store.conflicts([.insert(StoreSample.record(version: 8, sealed: [9]))]))
            #expect(try await store.everything() == [StoreSample.record(version: 7)])
        },
        StoreConformance("a replacement takes place at exactly its version") { store async throws in
            try await store.commit([.insert(StoreSample.record(version: 5))])
            let next = StoreSample.record(version: 6, sealed: [9], expires: Timestamp(seconds: 3))
            for stale in [Int64.min, 0, 4, 6, .max] {
                #expect(try await store.conflicts([.replace(next, version: stale)]))
                #expect(try await store.everything() == [StoreSample.record(version: 5)])
            }
            try await store.commit([.replace(next, version: 5)])
            #expect(try await store.everything() == [next])
            #expect(try await store.conflicts([.replace(next, version: 5)]))
        },
        StoreConformance("a removal takes place at exactly its version") { store async throws in
            let record = StoreSample.record(version: 5)
            try await store.commit([.insert(record)])
            for stale in [Int64.min, 4, 6, .max] {
                #expect(try await store.conflicts([.remove(record.id, version: stale)]))
                #expect(try await store.everything() == [record])
            }
            try await store.commit([.remove(record.id, version: 5)])
            #expect(try await store.read(record.id) == nil)
            #expect(try await store.conflicts([.remove(record.id, version: 5)]))
        },
        StoreConformance("what is absent cannot be replaced") { store async throws in
            #expect(try await store.conflicts([.replace(StoreSample.record(version: 2), version: 1)]))
            #expect(try await store.everything() == [])
        },
        StoreConformance("what was removed can be inserted again") { store async throws in
            let record = StoreSample.record(.apiKey, lookup: StoreSample.digest(1))
            try await store.commit([.insert(record)])
            try await store.commit([.remove(record.id, version: 1)])
            #expect(try await store.find(.apiKey, lookup: StoreSample.digest(1)) == nil)
            try await store.commit([.insert(record)])
            #expect(try await store.find(.apiKey, lookup: StoreSample.digest(1)) == record)
        },
        StoreConformance("a requirement holds for any version and changes nothing") { store async throws in
            let record = StoreSample.record(version: 41)
            #expect(try await store.conflicts([.require(record.id)]))
            try await store.commit([.insert(record)])
            try await store.commit([.require(record.id)])
            #expect(try await store.everything() == [record])
            try await store.commit([.remove(record.id, version: 41)])
            #expect(try await store.conflicts([.require(record.id)]))
        },
        StoreConformance("a look-up digest belongs to one record of a kind") { store async throws in
            let first = StoreSample.record(.apiKey, StoreSample.alpha, "a", lookup: StoreSample.digest(1))
            let second = StoreSample.record(.apiKey, StoreSample.beta, "b", lookup: StoreSample.digest(2))
            try await store.commit([.insert(first)])
            try await store.commit([.insert(second)])
            let thief = StoreSample.record(.apiKey, StoreSample.beta, "c", lookup: StoreSample.digest(1))
            #expect(try await store.conflicts([.insert(thief)]))
            var changed = second
            changed.version = 2
            changed.lookup = StoreSample.digest(1)
            #expect(try await store.conflicts([.replace(changed, version: 1)]))
            #expect(try await store.everything() == [first, second])

            let otherKind = StoreSample.record(.login, StoreSample.beta, "c", lookup: StoreSample.digest(1))
            try await store.commit([.insert(otherKind)])
            #expect(try await store.find(.apiKey, lookup: StoreSample.digest(1)) == first)
            #expect(try await store.find(.login, lookup: StoreSample.digest(1)) == otherKind)
        },
        StoreConformance("a look-up digest goes from one record to another in one commit") { store async throws in
            var newest = StoreSample.record(.apiKey, StoreSample.alpha, "k", lookup: StoreSample.digest(1))
            var earlier = StoreSample.record(.apiKey, StoreSample.alpha, "k.earlier", lookup: StoreSample.digest(1))
            try await store.commit([.insert(newest)])
            for round: UInt8 in 2...9 {
                (newest.version, earlier.version) = (Int64(round), Int64(round))
                (earlier.lookup, newest.lookup) = (newest.lookup, StoreSample.digest(round))
                let second: RecordChange =
                    round == 2 ? .insert(earlier) : .replace(earlier, version: Int64(round) - 1)
                try await store.commit([.replace(newest, version: Int64(round) - 1), second])
                #expect(try await store.find(.apiKey, lookup: StoreSample.digest(round)) == newest)
                #expect(try await store.find(.apiKey, lookup: StoreSample.digest(round - 1)) == earlier)
                #expect(try await store.find(.apiKey, lookup: StoreSample.digest(round - 2)) == nil)
            }
            try await store.commit([.remove(newest.id, version: 9), .remove(earlier.id, version: 9)])
            for round: UInt8 in 1...9 {
                #expect(try await store.find(.apiKey, lookup: StoreSample.digest(round)) == nil)
            }
        },
        StoreConformance("a replacement moves the look-up digest") { store async throws in
            let record = StoreSample.record(.login, lookup: StoreSample.digest(1))
            try await store.commit([.insert(record)])
            var changed = record
            changed.version = 2
            changed.lookup = StoreSample.digest(2)
            try await store.commit([.replace(changed, version: 1)])
            #expect(try await store.find(.login, lookup: StoreSample.digest(1)) == nil)
            #expect(try await store.find(.login, lookup: StoreSample.digest(2)) == changed)

            let heir = StoreSample.record(.login, StoreSample.beta, "heir", lookup: StoreSample.digest(1))
            try await store.commit([.insert(heir)])
            #expect(try await store.find(.login, lookup: StoreSample.digest(1)) == heir)

            var bare = changed
            bare.version = 3
            bare.lookup = nil
            try await store.commit([.replace(bare, version: 2)])
            #expect(try await store.find(.login, lookup: StoreSample.digest(2)) == nil)
            #expect(try await store.read(bare.id) == bare)
        },
        StoreConformance("a replacement may keep the look-up digest") { store async throws in
            let record = StoreSample.record(.login, lookup: StoreSample.digest(1))
            try await store.commit([.insert(record)])
            var changed = record
            changed.version = 2
            try await store.commit([.replace(changed, version: 1)])
            #expect(try await store.find(.login, lookup: StoreSample.digest(1)) == changed)
        },
    ]

    /// Several changes at once.
    static let commits: [StoreConformance] = [
        StoreConformance("no changes are no conflict") { store async throws in
            try await store.commit([])
            #expect(try await store.everything() == [])
        },
        StoreConformance("all changes of a commit are made") { store async throws in
            let old = StoreSample.record(.credentials, StoreSample.alpha, "old")
            let gone = StoreSample.record(.login, StoreSample.alpha, "gone", lookup: StoreSample.digest(1))
            let tenant = StoreSample.record(.tenant, StoreSample.alpha, "", version: 12)
            try await store.commit([.insert(old), .insert(gone), .insert(tenant)])
            let replaced = StoreSample.record(.credentials, StoreSample.alpha, "old", version: 2, sealed: [7])
            let new = StoreSample.record(.apiKey, StoreSample.beta, "new", lookup: StoreSample.digest(1))
            try await store.commit([
                .require(tenant.id), .replace(replaced, version: 1), .remove(gone.id, version: 1), .insert(new),
            ])
            #expect(try await store.everything() == [new, replaced, tenant].sorted { $0.id < $1.id })
        },
        StoreConformance("a conflict in any place changes nothing") { store async throws in
            let tenant = StoreSample.record(.tenant, StoreSample.alpha, "")
            let replaced = StoreSample.record(.credentials, StoreSample.alpha, "replaced")
            let removed = StoreSample.record(.login, StoreSample.alpha, "removed", lookup: StoreSample.digest(1))
            let bystander = StoreSample.record(.apiKey, StoreSample.beta, "bystander", lookup: StoreSample.digest(2))
            try await store.commit([.insert(tenant), .insert(replaced), .insert(removed), .insert(bystander)])
            let before = try await store.everything()
            var replacement = replaced
            replacement.version = 2
            let good: [RecordChange] = [
                .require(tenant.id), .replace(replacement, version: 1), .remove(removed.id, version: 1),
                .insert(StoreSample.record(.login, StoreSample.beta, "new", lookup: StoreSample.digest(3))),
                .removeAll(TenantName("gamma")!),
            ]
            let absent = RecordID(.credentials, StoreSample.beta, key: "absent")
            let bad: [RecordChange] = [
                .require(absent), .remove(absent, version: 1), .remove(bystander.id, version: 2),
                .insert(bystander), .replace(StoreSample.record(.credentials, StoreSample.beta, "no"), version: 0),
                .insert(StoreSample.record(.apiKey, StoreSample.alpha, "thief", lookup: StoreSample.digest(2))),
            ]
            for change in bad {
                for place in 0...good.count {
                    var changes = good
                    changes.insert(change, at: place)
                    #expect(try await store.conflicts(changes), "\(change) in place \(place)")
                    #expect(try await store.everything() == before, "\(change) in place \(place)")
                }
            }
            #expect(try await store.find(.login, lookup: StoreSample.digest(1)) == removed)
            #expect(try await store.find(.login, lookup: StoreSample.digest(3)) == nil)
            try await store.commit(good)
            #expect(try await store.everything().count == 4)
        },
        StoreConformance("removing a tenant's records leaves those of others") { store async throws in
            let neighbour = TenantName("alpha-2")!
            var kept: [StoredRecord] = []
            for (index, kind) in RecordKind.allCases.enumerated() {
                let seed = UInt8(index * 4)
                let mine = StoreSample.record(kind, StoreSample.alpha, "k", lookup: StoreSample.digest(seed))
                let others = [
                    StoreSample.record(kind, neighbour, "k", lookup: StoreSample.digest(seed + 1)),
                    StoreSample.record(kind, StoreSample.beta, "alpha", lookup: StoreSample.digest(seed + 2)),
                    StoreSample.record(kind, .broker, "alpha", lookup: StoreSample.digest(seed + 3)),
                ]
                try await store.commit([.insert(mine)] + others.map { .insert($0) })
                kept += others
            }
            try await store.commit([.removeAll(StoreSample.alpha)])
            #expect(try await store.everything() == kept.sorted { $0.id < $1.id })
            #expect(try await store.find(.apiKey, lookup: StoreSample.digest(4)) == nil)
            try await store.commit([.removeAll(StoreSample.alpha)])
            #expect(try await store.everything().count == kept.count)
        },
        StoreConformance("a tenant goes with its records, or stays with them") { store async throws in
            let tenant = StoreSample.record(.tenant, StoreSample.alpha, "", version: 3)
            let credentials = StoreSample.record(.credentials, StoreSample.alpha, "k")
            try await store.commit([.insert(tenant), .insert(credentials)])
            #expect(
                try await store.conflicts([.remove(tenant.id, version: 2), .removeAll(StoreSample.alpha)]))
            #expect(try await store.everything() == [credentials, tenant])
            try await store.commit([.remove(tenant.id, version: 3), .removeAll(StoreSample.alpha)])
            #expect(try await store.everything() == [])
        },
    ]

    /// Many at once.
    static let races: [StoreConformance] = [
        StoreConformance("of 64 claimants one inserts") { store async throws in
            let won = try await winners(64) { index in
                try await !store.conflicts([.insert(StoreSample.record(sealed: [UInt8(index)]))])
            }
            #expect(won.count == 1)
            #expect(try await store.everything().map(\.sealed) == won.map { [UInt8($0)] })
        },
        StoreConformance("of 64 claimants one replaces") { store async throws in
            try await store.commit([.insert(StoreSample.record(version: 1))])
            let won = try await winners(64) { index in
                let next = StoreSample.record(version: 2 + Int64(index))
                return try await !store.conflicts([.replace(next, version: 1)])
            }
            #expect(won.count == 1)
            #expect(try await store.everything().map(\.version) == won.map { 2 + Int64($0) })
        },
        StoreConformance("of 64 claimants one gets the look-up digest") { store async throws in
            let won = try await winners(64) { index in
                let record = StoreSample.record(
                    .login, StoreSample.alpha, "login-\(index)", lookup: StoreSample.digest(1))
                return try await !store.conflicts([.insert(record)])
            }
            #expect(won.count == 1)
            #expect(try await store.everything().map(\.id.key) == won.map { "login-\($0)" })
        },
        StoreConformance("nothing enters a tenant that is being removed") { store async throws in
            let tenant = StoreSample.record(.tenant, StoreSample.alpha, "")
            for _ in 0..<10 {
                try await store.commit([.insert(tenant)])
                let won = try await winners(8) { index in
                    let changes: [RecordChange] =
                        index == 4
                        ? [.remove(tenant.id, version: 1), .removeAll(StoreSample.alpha)]
                        : [
                            .require(tenant.id),
                            .insert(StoreSample.record(.credentials, StoreSample.alpha, "k\(index)")),
                        ]
                    return try await !store.conflicts(changes)
                }
                #expect(won.contains(4))
                #expect(try await store.everything() == [])
            }
        },
    ]
}
