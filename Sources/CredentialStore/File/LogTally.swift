import OAuth

/// How many entries the segments of the log have of each tenant, without those that do not count and without markers.
struct LogTally {
    private struct Segment {
        var counts: [TenantName: Int] = [:]
        /// How many entries its file has, those that do not count included.
        var present = 0
    }

    private var segments: [Int64: Segment] = [:]
    private(set) var totals: [TenantName: Int] = [:]

    var total: Int { totals.values.reduce(0, +) }

    func count(of tenant: TenantName, in segment: Int64) -> Int { segments[segment]?.counts[tenant] ?? 0 }

    func count(in segment: Int64) -> Int { segments[segment]?.counts.values.reduce(0, +) ?? 0 }

    func present(in segment: Int64) -> Int { segments[segment]?.present ?? 0 }

    mutating func add(_ tenant: TenantName, counts: Bool = true, to segment: Int64) {
        segments[segment, default: Segment()].present += 1
        if !counts { return }
        segments[segment, default: Segment()].counts[tenant, default: 0] += 1
        totals[tenant, default: 0] += 1
    }

    /// The tenant's entries in the segment count no more, so many of them.
    mutating func subtract(_ number: Int, of tenant: TenantName, in segment: Int64) {
        Self.subtract(number, of: tenant, from: &segments[segment, default: Segment()].counts)
        Self.subtract(number, of: tenant, from: &totals)
    }

    private static func subtract(_ number: Int, of tenant: TenantName, from counts: inout [TenantName: Int]) {
        let rest = counts[tenant, default: 0] - number
        counts[tenant] = rest > 0 ? rest : nil
    }

    /// None of the tenant's entries count any more.
    mutating func clear(_ tenant: TenantName) {
        if totals.removeValue(forKey: tenant) == nil { return }
        for segment in segments.keys { segments[segment]?.counts[tenant] = nil }
    }

    /// The segment was removed, with entries that do not count.
    mutating func forget(_ segment: Int64) { segments[segment] = nil }

    /// The entries of other segments that count were written into one, whose file has so many entries now.
    mutating func join(_ others: [Int64], into segment: Int64, present: Int) {
        var joined = segments[segment] ?? Segment()
        for other in others {
            let counts = segments.removeValue(forKey: other)?.counts ?? [:]
            joined.counts.merge(counts) { $0 + $1 }
        }
        joined.present = present
        segments[segment] = joined
    }
}
