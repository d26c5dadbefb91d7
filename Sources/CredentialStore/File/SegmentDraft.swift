import OAuth

/// A segment of the log that is written again, without the entries that do not count. A gap takes their place.
struct SegmentDraft {
    /// Its first sequence.
    let first: Int64
    /// The frames before the gap that it may end with.
    private var written: [UInt8] = []
    private var gap: ClosedRange<Int64>?
    /// How many entries it has.
    private(set) var present = 0

    init(first: Int64) {
        self.first = first
    }

    /// The whole file.
    var bytes: [UInt8] { gap.map { written + LogFrame.encode(gap: $0) } ?? written }

    /// Adds a frame, which begins behind what was added before.
    /// - Parameter octets: those of the frame.
    mutating func append(_ frame: LogFrame, _ octets: ArraySlice<UInt8>, by state: LogState) {
        if frame.entries.isEmpty { return skip(frame.first...frame.last) }
        if frame.entries.allSatisfy({ state.counts($0) }) { return write(octets, frame.entries.count) }
        var kept: [StoredLogEntry] = []
        for placed in frame.entries {
            if state.hides(placed) {
                write(&kept, before: placed.sequence)
                skip(placed.sequence...placed.sequence)
            } else {
                kept.append(state.shown(placed).entry)
            }
        }
        write(&kept, before: frame.last + 1)
    }

    private mutating func write(_ entries: inout [StoredLogEntry], before sequence: Int64) {
        if entries.isEmpty { return }
        write(LogFrame.encode(entries, first: sequence - Int64(entries.count)), entries.count)
        entries = []
    }

    private mutating func write(_ octets: some Sequence<UInt8>, _ count: Int) {
        if let gap { written += LogFrame.encode(gap: gap) }
        gap = nil
        written += octets
        present += count
    }

    private mutating func skip(_ sequences: ClosedRange<Int64>) {
        gap = (gap?.lowerBound ?? sequences.lowerBound)...sequences.upperBound
    }
}
