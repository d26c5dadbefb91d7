import CredentialStore
import OAuth
import Testing

extension StoreConformance {
    /// The log.
    static let log: [StoreConformance] = [
        StoreConformance("a log without entries has no bounds") { store async throws in
            #expect(try await store.logBounds() == LogBounds(trimmed: 0, last: 0))
            for sequence in [Int64.min, -1, 0, 1, .max] {
                #expect(try await store.entries(after: sequence, tenant: nil, limit: 9) == [])
            }
            #expect(try await store.trimLog(before: .latest, keeping: 0, limit: 9) == 0)
        },
        StoreConformance("an entry comes back as it was written") { store async throws in
            let entries = [
                StoredLogEntry(
                    tenant: StoreSample.alpha, key: "", version: .max, time: Timestamp(milliseconds: -1), sealed: []),
                StoredLogEntry(
                    tenant: .broker, key: "Aa._~:@-", version: .min, time: .latest, sealed: (0...255).map { UInt8($0) }),
                StoredLogEntry(
                    tenant: StoreSample.beta, key: String(repeating: "Z", count: 200), version: 0,
                    time: Timestamp(milliseconds: 0), sealed: [UInt8](repeating: 7, count: 100_000)),
            ]
            for entry in entries { try await store.commit([.append(entry)]) }
            let read = try await store.entries(after: 0, tenant: nil, limit: 9)
            #expect(read.map(\.entry) == entries)
            #expect(read.allSatisfy { $0.sequence > 0 })
            #expect(read.map(\.sequence) == read.map(\.sequence).sorted())
            #expect(try await store.logBounds() == LogBounds(trimmed: 0, last: read[2].sequence))
        },
        StoreConformance("entries stand in the order of their commits, and within a commit") { store async throws in
            var expected: [String] = []
            for index in 0..<12 {
                let record = StoreSample.record(.credentials, StoreSample.alpha, "k\(index)")
                let entries = (0..<index % 4).map { StoreSample.entry("\(index)-\($0)", .broker) }
                let appends = entries.map { RecordChange.append($0) }
                // Wherever the entries stand among the changes.
                let changes =
                    switch index % 3 {
                    case 0: appends
                    case 1: appends + [.insert(record)]
                    default: [.insert(record)] + appends
                    }
                try await store.commit(changes)
                expected += entries.map(\.key)
            }
            #expect(try await store.logKeys() == expected)
        },
        StoreConformance("the log is read page by page, of all tenants or of one") { store async throws in
            let tenants = [StoreSample.alpha, StoreSample.beta, .broker]
            for index in 0..<20 {
                try await store.commit([.append(StoreSample.entry("\(index)", tenants[index * 7 % 3]))])
            }
            let all = try await store.entries(after: 0, tenant: nil, limit: 100)
            #expect(all.map(\.entry.key) == (0..<20).map { "\($0)" })
            let filters: [TenantName?] = [nil, StoreSample.alpha, StoreSample.beta, .broker, TenantName("gamma")]
            for tenant in filters {
                let expected = all.filter { tenant == nil || $0.entry.tenant == tenant }
                for limit in [1, 2, 3, 7, 19, 20, 21] {
                    var read: [PlacedLogEntry] = []
                    while true {
                        let page = try await store.entries(
                            after: read.last?.sequence ?? 0, tenant: tenant, limit: limit)
                        read += page
                        if page.count < limit { break }
                    }
                    #expect(read == expected)
                }
                for sequence in [-1, 0] + all.map(\.sequence) {
                    let rest = expected.filter { $0.sequence > sequence }
                    #expect(try await store.entries(after: sequence, tenant: tenant, limit: 2) == Array(rest.prefix(2)))
                }
                #expect(try await store.entries(after: 0, tenant: tenant, limit: 0) == [])
            }
            #expect(try await store.entries(after: all[19].sequence + 1, tenant: nil, limit: 9) == [])
        },
        StoreConformance("a reader who follows the log misses nothing") { store async throws in
            var read: [PlacedLogEntry] = []
            for index in 0..<150 {
                try await store.commit([.append(StoreSample.entry("\(index)"))])
                read += try await store.entries(after: read.last?.sequence ?? 0, tenant: nil, limit: 9)
                #expect(read.count == index + 1)
            }
            #expect(read.map(\.entry.key) == (0..<150).map { "\($0)" })
            #expect(try await store.entries(after: 0, tenant: nil, limit: 1000) == read)
        },
        StoreConformance("a conflict appends nothing") { store async throws in
            let record = StoreSample.record(version: 3)
            try await store.commit([.insert(record), .append(StoreSample.entry("first"))])
            let bounds = try await store.logBounds()
            let absent = RecordID(.login, StoreSample.alpha, key: "absent")
            let bad: [RecordChange] = [
                .insert(record), .replace(record, version: 2), .remove(record.id, version: 2), .require(absent),
                .settleDue(record.id, version: 3),
            ]
            for change in bad {
                let entry = RecordChange.append(StoreSample.entry("no"))
                #expect(try await store.conflicts([change, entry]))
                #expect(try await store.conflicts([entry, change, entry]))
            }
            #expect(try await store.logBounds() == bounds)
            #expect(try await store.logKeys() == ["first"])
            #expect(try await store.everything() == [record])
        },
        StoreConformance("entries go by their age, from the old end only") { store async throws in
            // The clocks of two writers differ: the fourth is older than the third.
            for (key, time) in [("a", 10), ("b", 20), ("c", 40), ("d", 30), ("e", 50)] {
                let entry = StoreSample.entry(key, time: Timestamp(milliseconds: Int64(time)))
                try await store.commit([.append(entry)])
            }
            let all = try await store.entries(after: 0, tenant: nil, limit: 9)
            func trim(_ time: Int64) async throws -> Int {
                try await store.trimLog(before: Timestamp(milliseconds: time), keeping: 9, limit: 9)
            }
            #expect(try await trim(10) == 0)
            #expect(try await store.logBounds().trimmed == 0)
            #expect(try await trim(20) == 1)
            #expect(try await store.logBounds() == LogBounds(trimmed: all[0].sequence, last: all[4].sequence))
            #expect(try await trim(40) == 1)
            #expect(try await store.logKeys() == ["c", "d", "e"])
            #expect(try await store.entries(after: all[0].sequence, tenant: nil, limit: 1).map(\.entry.key) == ["c"])
            #expect(try await trim(41) == 2)
            #expect(try await trim(51) == 1)
            #expect(try await trim(51) == 0)
            #expect(try await store.logBounds() == LogBounds(trimmed: all[4].sequence, last: all[4].sequence))
            #expect(try await store.logKeys() == [])
            try await store.commit([.append(StoreSample.entry("f"))])
            let next = try await store.entries(after: 0, tenant: nil, limit: 9)
            #expect(next.map(\.entry.key) == ["f"])
            #expect(next[0].sequence > all[4].sequence)
        },
        StoreConformance("entries go by their number, up to the limit") { store async throws in
            for index in 0..<10 { try await store.commit([.append(StoreSample.entry("\(index)"))]) }
            let all = try await store.entries(after: 0, tenant: nil, limit: 99)
            func trim(_ count: Int, limit: Int = 99) async throws -> Int {
                try await store.trimLog(before: Timestamp(milliseconds: 0), keeping: count, limit: limit)
            }
            for count in [10, 11, Int.max] { #expect(try await trim(count) == 0) }
            #expect(try await trim(9) == 1)
            #expect(try await trim(9) == 0)
            #expect(try await store.logMarks() == ["0*"] + (1..<10).map { "\($0)" })
            #expect(try await trim(4, limit: 0) == 0)
            #expect(try await trim(4, limit: 2) == 2)
            #expect(try await store.logMarks(tenant: StoreSample.alpha) == ["2*"] + (3..<10).map { "\($0)" })
            #expect(try await trim(4, limit: 3) == 3)
            #expect(try await trim(4, limit: 3) == 0)
            #expect(try await store.logMarks() == ["5*", "6", "7", "8", "9"])
            #expect(try await trim(0) == 4)
            #expect(try await trim(0) == 0)
            #expect(try await store.logMarks() == ["9*"])
            #expect(try await store.logBounds() == LogBounds(trimmed: 0, last: all[9].sequence))
        },
        StoreConformance("with a tenant go its entries, and no new one of the name reads them") { store async throws in
            let tenant = StoreSample.record(.tenant, StoreSample.alpha, "")
            try await store.commit([.insert(tenant), .append(StoreSample.entry("a1"))])
            try await store.commit([.append(StoreSample.entry("b1", StoreSample.beta))])
            try await store.commit([.append(StoreSample.entry("a2")), .append(StoreSample.entry("-1", .broker))])
            let all = try await store.entries(after: 0, tenant: nil, limit: 9)
            #expect(
                try await store.conflicts([
                    .remove(tenant.id, version: 2), .removeAll(StoreSample.alpha), .append(StoreSample.entry("no")),
                ]))
            #expect(try await store.entries(after: 0, tenant: nil, limit: 9) == all)
            try await store.commit([
                .append(StoreSample.entry("end")), .remove(tenant.id, version: 1), .removeAll(StoreSample.alpha),
            ])
            #expect(try await store.logKeys() == ["b1", "-1", "end"])
            #expect(try await store.logKeys(tenant: StoreSample.alpha) == ["end"])
            try await store.commit([.removeAll(StoreSample.alpha)])
            #expect(try await store.logKeys() == ["b1", "-1"])
            #expect(try await store.logBounds().trimmed == 0)
            #expect(try await store.logBounds().last > all[3].sequence)
            try await store.commit([.insert(tenant), .append(StoreSample.entry("new"))])
            #expect(try await store.logKeys(tenant: StoreSample.alpha) == ["new"])
            #expect(try await store.trimLog(before: .latest, keeping: 9, limit: 2) == 2)
            #expect(try await store.logKeys() == ["new"])
            #expect(try await store.trimLog(before: .latest, keeping: 9, limit: 2) == 1)
        },
        StoreConformance("commits of many at once have one order") { store async throws in
            try await concurrentWriters([store], commits: 25)
        },
    ]

    /// For stores that keep their log when the process ends.
    static let durableLog: [StoreConformance] = [
        StoreConformance(opening: "the log is there after the store is opened again") { open async throws in
            var store = try await open()
            for index in 0..<6 {
                try await store.commit([
                    .append(StoreSample.entry("\(index)")), .append(StoreSample.entry("\(index)'", StoreSample.beta)),
                ])
            }
            try await store.commit([
                .insert(StoreSample.record(due: Timestamp(seconds: 7))), .append(StoreSample.entry("last")),
            ])
            #expect(try await store.trimLog(before: Timestamp(milliseconds: 0), keeping: 9, limit: 99) == 4)
            try await store.commit([.removeAll(StoreSample.beta)])
            let bounds = try await store.logBounds()
            let all = try await store.entries(after: 0, tenant: nil, limit: 99)
            #expect(try await store.logMarks() == ["2*", "3", "4", "5", "last"])
            await store.close()

            store = try await open()
            #expect(try await store.logBounds() == bounds)
            #expect(try await store.entries(after: 0, tenant: nil, limit: 99) == all)
            #expect(try await store.nextDue(.credentials) == Timestamp(seconds: 7))
            try await store.commit([.settleDue(StoreSample.record().id, version: 1)])
            #expect(try await store.trimLog(before: .latest, keeping: 0, limit: 99) == 5)
            await store.close()

            store = try await open()
            #expect(try await store.logBounds() == LogBounds(trimmed: bounds.last, last: bounds.last))
            #expect(try await store.nextDue(.credentials) == nil)
            try await store.commit([.append(StoreSample.entry("next"))])
            #expect(try await store.logKeys(after: bounds.last) == ["next"])
            await store.close()
        }
    ]

    /// For stores that several processes may have open at once.
    static let sharedLog: [StoreConformance] = [
        StoreConformance(opening: "readers of two stores read one order, whatever is being written") {
            open async throws in
            let stores = [try await open(), try await open()]
            try await concurrentWriters(stores, commits: 40)
            for store in stores { await store.close() }
        },
        StoreConformance(opening: "of two stores that settle the same marks each mark is settled once") {
            open async throws in
            let stores = [try await open(), try await open()]
            let marked = (0..<20).map { index in
                StoreSample.record(.credentials, StoreSample.alpha, "k\(index)", due: Timestamp(seconds: Int64(index)))
            }
            try await stores[0].commit(marked.map { .insert($0) })
            try await withThrowingTaskGroup(of: Void.self) { group in
                for worker in 0..<4 {
                    group.addTask {
                        let store = stores[worker % 2]
                        while case let due = try await store.due(.credentials, before: .latest, limit: 3), !due.isEmpty
                        {
                            for record in due {
                                _ = try await store.conflicts([
                                    .append(StoreSample.entry(record.id.key)),
                                    .settleDue(record.id, version: record.version),
                                ])
                            }
                        }
                    }
                }
                try await group.waitForAll()
            }
            for store in stores {
                #expect(try await store.logKeys().sorted() == marked.map(\.id.key).sorted())
                #expect(try await store.nextDue(.credentials) == nil)
            }
            for store in stores { await store.close() }
        },
    ]

    /// Eight writers at the stores, while two readers of each follow the log; all of them must read the same.
    private static func concurrentWriters(_ stores: [any RecordStore], commits: Int) async throws {
        let writers = 8
        let total = writers * (commits + commits / 2)
        let logs = try await withThrowingTaskGroup(of: [PlacedLogEntry]?.self) { group in
            for writer in 0..<writers {
                let store = stores[writer % stores.count]
                group.addTask {
                    for index in 0..<commits {
                        let name = "\(writer)-\(index)"
                        var changes: [RecordChange] = [.append(StoreSample.entry(name))]
                        if index % 2 == 1 {
                            changes.append(.append(StoreSample.entry(name + "'")))
                            changes.append(.insert(StoreSample.record(.credentials, StoreSample.alpha, name)))
                        }
                        try await store.commit(changes)
                    }
                    return nil
                }
            }
            for reader in 0..<stores.count * 2 {
                let store = stores[reader % stores.count]
                group.addTask {
                    var read: [PlacedLogEntry] = []
                    while read.count < total {
                        read += try await store.entries(after: read.last?.sequence ?? 0, tenant: nil, limit: 7)
                        // A store that never waits leaves the writers no thread otherwise.
                        await Task.yield()
                    }
                    return read
                }
            }
            var logs: [[PlacedLogEntry]] = []
            for try await log in group {
                if let log { logs.append(log) }
            }
            return logs
        }
        for log in logs { #expect(log == logs[0]) }
        #expect(try await stores[0].entries(after: 0, tenant: nil, limit: total + 1) == logs[0])
        for writer in 0..<writers {
            let own = logs[0].map(\.entry.key).filter { $0.hasPrefix("\(writer)-") }
            let written = (0..<commits).flatMap { index in
                let name = "\(writer)-\(index)"
                return index % 2 == 1 ? [name, name + "'"] : [name]
            }
            #expect(own == written)
        }
    }
}
