import Containers
import OAuth

/// A cache of the lists that were read last: the sorted identities of the records of a kind, of one tenant or of all
/// tenants. With it a page costs what the page contains, and not what the store contains. Writes and removals update
/// it.
struct RecordListings {
    private var listings: [RecordListing] = []

    /// Three lists are read in turn: credentials, the quarantine, and the errors of renewals.
    private static let most = 3

    /// Up to `limit` identities of that kind, those after `after` (exclusive) only.
    /// - Parameter identities: returns all identities in any order; called when the list is not in the cache.
    mutating func page<Failure: Error>(
        _ kind: RecordKind, tenant: TenantName?, after: RecordID?, limit: Int,
        identities: () throws(Failure) -> [RecordID]
    ) throws(Failure) -> [RecordID] {
        if let place = listings.firstIndex(where: { $0.isOf(kind, tenant: tenant) }) {
            listings.swapAt(0, place)
        } else {
            listings.insert(RecordListing(kind, tenant: tenant, ids: try identities()), at: 0)
            listings.removeLast(max(0, listings.count - Self.most))
        }
        return listings[0].page(after: after, limit: limit)
    }

    /// To be called when the record was written or removed.
    mutating func note(_ id: RecordID, exists: Bool) {
        for place in listings.indices { listings[place].note(id, exists: exists) }
    }

    mutating func forget() { listings = [] }
}

private struct RecordListing {
    private let kind: RecordKind
    private let tenant: TenantName?
    private var ids: [RecordID]

    /// - Parameter ids: in any order.
    init(_ kind: RecordKind, tenant: TenantName?, ids: [RecordID]) {
        self.kind = kind
        self.tenant = tenant
        self.ids = ids.sorted()
    }

    func isOf(_ kind: RecordKind, tenant: TenantName?) -> Bool { self.kind == kind && self.tenant == tenant }

    /// Up to `limit` identities, those after `after` (exclusive) only.
    func page(after: RecordID?, limit: Int) -> [RecordID] {
        var start = after.map(place) ?? 0
        if let after, start < ids.count, ids[start] == after { start += 1 }
        return Array(ids[start...].prefix(limit))
    }

    mutating func note(_ id: RecordID, exists: Bool) {
        guard id.kind == kind, tenant == nil || tenant == id.tenant else { return }
        let place = place(id)
        let isListed = place < ids.count && ids[place] == id
        if exists, !isListed { ids.insert(id, at: place) }
        if !exists, isListed { ids.remove(at: place) }
    }

    /// The position of the identity in the list, or the one where it would be inserted.
    private func place(_ id: RecordID) -> Int { ids.partitioningIndex { $0 >= id } }
}
