import Containers
import Glibc
import OAuth
import Reactor

/// The log of events in a store's directory: frames in segment files. The name of a segment is the sequence of its
/// first entry.
///
/// Frames are appended to the last segment. When a frame would make it longer than 1 MiB, a new segment begins. A frame
/// is written when the write-ahead log contains it, and again by a recovery. Trimming by age moves a bound in
/// `log/state`, and removes the segments that are entirely below it, except the last one, whose name and frames give the
/// end of the log. Trimming by number notes in `log/state` which entries do not count, and writes segments again without
/// them; see `FileLog+Thinning.swift`.
///
/// No entries are kept in memory, but how many each segment has of each tenant.
///
/// Not Sendable: belongs to one `FileRecords` and its thread. Calls block.
final class FileLog {
    static let directoryName = "log"
    static let statePath = "log/state"
    static let segmentCount = 1 << 20
    private static let digitCount = 19

    /// The frame that a commit adds, and its position.
    struct Addition {
        let first: Int64
        let last: Int64
        let path: String
        let offset: Int
        let bytes: [UInt8]
        let tenants: [TenantName]

        var change: FileChange { .append(to: path, offset: offset, bytes) }
    }

    struct Place {
        let segment: Int64
        let offset: Int
    }

    private let files: StoreFiles
    private(set) var state = LogState()
    private var last: Int64 = 0
    /// The first sequences of the segments, in ascending order.
    var segments: [Int64] = []
    /// Nil when it is not known; it is then counted when it is needed.
    var tally: LogTally?
    /// The length of the last segment in octets.
    private var end = 0
    /// The file for which room was reserved last, and the end of that room.
    private var reserved: (path: String, end: Int) = ("", 0)
    /// A cache of the positions at which readers continue: where the frame with a sequence begins.
    var places = BoundedTable<Int64, Place>(capacity: 64)

    init(_ files: StoreFiles) {
        self.files = files
    }

    /// The first sequence of the last segment; 0 when there is none.
    var lastSegment: Int64 { segments.last ?? 0 }

    var bounds: LogBounds { LogBounds(trimmed: state.trimmed, last: last) }

    // MARK: Writing

    func addition(of entries: [StoredLogEntry]) throws(FileStoreError) -> Addition? {
        if entries.isEmpty { return nil }
        let first = last + 1
        let bytes = LogFrame.encode(entries, first: first)
        guard bytes.count <= RecordFile.countLimit / 2 else {
            throw .system(path: files.path, SystemError("write", number: EFBIG))
        }
        let isRoom = end == 0 || end + bytes.count <= Self.segmentCount
        let segment = isRoom ? segments.last ?? first : first
        return Addition(
            first: first, last: last + Int64(entries.count), path: Self.path(of: segment), offset: isRoom ? end : 0,
            bytes: bytes, tenants: entries.map(\.tenant))
    }

    /// Reserves room for the addition in a file: the last segment, or the draft of a new segment. To be called before
    /// the commit takes place: a committed change must not fail for lack of room, because reads wait until it has been
    /// made.
    /// - Parameter sparingly: whether to reserve no more than the addition takes, because the disk is full.
    func reserve(_ addition: Addition, in path: String, sparingly: Bool) throws(SystemError) {
        let end = addition.offset + addition.bytes.count
        if path == reserved.path, end <= reserved.end { return }
        // Reserves the whole segment, so that most additions need no call.
        var kept = sparingly ? end : max(end, Self.segmentCount)
        do throws(SystemError) {
            try files.directory.reserve(path, upTo: kept)
        } catch {
            guard error.number == ENOSPC || error.number == EDQUOT, kept > end else { throw error }
            kept = end
            try files.directory.reserve(path, upTo: kept)
        }
        reserved = (path, kept)
    }

    /// To be called when the addition is written.
    func didWrite(_ addition: Addition) {
        if addition.offset == 0, addition.path != segments.last.map(Self.path) { segments.append(addition.first) }
        last = addition.last
        end = addition.offset + addition.bytes.count
        guard let segment = segments.last else { return }
        remember(addition.first, Place(segment: segment, offset: addition.offset))
        for tenant in addition.tenants { tally?.add(tenant, to: segment) }
    }

    /// To be called when the entries of these tenants do not count any more, before those of the same commit are noted.
    func didClear(_ tenants: Set<TenantName>) {
        for tenant in tenants { tally?.clear(tenant) }
    }

    /// The state in which the present entries of the tenants do not count.
    func state(cutting tenants: Set<TenantName>) -> LogState {
        var cut = state
        for tenant in tenants { cut.cut(tenant, at: last) }
        return cut
    }

    /// Whether that state makes segments superfluous.
    func losesSegments(with state: LogState) -> Bool { segments.count > 1 && segments[1] - 1 <= state.trimmed }

    /// To be called when the state has been written. Removes superfluous segments, so a checkpoint must have been made
    /// before if there are any. A segment whose removal fails is removed at the next start.
    func didWrite(_ state: LogState) throws(SystemError) {
        self.state = state
        while losesSegments(with: state) {
            try files.directory.remove(Self.path(of: segments[0]))
            tally?.forget(segments.removeFirst())
            places.removeAll()
        }
    }

    /// The segments that have entries with these sequences, in their order.
    func segments(of sequences: [Int64]) -> [Int64] {
        guard let first = sequences.min(), let last = sequences.max() else { return [] }
        return segments.enumerated().filter { index, segment in
            segment <= last && (index + 1 == segments.count || segments[index + 1] > first)
        }.map(\.element)
    }

    /// The change that gives entries of a segment other octets, and how many; nil when none of them is as it was read. The
    /// octets have the same lengths, so that every frame stays where it is.
    func rewriting(
        _ segment: Int64, with others: [Int64: (read: [UInt8], sealed: [UInt8])]
    ) throws(FileStoreError) -> (change: FileChange?, count: Int) {
        let bytes = try read(segment, from: 0)
        var rest = bytes[...]
        var first: Int?
        var written: [UInt8] = []
        var count = 0
        while !rest.isEmpty {
            let frame = try decode(rest, of: segment)
            var entries = frame.entries
            var changed = 0
            for place in entries.indices {
                guard let other = others[entries[place].sequence], other.read == entries[place].entry.sealed,
                    other.sealed.count == other.read.count, state.counts(entries[place])
                else { continue }
                entries[place].entry.sealed = other.sealed
                changed += 1
            }
            if changed > 0, first == nil { first = rest.startIndex }
            if first != nil {
                // A change of a file writes everything behind its offset.
                written +=
                    changed > 0
                    ? LogFrame.encode(entries.map(\.entry), first: entries[0].sequence)
                    : Array(rest.prefix(frame.count))
            }
            count += changed
            rest = rest.dropFirst(frame.count)
        }
        return (first.map { .append(to: Self.path(of: segment), offset: $0, written) }, count)
    }

    /// To be called when such a change is made. Writing the end of a file gives back the room that was reserved behind it.
    func didRewrite() { reserved = ("", 0) }

    // MARK: Reading

    func entries(after sequence: Int64, tenant: TenantName?, limit: Int) throws(FileStoreError) -> [PlacedLogEntry] {
        var entries: [PlacedLogEntry] = []
        if limit <= 0 { return entries }
        try scan(after: sequence) { placed, _ in
            if tenant.map({ $0 == placed.entry.tenant }) ?? true { entries.append(placed) }
            return entries.count < limit
        }
        return entries
    }

    /// Reads the log up to the entry, or all of it.
    func contains(_ entry: StoredLogEntry) throws(FileStoreError) -> Bool {
        var isFound = false
        try scan(after: state.trimmed) { placed, _ in
            isFound = placed.entry == entry
            return !isFound
        }
        return isFound
    }

    /// What the removal of up to `limit` entries changes that are too old.
    func trimming(before time: Timestamp, limit: Int) throws(FileStoreError) -> Trimming {
        var trimming = Trimming(state: state)
        if limit <= 0 { return trimming }
        var end = state.trimmed
        // The entries of removed tenants are trimmed as well. Otherwise they would keep their segments and the names of
        // the tenants for ever when no other entries exist.
        try scan(after: state.trimmed, includingHidden: true) { placed, segment in
            guard placed.entry.time < time else { return false }
            end = placed.sequence
            if !state.hides(placed) { trimming.count += 1 }
            if state.counts(placed) { trimming.lost[segment, default: [:]][placed.entry.tenant, default: 0] += 1 }
            return trimming.count < limit
        }
        trimming.state.trim(to: end)
        return trimming
    }

    /// Calls `visit` with each entry behind `sequence` and its segment, until `visit` returns false.
    /// - Parameter includingHidden: whether to visit the entries that do not count.
    private func scan(
        after sequence: Int64, includingHidden: Bool = false, _ visit: (PlacedLogEntry, _ segment: Int64) -> Bool
    ) throws(FileStoreError) {
        guard sequence < last else { return }
        let next = max(sequence, state.trimmed) + 1
        let place = places[next]
        for (index, segment) in segments.enumerated() {
            if let place, segment < place.segment { continue }
            // Skips the segment when the next one begins at or before the first wanted entry.
            if segments.indices.contains(index + 1), segments[index + 1] <= next { continue }
            var offset = place.flatMap { $0.segment == segment ? $0.offset : nil } ?? 0
            let bytes = try read(segment, from: offset)
            var rest = bytes[...]
            while !rest.isEmpty {
                let frame = try decode(rest, of: segment)
                let end = offset + frame.count
                for placed in frame.entries where placed.sequence >= next && (includingHidden || !state.hides(placed)) {
                    if visit(state.shown(placed), segment) { continue }
                    let isLast = placed.sequence == frame.last
                    return remember(placed.sequence + 1, Place(segment: segment, offset: isLast ? end : offset))
                }
                rest = rest.dropFirst(frame.count)
                offset = end
            }
        }
    }

    func read(_ segment: Int64, from offset: Int) throws(FileStoreError) -> [UInt8] {
        let name = Self.path(of: segment)
        guard let bytes = try files.read(name, from: offset, limit: RecordFile.countLimit) else {
            throw files.damage(name, .missing)
        }
        return bytes
    }

    func decode(_ bytes: ArraySlice<UInt8>, of segment: Int64) throws(FileStoreError) -> LogFrame {
        do throws(FramedFile.Failure) {
            return try LogFrame(decoding: bytes)
        } catch {
            throw files.damage(Self.path(of: segment), FramedFile.flaw(error, ofPart: bytes))
        }
    }

    private func remember(_ sequence: Int64, _ place: Place) {
        places.setNewest(place, forKey: sequence)
    }

    // MARK: Starting

    /// Reads the bounds of the log, and removes superfluous segments. To be called when the changes in the write-ahead
    /// log have been made.
    /// - Parameter segment: the first sequence of the last segment by the catalog; nil when there is no catalog.
    func recover(endingWith segment: Int64?) throws(FileStoreError) {
        state = try readState(mayBeMissing: segment == nil)
        segments = try readSegments()
        places.removeAll()
        tally = nil
        reserved = ("", 0)
        end = 0
        last = state.trimmed
        if let segment, segment != lastSegment {
            throw segment > lastSegment
                ? files.damage(Self.path(of: segment), .missing)
                : files.damage(Self.path(of: lastSegment), .uncatalogued)
        }
        if let segment = segments.last {
            let frames = try readFrames(of: segment)
            // Trimming goes as far as there are entries. An entry behind the bound would leave a gap in this segment, which
            // the next start would take for damage.
            guard frames.last >= state.trimmed else { throw files.damage(Self.path(of: segment), .truncated) }
            (last, end) = (frames.last, frames.count)
        }
        try files.onDisk { () throws(SystemError) in try didWrite(state) }
    }

    /// Reads all segments, and counts their entries.
    func verify() throws(FileStoreError) {
        var next: Int64?
        var tally = LogTally()
        for segment in segments {
            if let next {
                if segment != next { throw files.damage(Self.path(of: next), .missing) }
            } else if segment > state.trimmed + 1 {
                // A segment is removed only when all its entries have been trimmed.
                throw state.trimmed == 0
                    ? files.damage(Self.path(of: 1), .missing) : files.damage(Self.path(of: segment), .gap)
            }
            next =
                try readFrames(of: segment) { placed in
                    tally.add(placed.entry.tenant, counts: state.counts(placed), to: segment)
                }.last + 1
        }
        self.tally = tally
    }

    private func readState(mayBeMissing: Bool) throws(FileStoreError) -> LogState {
        guard let bytes = try files.read(Self.statePath, limit: RecordFile.countLimit) else {
            if mayBeMissing { return LogState() }
            throw files.damage(Self.statePath, .missing)
        }
        do throws(FramedFile.Failure) {
            return try LogState(decoding: bytes)
        } catch {
            throw files.damage(Self.statePath, LogState.flaw(error, of: bytes))
        }
    }

    private func readSegments() throws(FileStoreError) -> [Int64] {
        var segments: [Int64] = []
        for name in try files.names(in: Self.directoryName) {
            let path = "\(Self.directoryName)/\(name)"
            if path == Self.statePath { continue }
            guard let first = Self.segment(at: path) else { throw files.damage(path, .unknownName) }
            segments.append(first)
        }
        return segments.sorted()
    }

    /// Reads a whole segment. Returns its last sequence and its length in octets.
    private func readFrames(
        of segment: Int64, visit: (PlacedLogEntry) -> Void = { _ in }
    ) throws(FileStoreError) -> (last: Int64, count: Int) {
        let bytes = try read(segment, from: 0)
        let (frames, flaw) = LogFrame.frames(of: bytes, in: segment, visit: visit)
        if let flaw { throw files.damage(Self.path(of: segment), flaw) }
        guard let last = frames.last?.last else { throw files.damage(Self.path(of: segment), .empty) }
        return (last, bytes.count)
    }

    // MARK: Names

    /// The first sequence of the segment with this path; nil when no segment has the path.
    static func segment(at path: String) -> Int64? {
        let digits = String(decoding: path.utf8.dropFirst(directoryName.utf8.count + 1), as: UTF8.self)
        guard let first = Int64(digits), LogFrame.sequences.contains(first),
            Self.path(of: first).utf8.elementsEqual(path.utf8)
        else { return nil }
        return first
    }

    static func path(of segment: Int64) -> String {
        let digits = String(segment)
        return directoryName + "/" + String(repeating: "0", count: digitCount - digits.utf8.count) + digits
    }
}
