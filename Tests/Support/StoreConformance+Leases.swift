import CredentialStore
import OAuth
import Reactor
import Testing

extension StoreConformance {
    /// Leases on records.
    static let leases: [StoreConformance] = [
        StoreConformance("a lease is one holder's, and changes nothing else of the record") { store async throws in
            let record = StoreSample.record(
                version: 5, lookup: StoreSample.digest(1), expires: .latest, due: Timestamp(seconds: 1))
            try await store.commit([.insert(record)])
            #expect(try await store.lease() == nil)
            for stale in [Int64.min, 4, 6, .max] {
                #expect(try await store.conflicts([.take(record.id, version: stale, holder: "a")]))
            }
            #expect(try await store.conflicts([.take(record.id, version: 5, holder: "a", replacing: "b")]))
            try await store.commit([.take(record.id, version: 5, holder: "a")])
            let lease = try #require(try await store.lease())
            #expect(lease.holder == "a")
            #expect(lease.remaining > .seconds(50) && lease.remaining <= .seconds(60) && !lease.hasRunOut)
            var found = try #require(try await store.read(record.id))
            found.lease = nil
            #expect(found == record)
            #expect(try await store.find(.credentials, lookup: StoreSample.digest(1))?.lease?.holder == "a")
            #expect(try await store.list(.credentials, tenant: nil, after: nil, limit: 1).first?.lease?.holder == "a")
            #expect(try await store.due(.credentials, before: .latest, limit: 1).first?.lease?.holder == "a")
            for replacing in [nil, "a", "b"] {
                #expect(try await store.conflicts([.take(record.id, version: 5, holder: "b", replacing: replacing)]))
            }
            let missing = RecordID(.credentials, StoreSample.beta, key: "k")
            #expect(try await store.conflicts([.take(missing, version: 5, holder: "a")]))
        },
        StoreConformance("its holder extends a lease that it has not given up") { store async throws in
            let record = StoreSample.record()
            try await store.commit([.insert(record), .append(StoreSample.entry("x"))])
            try await store.commit([.take(record.id, version: 1, holder: "a", for: .seconds(30))])
            try await store.commit([.take(record.id, version: 1, holder: "a", for: .seconds(60))])
            #expect(try #require(try await store.lease()).remaining > .seconds(31))
            try await store.commit([.take(record.id, version: 1, holder: "a", for: .zero)])
            #expect(try #require(try await store.lease()).hasRunOut)
            try await store.commit([.take(record.id, version: 1, holder: "a", replacing: "a")])
            #expect(try #require(try await store.lease()).hasRunOut == false)
            // An extension that arrives late takes no lease again.
            try await store.commit([.release(record.id, version: 1, holder: "a", isSettled: false)])
            #expect(try await store.conflicts([.take(record.id, version: 1, holder: "a", replacing: "a")]))
            try await store.commit([.release(record.id, version: 1, holder: "a", isSettled: true)])
            #expect(try await store.conflicts([.take(record.id, version: 1, holder: "a", replacing: "a")]))
            #expect(try await store.lease() == nil)
        },
        StoreConformance("the time of the first use stays until the lease is settled or the record replaced") {
            store async throws in
            let record = StoreSample.record()
            try await store.commit([.insert(record)])
            func take(_ holder: String, over: String? = nil, marksUse: Bool = true) -> RecordChange {
                .claim(
                    record.id, version: 1,
                    LeaseClaim(holder: holder, replacing: over, for: .zero, marksUse: marksUse))
            }
            try await store.commit([take("a", marksUse: false)])
            #expect(try #require(try await store.lease()).sinceFirstUse == nil)
            try await store.commit([take("a")])
            let first = try #require(try await store.lease()?.sinceFirstUse)
            #expect(first >= .zero && first < .seconds(30))
            try await store.commit([take("b", over: "a")])
            #expect(try #require(try await store.lease()?.sinceFirstUse) >= first)
            try await store.commit([
                .release(record.id, version: 1, holder: "b", LeaseRelease(.unknown(recovery: nil)))
            ])
            #expect(try #require(try await store.lease()?.sinceFirstUse) >= first)
            try await store.commit([.release(record.id, version: 1, holder: "b", LeaseRelease(.settled))])
            try await store.commit([take("c", marksUse: false)])
            #expect(try #require(try await store.lease()).sinceFirstUse == nil)
            try await store.commit([.replace(StoreSample.record(version: 2), version: 1)])
            #expect(try await store.lease() == nil)
        },
        StoreConformance("a claim may note the first use anew, as long as its holder has used nothing") {
            store async throws in
            let record = StoreSample.record()
            func take(restartsUse: Bool, marksUse: Bool = true) -> RecordChange {
                .claim(
                    record.id, version: 1,
                    LeaseClaim(holder: "a", for: .seconds(60), marksUse: marksUse, restartsUse: restartsUse))
            }
            let long = Duration.milliseconds(20)
            try await store.commit([.insert(record)])
            let clock = ContinuousClock()
            let first = clock.now
            try await store.commit([take(restartsUse: true)])
            #expect(try await store.ageOfUse() <= first.duration(to: clock.now) + .milliseconds(2))
            while try await store.ageOfUse() < long {}
            try await store.commit([take(restartsUse: false)])
            #expect(try await store.ageOfUse() >= long)
            let anew = clock.now
            try await store.commit([take(restartsUse: true)])
            let found = try await store.ageOfUse()
            // The store rounds to a millisecond.
            #expect(found <= anew.duration(to: clock.now) + .milliseconds(2))
            #expect(found < first.duration(to: clock.now) - long + .milliseconds(2))
            try await store.commit([take(restartsUse: true, marksUse: false)])
            #expect(try #require(try await store.lease()).sinceFirstUse == nil)
        },
        StoreConformance("a lease that is known to be left is taken over although it stands") { store async throws in
            let record = StoreSample.record()
            try await store.commit([.insert(record)])
            try await store.commit([.take(record.id, version: 1, holder: "a")])
            for (over, standing) in [("a", false), ("b", true)] {
                #expect(
                    try await store.conflicts([
                        .claim(
                            record.id, version: 1,
                            LeaseClaim(
                                holder: "c", replacing: over, replacesStanding: standing, for: .seconds(60)))
                    ]))
            }
            try await store.commit([
                .claim(
                    record.id, version: 1,
                    LeaseClaim(
                        holder: "c", replacing: "a", replacesStanding: true, for: .seconds(60), isOpen: true))
            ])
            let lease = try #require(try await store.lease())
            #expect(lease.holder == "c" && lease.isOpen)
        },
        StoreConformance("a lease that its holder has extended since it was read is not taken over") {
            store async throws in
            let record = StoreSample.record()
            func take(after overdue: Duration) -> RecordChange {
                .claim(
                    record.id, version: 1,
                    LeaseClaim(holder: "b", replacing: "a", overdue: overdue, for: .seconds(60)))
            }
            try await store.commit([.insert(record)])
            try await store.commit([.take(record.id, version: 1, holder: "a", for: .zero)])
            let overdue = Duration.zero - (try #require(try await store.lease()).remaining)
            #expect(try await store.conflicts([take(after: overdue + .seconds(60))]))
            #expect(try await store.lease()?.holder == "a")
            try await store.commit([take(after: overdue)])
            #expect(try await store.lease()?.holder == "b")
            // One that was given up is over, whenever that was.
            try await store.commit([
                .release(record.id, version: 1, holder: "b", LeaseRelease(.unknown(recovery: nil)))
            ])
            try await store.commit([
                .claim(
                    record.id, version: 1,
                    LeaseClaim(holder: "c", replacing: "b", overdue: .seconds(60), for: .seconds(60)))
            ])
            #expect(try await store.lease()?.holder == "c")
        },
        StoreConformance("a lease that was given up or left open is listed when it is to be") { store async throws in
            let record = StoreSample.record()
            try await store.commit([.insert(record), .append(StoreSample.entry("x"))])
            for (outcome, isListed, isOpen, wasGivenUp) in [
                (.unknown(recovery: nil), false, false, true), (.unknown(recovery: .seconds(60)), false, false, true),
                (.unknown(recovery: .zero), true, false, true), (.open, true, true, false),
            ] as [(LeaseRelease.Outcome, Bool, Bool, Bool)] {
                let standing = try await store.lease()?.holder
                let holder = "\(outcome)".prefix(40).filter { $0.isLetter || $0.isNumber }
                try await store.commit([.take(record.id, version: 1, holder: holder, replacing: standing)])
                try await store.commit([.release(record.id, version: 1, holder: holder, LeaseRelease(outcome))])
                let lease = try #require(try await store.lease())
                #expect((lease.hasRunOut, lease.isOpen, lease.wasGivenUp) == (true, isOpen, wasGivenUp))
                #expect(try await store.lapsed(.credentials, limit: 9).count == (isListed ? 1 : 0))
            }
        },
        StoreConformance("a lease that has run out is another's to take who names its holder") { store async throws in
            let record = StoreSample.record()
            try await store.commit([.insert(record)])
            try await store.commit([.take(record.id, version: 1, holder: "a", for: .zero)])
            #expect(try await store.lapsed(.credentials, limit: 9) == [StoreSample.lapsed("a")])
            for replacing in [nil, "b", ""] {
                #expect(try await store.conflicts([.take(record.id, version: 1, holder: "b", replacing: replacing)]))
            }
            try await store.commit([.take(record.id, version: 1, holder: "b", replacing: "a")])
            #expect(try await store.lease()?.holder == "b")
            #expect(try await store.lapsed(.credentials, limit: 9) == [])
            #expect(try await store.conflicts([.take(record.id, version: 1, holder: "c", replacing: "a")]))
            #expect(try await store.conflicts([.take(record.id, version: 1, holder: "a", replacing: "b")]))
        },
        StoreConformance("a lease is released by its holder, settled or not") { store async throws in
            let record = StoreSample.record()
            try await store.commit([.insert(record)])
            #expect(try await store.conflicts([.release(record.id, version: 1, holder: "a", isSettled: true)]))
            try await store.commit([.take(record.id, version: 1, holder: "a")])
            for isSettled in [true, false] {
                #expect(try await store.conflicts([.release(record.id, version: 2, holder: "a", isSettled: isSettled)]))
                #expect(try await store.conflicts([.release(record.id, version: 1, holder: "b", isSettled: isSettled)]))
            }
            try await store.commit([.release(record.id, version: 1, holder: "a", isSettled: false)])
            #expect(try await store.lease() == Lease(holder: "a", remaining: .zero, wasGivenUp: true))
            #expect(try await store.lapsed(.credentials, limit: 9) == [])
            #expect(try await store.conflicts([.take(record.id, version: 1, holder: "b")]))
            try await store.commit([.take(record.id, version: 1, holder: "b", replacing: "a")])
            #expect(try await store.lease()?.wasGivenUp == false)
            try await store.commit([.release(record.id, version: 1, holder: "b", isSettled: false)])
            try await store.commit([.release(record.id, version: 1, holder: "b", isSettled: true)])
            #expect(try await store.lease() == nil)
            #expect(try await store.lapsed(.credentials, limit: 9) == [])
            try await store.commit([.take(record.id, version: 1, holder: "b")])
            #expect(try await store.everything().map(\.version) == [1])
        },
        StoreConformance("a replacement leaves the lease where it says so, standing, given up or none") {
            store async throws in
            let record = StoreSample.record()
            try await store.commit([.insert(record)])
            try await store.commit([.replace(StoreSample.record(version: 2), version: 1, lease: .kept)])
            #expect(try await store.lease() == nil)
            let claim = LeaseClaim(holder: "a", for: .seconds(60), marksUse: true)
            try await store.commit([.claim(record.id, version: 2, claim)])
            try await store.commit([.replace(StoreSample.record(version: 3), version: 2, lease: .kept)])
            let standing = try #require(try await store.lease())
            #expect(standing.holder == "a" && !standing.hasRunOut && standing.sinceFirstUse != nil)
            // Its holder can give it up by the new version only.
            #expect(try await store.conflicts([.release(record.id, version: 2, holder: "a", isSettled: false)]))
            try await store.commit([.release(record.id, version: 3, holder: "a", isSettled: false)])
            try await store.commit([.replace(StoreSample.record(version: 4), version: 3, lease: .kept)])
            let givenUp = try #require(try await store.lease())
            #expect(givenUp.holder == "a" && givenUp.wasGivenUp && givenUp.sinceFirstUse != nil)
        },
        StoreConformance("a replacement takes the lease away, and heeds another's where it is fenced") {
            store async throws in
            let record = StoreSample.record()
            try await store.commit([.insert(record)])
            try await store.commit([.take(record.id, version: 1, holder: "a")])
            let second = StoreSample.record(version: 2)
            #expect(try await store.conflicts([.replace(second, version: 1, lease: .fenced(for: "b"))]))
            #expect(try await store.lease()?.holder == "a")
            try await store.commit([.replace(second, version: 1, lease: .fenced(for: "a"))])
            #expect(try await store.everything() == [second])
            // An expired lease fences no holder off, and neither does a missing one.
            try await store.commit([.take(record.id, version: 2, holder: "a", for: .zero)])
            try await store.commit([.replace(StoreSample.record(version: 3), version: 2, lease: .fenced(for: "b"))])
            try await store.commit([.replace(StoreSample.record(version: 4), version: 3, lease: .fenced(for: "b"))])
            // A change that is not fenced ignores all leases.
            try await store.commit([.take(record.id, version: 4, holder: "a")])
            var last = StoreSample.record(version: 5)
            last.lease = Lease(holder: "written", remaining: .seconds(60))
            try await store.commit([.replace(last, version: 4)])
            last.lease = nil
            #expect(try await store.everything() == [last])
            try await store.commit([.take(record.id, version: 5, holder: "a")])
            try await store.commit([.remove(record.id, version: 5)])
            try await store.commit([.insert(record)])
            #expect(try await store.everything() == [record])
        },
        StoreConformance("leases that have run out are found, the earliest first, of one kind") { store async throws in
            let keys = ["c", "a", "b", "live", "free"]
            for key in keys { try await store.commit([.insert(StoreSample.record(.device, StoreSample.alpha, key))]) }
            let other = StoreSample.record()
            try await store.commit([.insert(other)])
            try await store.commit([.take(other.id, version: 1, holder: "x", for: .zero)])
            for (key, age) in [("c", 3), ("a", 2), ("b", 1), ("live", -60)] {
                try await store.commit([
                    .take(
                        RecordID(.device, StoreSample.alpha, key: key), version: 1, holder: "h-\(key)",
                        for: .seconds(-age))
                ])
            }
            for limit in 0...4 {
                let found = try await store.lapsed(.device, limit: limit)
                #expect(found.map(\.id.key) == Array(["c", "a", "b"].prefix(limit)))
                #expect(found.map(\.holder) == Array(["h-c", "h-a", "h-b"].prefix(limit)))
            }
            #expect(try await store.lapsed(.login, limit: 9) == [])
        },
        StoreConformance("a claim is all or nothing with what is committed beside it") { store async throws in
            let record = StoreSample.record()
            try await store.commit([.insert(record)])
            try await store.commit([
                .take(record.id, version: 1, holder: "a"), .append(StoreSample.entry("claimed")),
            ])
            #expect(
                try await store.conflicts([
                    .append(StoreSample.entry("no")), .take(record.id, version: 1, holder: "b"),
                ]))
            #expect(
                try await store.conflicts([
                    .require(RecordID(.tenant, StoreSample.alpha)),
                    .release(record.id, version: 1, holder: "a", isSettled: true),
                ]))
            #expect(try await store.lease()?.holder == "a")
            #expect(try await store.logKeys() == ["claimed"])
        },
        StoreConformance("of many claims at once one is granted") { store async throws in
            let record = StoreSample.record()
            try await store.commit([.insert(record)])
            let granted = try await withThrowingTaskGroup { group in
                for index in 0..<64 {
                    group.addTask {
                        try await !store.conflicts([.take(record.id, version: 1, holder: "h\(index)")]) ? index : nil
                    }
                }
                return try await group.reduce(into: []) { $0 += [$1].compactMap { $0 } }
            }
            #expect(granted.count == 1)
            #expect(try await store.lease()?.holder == granted.first.map { "h\($0)" })
        },
        StoreConformance("a due mark is moved once by those who name it") { store async throws in
            let record = StoreSample.record(due: Timestamp(seconds: 1))
            try await store.commit([.insert(record)])
            let move = RecordChange.settleDue(
                record.id, version: 1, due: Timestamp(seconds: 1), next: Timestamp(seconds: 9))
            #expect(try await store.conflicts([.settleDue(record.id, version: 1, due: Timestamp(seconds: 2))]))
            try await store.commit([move])
            #expect(try await store.nextDue(.credentials) == Timestamp(seconds: 9))
            #expect(try await store.conflicts([move]))
            try await store.commit([.settleDue(record.id, version: 1, due: Timestamp(seconds: 9))])
            #expect(try await store.nextDue(.credentials) == nil)
        },
    ]

    /// What of a lease outlives the process that gave it.
    static let durableLeases: [StoreConformance] = [
        StoreConformance(opening: "a lease that was not released is there after a restart") { open async throws in
            let record = StoreSample.record(due: Timestamp(seconds: 3))
            let first = try await open()
            try await first.commit([.insert(record), .insert(StoreSample.record(.login))])
            try await first.commit([.take(record.id, version: 1, holder: "a", for: .zero)])
            try await first.commit([.take(StoreSample.record(.login).id, version: 1, holder: "b", for: .zero)])
            try await first.commit([
                .release(StoreSample.record(.login).id, version: 1, holder: "b", isSettled: false)
            ])
            await first.close()
            let second = try await open()
            #expect(try await second.lapsed(.credentials, limit: 9) == [StoreSample.lapsed("a")])
            #expect(try await second.lease()?.holder == "a")
            #expect(try #require(try await second.lease()).hasRunOut)
            #expect(try await second.lapsed(.login, limit: 9) == [])
            #expect(
                try await second.read(StoreSample.record(.login).id)?.lease
                    == Lease(holder: "b", remaining: .zero, wasGivenUp: true))
            #expect(try await second.nextDue(.credentials) == Timestamp(seconds: 3))
            try await second.commit([.take(record.id, version: 1, holder: "c", replacing: "a")])
            await second.close()
        }
    ]
}

extension StoreSample {
    fileprivate static func lapsed(_ holder: String) -> LapsedLease {
        LapsedLease(id: record().id, version: 1, holder: holder)
    }
}

private struct NoFirstUse: Error {}

extension RecordStore {
    fileprivate func lease() async throws -> Lease? { try await read(StoreSample.record().id)?.lease }

    fileprivate func ageOfUse() async throws -> Duration {
        guard let age = try await lease()?.sinceFirstUse else { throw NoFirstUse() }
        return age
    }
}

extension RecordChange {
    /// A claim for a minute on a record without a lease.
    fileprivate static func take(
        _ id: RecordID, version: Int64, holder: String, replacing: String? = nil, for duration: Duration = .seconds(60)
    ) -> RecordChange {
        RecordChange.claim(id, version: version, holder: holder, replacing: replacing, for: duration)
    }
}
