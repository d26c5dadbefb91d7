import Containers
import ExternalText
package import OAuth

/// A chain of the audit log, as the store has it.
package struct AuditChain: Sendable, Equatable {
    /// The last entry.
    package let end: AuditHead
    /// The times of its first and its last block.
    package let begun: Timestamp
    package let written: Timestamp

    package init(end: AuditHead, begun: Timestamp, written: Timestamp) {
        self.end = end
        self.begun = begun
        self.written = written
    }

    /// The chain with these blocks, in order; nil when there are none.
    init?(_ blocks: [AuditBlock]) {
        guard let first = blocks.first, let last = blocks.last else { return nil }
        self.init(end: last.end, begun: first.time, written: last.time)
    }

    var place: AuditPlace { AuditPlace(begun: begun, chain: end.chain) }
}

/// A chain that cannot be read, or only up to some block.
package struct DamagedAuditChain: Sendable, Equatable {
    /// Nil for a name that no process gives to a chain, because it is not printed.
    package let chain: String?
    /// What is wrong and where, for operators.
    package let text: String
}

/// The name of a chain of this process: when it began, the process, and a number.
///
/// A store whose chains are files finds the newest ones by their names, without reading the files.
enum AuditChainName {
    private static let digitCount = 12

    static func make(begun: Timestamp, process: String, number: Int64) -> String {
        let digits = String(max(0, begun.milliseconds), radix: 16)
        return String(repeating: "0", count: max(0, digitCount - digits.utf8.count)) + digits + "-\(process)-\(number)"
    }

    /// When the chain began; nil for a name that does not tell.
    static func begun(_ name: String) -> Timestamp? {
        let parts = name.utf8.split(separator: UInt8(ascii: "-"), omittingEmptySubsequences: false)
        guard parts.count == 3, parts[0].count == digitCount else { return nil }
        return Int64(String(parts[0]) ?? "", radix: 16).map { Timestamp(milliseconds: $0) }
    }

    /// The process that wrote the chain, as far as the name tells: the name without the time and without the number.
    static func process(_ name: WireText) -> WireText {
        let parts = name.split(at: "-")
        if parts.count == 3, parts[0].utf8.count == digitCount { return parts[1] }
        return WireText(name.utf8.prefix(max(0, name.utf8.count - (parts.last?.utf8.count ?? 0))))
    }
}

/// An order of all chains.
package enum AuditOrder: Sendable {
    /// Has every chain, also one whose first block is missing.
    case byName
    /// The chain that began last comes first. Without chains whose first block is missing.
    case newestFirst

    func isBefore(_ one: AuditPlace, _ other: AuditPlace) -> Bool {
        let (name, otherName) = (WireText(one.chain), WireText(other.chain))
        return switch self {
        case .byName: name < otherName
        case .newestFirst: one.begun == other.begun ? otherName < name : other.begun < one.begun
        }
    }
}

/// Where a chain stands in the orders.
package struct AuditPlace: Sendable, Equatable {
    package let begun: Timestamp
    package let chain: String

    package init(begun: Timestamp, chain: String) {
        self.begun = begun
        self.chain = chain
    }
}

/// A part of the list of chains.
package struct AuditPage: Sendable, Equatable {
    package var chains: [AuditChain]
    package var damaged: [DamagedAuditChain]
    /// The last chain that was looked at, behind which the next page begins; nil when there is none behind it.
    package var next: AuditPlace?

    package init(chains: [AuditChain] = [], damaged: [DamagedAuditChain] = [], next: AuditPlace? = nil) {
        self.chains = chains
        self.damaged = damaged
        self.next = next
    }

    /// A page of chains that are in memory.
    package init(
        of chains: [AuditChain], _ order: AuditOrder, since: Timestamp?, after place: AuditPlace?, limit: Int
    ) {
        let sorted = chains.sorted { order.isBefore($0.place, $1.place) }
        let start = sorted.firstIndex { chain in place.map { order.isBefore($0, chain.place) } ?? true } ?? sorted.count
        let page = sorted[start...].prefix(max(1, limit))
        self.init(
            chains: page.filter { chain in since.map { chain.written >= $0 } ?? true },
            next: page.endIndex < sorted.endIndex ? page.last?.place : nil)
    }
}

/// The chains of a directory in both orders, so that a page is found without sorting.
struct AuditIndex {
    private var byName: [AuditPlace]
    private var newestFirst: [AuditPlace]

    init(_ places: [AuditPlace]) {
        byName = places.sorted(by: AuditOrder.byName.isBefore)
        newestFirst = places.sorted(by: AuditOrder.newestFirst.isBefore)
    }

    /// The places behind `place`, up to `limit` of them, and the last one if others are behind it.
    func page(
        _ order: AuditOrder, after place: AuditPlace?, limit: Int
    ) -> (places: ArraySlice<AuditPlace>, next: AuditPlace?) {
        let sorted = order == .byName ? byName : newestFirst
        let start = place.map { place in sorted.partitioningIndex { order.isBefore(place, $0) } } ?? 0
        let page = sorted[start...].prefix(max(1, limit))
        return (page, page.endIndex < sorted.endIndex ? page.last : nil)
    }

    /// Does nothing when the chain is there.
    mutating func insert(_ place: AuditPlace) {
        let start = byName.partitioningIndex { !AuditOrder.byName.isBefore($0, place) }
        if start < byName.count, !AuditOrder.byName.isBefore(place, byName[start]) { return }
        byName.insert(place, at: start)
        newestFirst.insert(
            place, at: newestFirst.partitioningIndex { AuditOrder.newestFirst.isBefore(place, $0) })
    }

    mutating func remove(_ chain: String) {
        let name = WireText(chain)
        byName.removeAll { WireText($0.chain) == name }
        newestFirst.removeAll { WireText($0.chain) == name }
    }
}

/// The audit log as it can be read.
package protocol AuditReading: Sendable {
    /// A part of the list of chains. Reads no more than that part.
    /// - Parameters:
    ///   - since: leaves chains out whose last block was written before; nil for all chains.
    ///   - place: where the part begins: behind that chain. Nil for the beginning.
    ///   - limit: how many chains are looked at; 1 or more.
    func auditChains(
        _ order: AuditOrder, since: Timestamp?, after place: AuditPlace?, limit: Int
    ) async throws(StoreError) -> AuditPage

    /// Up to `limit` blocks of the chain, in its order, those whose first entry is after `first` only. Of a damaged chain,
    /// which `auditChains` names, the blocks before the damage.
    func auditBlocks(of chain: String, after first: Int64, limit: Int) async throws(StoreError) -> [AuditBlock]
}

extension AuditReading {
    /// Calls `body` with each page of the list of all chains.
    func readAuditPages(
        since: Timestamp? = nil, _ body: (AuditPage) async throws(StoreError) -> Void
    ) async throws(StoreError) {
        // A store with files reads a whole chain to list it, and writes nothing meanwhile.
        let pageCount = 50
        var place: AuditPlace?
        repeat {
            let page = try await auditChains(.byName, since: since, after: place, limit: pageCount)
            try await body(page)
            place = page.next
        } while place != nil
    }

    /// Calls `body` with each block of the chain, in its order. Reads a part of the chain at a time.
    func readAuditBlocks(of chain: String, _ body: (AuditBlock) -> Void) async throws(StoreError) {
        let pageCount = 200
        var first: Int64 = 0
        while true {
            let blocks = try await auditBlocks(of: chain, after: first, limit: pageCount)
            for block in blocks { body(block) }
            guard blocks.count == pageCount, let last = blocks.last else { return }
            first = last.first
        }
    }
}
