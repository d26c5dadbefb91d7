import Containers
import OAuth

/// The removal of entries that are too many; see `RecordStore.trimLog`. The state says which entries of a tenant do not count any
/// more; their octets go when most of a segment does not count.
extension FileLog {
    /// What a trimming changes.
    struct Trimming {
        /// How many entries it removes, without those of removed tenants.
        var count = 0
        var state: LogState
        /// How many entries that counted the segments lose of each tenant.
        var lost: [Int64: [TenantName: Int]] = [:]
    }

    /// Segments that are written as one, without the entries that do not count.
    struct Compaction {
        let draft: SegmentDraft
        /// The segments behind it whose entries are in it.
        let joined: [Int64]

        var path: String { FileLog.path(of: draft.first) }
    }

    /// How many segments are read for one compaction at most.
    private static let joinedAtOnce = 64

    /// What the removal of up to `limit` of the entries changes that are too many.
    func thinning(keeping count: Int, limit: Int) throws(FileStoreError) -> Trimming {
        var trimming = Trimming(state: state)
        guard limit > 0, mayHaveTooMany(keeping: count) else { return trimming }
        let tally = try currentTally()
        let surplus = LogShares.surplus(of: tally.totals, keeping: max(count, tally.total - limit))
        // In which segment what a tenant loses ends, and with which of its entries there.
        var ends: [Int64: [TenantName: Int]] = [:]
        for (tenant, number) in surplus {
            var rest = number
            for segment in segments where rest > 0 {
                let held = tally.count(of: tenant, in: segment)
                if held == 0 { continue }
                trimming.lost[segment, default: [:]][tenant] = min(held, rest)
                if rest <= held { ends[segment, default: [:]][tenant] = rest }
                rest -= held
            }
            trimming.count += number
        }
        for (segment, numbers) in ends {
            var left = numbers
            try visit(segment) { frame, _ in
                for placed in frame.entries where state.counts(placed) {
                    guard let number = left[placed.entry.tenant] else { continue }
                    left[placed.entry.tenant] = number - 1
                    if number == 1 { trimming.state.mark(placed.entry.tenant, at: placed.sequence) }
                }
            }
        }
        return trimming
    }

    /// Whether the log may have more entries, or their octets.
    func mayHaveTooMany(keeping count: Int) -> Bool { bounds.last - bounds.trimmed > count }

    /// To be called when the state of the trimming is being written.
    func didTrim(_ trimming: Trimming) {
        for (segment, tenants) in trimming.lost {
            for (tenant, number) in tenants { tally?.subtract(number, of: tenant, in: segment) }
        }
    }

    private func currentTally() throws(FileStoreError) -> LogTally {
        if let tally { return tally }
        var tally = LogTally()
        for segment in segments {
            try visit(segment) { frame, _ in
                for placed in frame.entries {
                    tally.add(placed.entry.tenant, counts: state.counts(placed), to: segment)
                }
            }
        }
        self.tally = tally
        return tally
    }

    private func visit(
        _ segment: Int64, _ body: (LogFrame, _ octets: ArraySlice<UInt8>) -> Void
    ) throws(FileStoreError) {
        let bytes = try read(segment, from: 0)
        var rest = bytes[...]
        while !rest.isEmpty {
            let frame = try decode(rest, of: segment)
            body(frame, rest.prefix(frame.count))
            rest = rest.dropFirst(frame.count)
        }
    }

    // MARK: Compaction

    /// The first segments of which half of the entries or more do not count, with the one before them where that is small; nil when there
    /// are none, or when it is not known. Never the last segment, which grows.
    func compaction() throws(FileStoreError) -> Compaction? {
        guard let tally else { return nil }
        var markers: [Int64: Int] = [:]
        for sequence in state.markers {
            if let segment = segments.last(where: { $0 <= sequence }) { markers[segment, default: 0] += 1 }
        }
        func isSparse(_ segment: Int64) -> Bool {
            let present = tally.present(in: segment)
            return present > 0 && 2 * (tally.count(in: segment) + markers[segment, default: 0]) <= present
        }
        let closed = segments.dropLast()
        guard let start = closed.firstIndex(where: isSparse) else { return nil }
        var draft = try draft(of: closed[max(0, start - 1)])
        var joined: [Int64] = []
        for segment in closed[max(1, start)...].prefix(Self.joinedAtOnce) {
            guard isSparse(segment) else { break }
            let longer = try adding(segment, to: draft)
            if longer.bytes.count <= Self.segmentCount {
                draft = longer
                joined.append(segment)
            } else if joined.isEmpty, segment == closed[start] {
                // The one before it has no room for it.
                draft = try self.draft(of: segment)
            } else {
                break
            }
        }
        return Compaction(draft: draft, joined: joined)
    }

    private func draft(of segment: Int64) throws(FileStoreError) -> SegmentDraft {
        try adding(segment, to: SegmentDraft(first: segment))
    }

    private func adding(_ segment: Int64, to draft: SegmentDraft) throws(FileStoreError) -> SegmentDraft {
        var draft = draft
        try visit(segment) { frame, octets in draft.append(frame, octets, by: state) }
        return draft
    }

    /// To be called when the files are written and removed.
    func didCompact(_ compaction: Compaction) {
        segments.removeAll { compaction.joined.contains($0) }
        tally?.join(compaction.joined, into: compaction.draft.first, present: compaction.draft.present)
        places.removeAll()
    }
}
