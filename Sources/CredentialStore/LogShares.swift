import OAuth

/// How the tenants share the room of the log when it has more entries than it may keep.
enum LogShares {
    /// How many of its oldest entries each tenant loses, so that `count` are left in all. The tenant with the most loses first,
    /// down to the number of the next one, then these two, and so on; of tenants with equal numbers the first by name loses
    /// first.
    /// - Returns: the tenants that lose entries; none where there are not too many.
    static func surplus(of counts: [TenantName: Int], keeping count: Int) -> [TenantName: Int] {
        let tenants = counts.sorted { $0.value < $1.value }
        var room = max(0, count)
        for (index, tenant) in tenants.enumerated() {
            if tenant.value <= room / (tenants.count - index) {
                room -= tenant.value
                continue
            }
            // This one and all behind it have more than an equal share of what is left.
            let larger = tenants[index...].sorted { $0.key < $1.key }
            let (share, rest) = room.quotientAndRemainder(dividingBy: larger.count)
            var surplus: [TenantName: Int] = [:]
            for (place, tenant) in larger.enumerated() {
                let kept = place < larger.count - rest ? share : share + 1
                if tenant.value > kept { surplus[tenant.key] = tenant.value - kept }
            }
            return surplus
        }
        return [:]
    }
}
