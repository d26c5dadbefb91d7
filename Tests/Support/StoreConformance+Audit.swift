package import CredentialStore
package import OAuth
import Testing

extension AuditBlock {
    /// A block of the tests.
    package static func sample(
        _ chain: String, _ first: Int64, _ last: Int64? = nil, time: Int64 = 1, isSigned: Bool = false
    ) -> AuditBlock {
        let last = last ?? first
        let lines = (first...last).map { "{\"\(chain)\":\($0),\"name\":\"Zoë 🍏\"}\n" }.joined()
        return AuditBlock(
            chain: chain, first: first, last: last, time: Timestamp(seconds: time), body: Array(lines.utf8),
            hash: [UInt8](repeating: UInt8(truncatingIfNeeded: last), count: 32),
            signature: isSigned ? [UInt8](repeating: 9, count: 32) : nil)
    }
}

extension AuditReading {
    /// All chains, ordered by name unless another order is given. Reads the list in pages.
    package func allAuditChains(
        _ order: AuditOrder = .byName, since: Timestamp? = nil, limit: Int = 50
    ) async throws -> [AuditChain] {
        var (chains, place): ([AuditChain], AuditPlace?) = ([], nil)
        repeat {
            let page = try await auditChains(order, since: since, after: place, limit: limit)
            #expect(page.damaged == [] && page.chains.count <= limit)
            chains += page.chains
            place = page.next
        } while place != nil
        return chains
    }
}

extension StoreConformance {
    /// The audit log.
    static let audit: [StoreConformance] = [
        StoreConformance("an audit log without blocks has no chains") { store async throws in
            for order in [AuditOrder.byName, .newestFirst] {
                #expect(try await store.auditChains(order, since: nil, after: nil, limit: 9) == AuditPage())
            }
            #expect(try await store.auditBlocks(of: "a-1", after: 0, limit: 9) == [])
            try await store.removeAuditChain("a-1")
        },
        StoreConformance("blocks come back as they were written, chain by chain") { store async throws in
            let blocks: [AuditBlock] = [
                .sample("b-1", 1, time: 5), .sample("a-1", 1, 3, time: 6, isSigned: true),
                .sample("b-1", 2, 9, time: 7), .sample("b-1", 10, time: 8, isSigned: true),
            ]
            for block in blocks { try await store.commit([.audit(block)]) }
            #expect(try await store.auditBlocks(of: "a-1", after: 0, limit: 9) == [blocks[1]])
            #expect(try await store.auditBlocks(of: "b-1", after: 0, limit: 9) == [blocks[0], blocks[2], blocks[3]])
            for (first, limit, expected) in [(Int64(0), 2, [0, 2]), (1, 9, [2, 3]), (2, 9, [3]), (10, 9, [])] {
                #expect(
                    try await store.auditBlocks(of: "b-1", after: first, limit: limit) == expected.map { blocks[$0] })
            }
            let chains = try await store.allAuditChains()
            #expect(
                chains == [
                    AuditChain(
                        end: AuditHead(chain: "a-1", sequence: 3, hash: blocks[1].hash), begun: Timestamp(seconds: 6),
                        written: Timestamp(seconds: 6)),
                    AuditChain(
                        end: AuditHead(chain: "b-1", sequence: 10, hash: blocks[3].hash), begun: Timestamp(seconds: 5),
                        written: Timestamp(seconds: 8)),
                ])
            #expect(try await store.allAuditChains(since: Timestamp(seconds: 6)) == chains)
            #expect(try await store.allAuditChains(since: Timestamp(milliseconds: 6001)) == [chains[1]])
            #expect(try await store.allAuditChains(since: Timestamp(milliseconds: 8001)) == [])
            try await store.removeAuditChain("b-1")
            #expect(try await store.allAuditChains() == [chains[0]])
            #expect(try await store.auditBlocks(of: "b-1", after: 0, limit: 9) == [])
        },
        StoreConformance("chains are listed in pages, by name or the newest first") { store async throws in
            // The last two began at the same time. The first one was written last.
            let begun: [(String, Int64)] = [("c-1", 10), ("a-1", 20), ("e-1", 30), ("b-1", 40), ("d-1", 40)]
            for (chain, time) in begun { try await store.commit([.audit(.sample(chain, 1, time: time))]) }
            try await store.commit([.audit(.sample("c-1", 2, time: 50))])
            let orders: [(AuditOrder, [String])] = [
                (.byName, ["a-1", "b-1", "c-1", "d-1", "e-1"]), (.newestFirst, ["d-1", "b-1", "e-1", "a-1", "c-1"]),
            ]
            for (order, names) in orders {
                for limit in [1, 2, 4, 5, 6] {
                    let found = try await store.allAuditChains(order, limit: limit)
                    #expect(found.map(\.end.chain) == names, "\(limit)")
                    let page = try await store.auditChains(order, since: nil, after: nil, limit: limit)
                    #expect(page.chains.map(\.end.chain) == Array(names.prefix(limit)))
                }
                let recent = try await store.allAuditChains(order, since: Timestamp(seconds: 40), limit: 2)
                #expect(recent.map(\.end.chain) == names.filter { ["b-1", "c-1", "d-1"].contains($0) })
            }
            // A page begins behind a place, also where its chain was removed meanwhile.
            try await store.removeAuditChain("e-1")
            let place = AuditPlace(begun: Timestamp(seconds: 30), chain: "e-1")
            let newest = try await store.auditChains(.newestFirst, since: nil, after: place, limit: 9)
            #expect(newest.chains.map(\.end.chain) == ["a-1", "c-1"] && newest.next == nil)
            let named = try await store.auditChains(.byName, since: nil, after: place, limit: 9)
            #expect(named == AuditPage())
        },
        StoreConformance("a block is there exactly when the changes of its commit are") { store async throws in
            let tenant = StoreSample.record(.tenant, StoreSample.alpha, "")
            let record = StoreSample.record(version: 1)
            let next = StoreSample.record(version: 2)
            try await store.commit([.insert(tenant), .audit(.sample("a-1", 1))])
            try await store.commit([.require(tenant.id), .insert(record), .audit(.sample("a-1", 2))])
            let conflicts: [[RecordChange]] = [
                [.insert(record)], [.replace(next, version: 7)], [.remove(record.id, version: 7)],
                [.require(RecordID(.tenant, StoreSample.beta))],
                [.require(RecordID(.tenant, StoreSample.beta)), .insert(StoreSample.record(.apiKey))],
                [.replace(next, version: 1), .insert(tenant)],
            ]
            for changes in conflicts {
                #expect(try await store.conflicts(changes + [.audit(.sample("a-1", 3))]))
                #expect(
                    try await store.conflicts(
                        changes + [.append(StoreSample.entry("e")), .audit(.sample("a-1", 3))]))
            }
            #expect(try await store.allAuditChains().first?.end.sequence == 2)
            var sequence: Int64 = 2
            let other = StoreSample.record(.credentials, StoreSample.alpha, "other")
            let commits: [[RecordChange]] = [
                [.replace(next, version: 1)], [.append(StoreSample.entry("e"))],
                [.replace(StoreSample.record(version: 3), version: 2), .append(StoreSample.entry("f"))],
                [.require(tenant.id), .insert(other)],
                [
                    .remove(record.id, version: 3),
                    .insert(StoreSample.record(.credentials, StoreSample.alpha, "third")),
                ],
                [.removeAll(StoreSample.alpha)],
            ]
            for changes in commits {
                sequence += 1
                try await store.commit(changes + [.audit(.sample("a-1", sequence))])
            }
            #expect(try await store.auditBlocks(of: "a-1", after: 0, limit: 99).map(\.first) == Array(1...sequence))
            #expect(try await store.everything() == [])
        },
    ]
}
