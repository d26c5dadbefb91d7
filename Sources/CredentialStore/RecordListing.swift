internal import OAuth

/// The lists that were read last, so that each page of one costs what the page has, and not what there is: the identities
/// of a kind's records, of one tenant or of all, in their order, kept right while records come and go.
struct RecordListings {
    private var listings: [RecordListing] = []

    /// Credentials are listed together with what is kept aside, and with what their renewals failed with.
    private static let most = 3

    /// Up to `limit` identities of that kind, those after `after` (exclusive) only.
    /// - Parameter identities: all of them, in any order; called where the list was not read of late.
    mutating func page<Failure: Error>(
        _ kind: RecordKind, _ tenant: TenantName?, after: RecordID?, limit: Int,
        _ identities: () throws(Failure) -> [RecordID]
    ) throws(Failure) -> [RecordID] {
        if let place = listings.firstIndex(where: { $0.isOf(kind, tenant) }) {
            listings.swapAt(0, place)
        } else {
            listings.insert(RecordListing(kind, tenant, try identities()), at: 0)
            listings.removeLast(max(0, listings.count - Self.most))
        }
        return listings[0].page(after: after, limit: limit)
    }

    /// The record was written or removed.
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
    init(_ kind: RecordKind, _ tenant: TenantName?, _ ids: [RecordID]) {
        self.kind = kind
        self.tenant = tenant
        self.ids = ids.sorted()
    }

    func isOf(_ kind: RecordKind, _ tenant: TenantName?) -> Bool { self.kind == kind && self.tenant == tenant }

    /// Up to `limit` identities, those after `after` (exclusive) only.
    func page(after: RecordID?, limit: Int) -> [RecordID] {
        var start = after.map(place) ?? 0
        if let after, start < ids.count, ids[start] == after { start += 1 }
        return Array(ids[start...].prefix(limit))
    }

    /// The record was written or removed.
    mutating func note(_ id: RecordID, exists: Bool) {
        guard id.kind == kind, tenant == nil || tenant == id.tenant else { return }
        let place = place(id)
        let isListed = place < ids.count && ids[place] == id
        if exists, !isListed { ids.insert(id, at: place) }
        if !exists, isListed { ids.remove(at: place) }
    }

    /// Where the identity stands, or would.
    private func place(_ id: RecordID) -> Int {
        var (low, high) = (0, ids.count)
        while low < high {
            let middle = (low + high) / 2
            if ids[middle] < id { low = middle + 1 } else { high = middle }
        }
        return low
    }
}
