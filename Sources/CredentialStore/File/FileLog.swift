internal import Glibc
internal import OAuth
internal import Reactor

/// The log in a store's directory: frames in segment files, each named for the sequence that its first entry has.
///
/// Only the last segment grows, and only at its end; when the next frame would take it over 1 MiB, another one begins.
/// A frame is written when `commits` names it, and again at a start that finds it there. Trimming moves a mark
/// in `log/state` and removes segments that lie before it as a whole, the last one excepted, whose name and frames say
/// where the log ends.
///
/// Nothing of the entries is kept in memory.
///
/// Not Sendable: belongs to one `FileRecords` and its thread. Calls block.
final class FileLog {
    static let directoryName = "log"
    static let statePath = "log/state"
    private static let segmentCount = 1 << 20
    private static let digitCount = 19
    private static let rememberedPlaces = 64

    /// What a commit adds, and where.
    struct Addition {
        let first: Int64
        let last: Int64
        let path: String
        let offset: Int
        let bytes: [UInt8]

        var step: FileChange { .append(to: path, offset: offset, bytes) }
    }

    private struct Place {
        let segment: Int64
        let offset: Int
    }

    private let directory: StoreDirectory
    /// Of the store, for messages.
    private let path: String
    private(set) var state = LogState()
    private var last: Int64 = 0
    /// The first sequences of the segments, rising.
    private var segments: [Int64] = []
    /// Octets of the last segment.
    private var end = 0
    /// The file for which room was reserved last, and up to where.
    private var reserved: (path: String, end: Int) = ("", 0)
    /// Where the frame of a sequence begins, for readers who follow the log.
    private var places: [Int64: Place] = [:]

    init(_ directory: StoreDirectory, path: String) {
        self.directory = directory
        self.path = path
    }

    /// The first sequence of the last segment; 0 where there is none.
    var lastSegment: Int64 { segments.last ?? 0 }

    var bounds: LogBounds { LogBounds(trimmed: state.trimmed, last: last) }

    // MARK: Writing

    func addition(of entries: [StoredLogEntry]) throws(FileStoreError) -> Addition? {
        if entries.isEmpty { return nil }
        let first = last + 1
        let bytes = LogFrame.encode(entries, first: first)
        guard bytes.count <= RecordFile.countLimit / 2 else {
            throw .system(path: path, SystemError("write", number: EFBIG))
        }
        let isRoom = end == 0 || end + bytes.count <= Self.segmentCount
        let segment = isRoom ? segments.last ?? first : first
        return Addition(
            first: first, last: last + Int64(entries.count), path: Self.path(of: segment), offset: isRoom ? end : 0,
            bytes: bytes)
    }

    /// Makes sure of the room that the addition needs in a file, which is its segment, or will be: that of a segment that
    /// begins has another name before the commit takes place, since what stands in the log's directory counts. To be called
    /// before that, for what has been decided has to be done, and nothing is read before it is.
    func reserve(_ addition: Addition, in path: String) throws(SystemError) {
        let end = addition.offset + addition.bytes.count
        if path == reserved.path, end <= reserved.end { return }
        // Mostly once a segment.
        var kept = max(end, Self.segmentCount)
        do throws(SystemError) {
            try directory.reserve(path, upTo: kept)
        } catch {
            guard error.number == ENOSPC || error.number == EDQUOT, kept > end else { throw error }
            kept = end
            try directory.reserve(path, upTo: kept)
        }
        reserved = (path, kept)
    }

    /// To be called when the addition is written.
    func didWrite(_ addition: Addition) {
        if addition.offset == 0, addition.path != segments.last.map(Self.path) { segments.append(addition.first) }
        last = addition.last
        end = addition.offset + addition.bytes.count
        if let segment = segments.last { remember(addition.first, Place(segment: segment, offset: addition.offset)) }
    }

    /// The state with which the entries that the tenants have so far are gone.
    func state(cutting tenants: Set<TenantName>) -> LogState {
        var cut = state
        for tenant in tenants { cut.cut(tenant, at: last) }
        return cut
    }

    /// Whether segments go with that state.
    func losesSegments(with state: LogState) -> Bool { segments.count > 1 && segments[1] - 1 <= state.trimmed }

    /// To be called when the state is written, and, where segments go with it, when nothing will be written to them any
    /// more. One that stays goes at the next start.
    func didWrite(_ state: LogState) throws(SystemError) {
        self.state = state
        while losesSegments(with: state) {
            try directory.remove(Self.path(of: segments[0]))
            segments.removeFirst()
            places = [:]
        }
    }

    // MARK: Reading

    func entries(after sequence: Int64, tenant: TenantName?, limit: Int) throws(FileStoreError) -> [PlacedLogEntry] {
        var entries: [PlacedLogEntry] = []
        if limit <= 0 { return entries }
        try scan(after: sequence) { placed in
            if tenant.map({ $0 == placed.entry.tenant }) ?? true { entries.append(placed) }
            return entries.count < limit
        }
        return entries
    }

    /// How many entries trimming comes to, those of removed tenants not counted, and the state that it leaves.
    func trimming(
        before time: Timestamp, keeping count: Int, limit: Int
    ) throws(FileStoreError) -> (count: Int, state: LogState) {
        let floor = bounds.floor(keeping: count)
        var trimmed = state
        var removed = 0
        if limit <= 0 { return (0, trimmed) }
        // What removed tenants have left must go when its time has come, too: it may be all there is, and it keeps its
        // segments and the tenants' names.
        try scan(after: state.trimmed, includingHidden: true) { placed in
            guard placed.sequence <= floor || placed.entry.time < time else { return false }
            trimmed.trimmed = placed.sequence
            if !state.hides(placed) { removed += 1 }
            return removed < limit
        }
        trimmed.trim(to: trimmed.trimmed)
        return (removed, trimmed)
    }

    /// Calls `visit` with each entry that counts, until it returns false.
    /// - Parameter includingHidden: whether those of removed tenants count.
    private func scan(
        after sequence: Int64, includingHidden: Bool = false, _ visit: (PlacedLogEntry) -> Bool
    ) throws(FileStoreError) {
        guard sequence < last else { return }
        let next = max(sequence, state.trimmed) + 1
        let place = places[next]
        for (index, segment) in segments.enumerated() {
            if let place, segment < place.segment { continue }
            // The next segment begins no later than at what is wanted.
            if segments.indices.contains(index + 1), segments[index + 1] <= next { continue }
            var offset = place.flatMap { $0.segment == segment ? $0.offset : nil } ?? 0
            let bytes = try read(segment, from: offset)
            var rest = bytes[...]
            while !rest.isEmpty {
                let frame = try decode(rest, of: segment)
                let end = offset + frame.count
                for placed in frame.entries where placed.sequence >= next && (includingHidden || !state.hides(placed)) {
                    if visit(placed) { continue }
                    let isLast = placed.sequence == frame.entries.last?.sequence
                    return remember(placed.sequence + 1, Place(segment: segment, offset: isLast ? end : offset))
                }
                rest = rest.dropFirst(frame.count)
                offset = end
            }
        }
    }

    private func read(_ segment: Int64, from offset: Int) throws(FileStoreError) -> [UInt8] {
        let name = Self.path(of: segment)
        let bytes: [UInt8]?
        do throws(SystemError) {
            bytes = try directory.read(name, from: offset, limit: RecordFile.countLimit)
        } catch {
            throw error.isOfTheFile ? damage(name, .otherFile) : .system(path: path, error)
        }
        guard let bytes else { throw damage(name, .missing) }
        return bytes
    }

    private func decode(_ bytes: ArraySlice<UInt8>, of segment: Int64) throws(FileStoreError) -> LogFrame {
        do throws(FramedFile.Failure) {
            return try LogFrame(decoding: bytes)
        } catch {
            throw damage(Self.path(of: segment), FramedFile.flaw(error, ofPart: bytes))
        }
    }

    private func remember(_ sequence: Int64, _ place: Place) {
        if places.count >= Self.rememberedPlaces { places = [:] }
        places[sequence] = place
    }

    // MARK: Starting

    /// Finds out where the log begins and ends, and clears away what does not count. What `commits` names has been written
    /// by then.
    /// - Parameter segment: the first sequence of the last segment by the catalog; nil where there is none yet.
    func recover(endingWith segment: Int64?) throws(FileStoreError) {
        state = try readState(mayBeMissing: segment == nil)
        segments = try readSegments()
        places = [:]
        reserved = ("", 0)
        end = 0
        last = state.trimmed
        if let segment, segment != lastSegment {
            throw segment > lastSegment
                ? damage(Self.path(of: segment), .missing) : damage(Self.path(of: lastSegment), .uncatalogued)
        }
        if let segment = segments.last {
            let frames = try readFrames(of: segment)
            (last, end) = (max(last, frames.last), frames.count)
        }
        try onDisk { () throws(SystemError) in try didWrite(state) }
    }

    /// Reads all segments, of which `recover` has read the last.
    func verify() throws(FileStoreError) {
        var next: Int64?
        for (index, segment) in segments.enumerated() {
            if let next {
                if segment != next { throw damage(Self.path(of: next), .missing) }
            } else if segment > state.trimmed + 1 {
                // Those before it may go only when all that they have was trimmed.
                throw state.trimmed == 0 ? damage(Self.path(of: 1), .missing) : damage(Self.path(of: segment), .gap)
            }
            if index + 1 < segments.count { next = try readFrames(of: segment).last + 1 }
        }
    }

    private func readState(mayBeMissing: Bool) throws(FileStoreError) -> LogState {
        let bytes: [UInt8]?
        do throws(SystemError) {
            bytes = try directory.read(Self.statePath, limit: RecordFile.countLimit)
        } catch {
            throw error.isOfTheFile ? damage(Self.statePath, .otherFile) : .system(path: path, error)
        }
        guard let bytes else {
            if mayBeMissing { return LogState() }
            throw damage(Self.statePath, .missing)
        }
        do throws(FramedFile.Failure) {
            return try LogState(decoding: bytes)
        } catch {
            throw damage(Self.statePath, LogState.flaw(error, of: bytes))
        }
    }

    private func readSegments() throws(FileStoreError) -> [Int64] {
        var segments: [Int64] = []
        for name in try onDisk({ () throws(SystemError) in try directory.names(in: Self.directoryName) }) {
            let path = "\(Self.directoryName)/\(name)"
            if path == Self.statePath { continue }
            guard let first = Self.segment(at: path) else { throw damage(path, .unknownName) }
            segments.append(first)
        }
        return segments.sorted()
    }

    /// Reads all of a segment: its last sequence, and how many octets it has.
    private func readFrames(of segment: Int64) throws(FileStoreError) -> (last: Int64, count: Int) {
        let bytes = try read(segment, from: 0)
        let (frames, flaw) = LogFrame.frames(of: bytes, in: segment)
        if let flaw { throw damage(Self.path(of: segment), flaw) }
        guard let last = frames.last?.last else { throw damage(Self.path(of: segment), .empty) }
        return (last, bytes.count)
    }

    // MARK: Names and errors

    /// The first sequence of the segment at a path; nil where no segment can be.
    static func segment(at path: String) -> Int64? {
        let digits = String(decoding: path.utf8.dropFirst(directoryName.utf8.count + 1), as: UTF8.self)
        guard let first = Int64(digits), first > 0, Self.path(of: first).utf8.elementsEqual(path.utf8) else {
            return nil
        }
        return first
    }

    static func path(of segment: Int64) -> String {
        let digits = String(segment)
        return directoryName + "/" + String(repeating: "0", count: digitCount - digits.utf8.count) + digits
    }

    private func damage(_ name: String, _ flaw: FileFlaw) -> FileStoreError { .damaged(path, name, flaw) }

    private func onDisk<R>(_ body: () throws(SystemError) -> R) throws(FileStoreError) -> R {
        do throws(SystemError) {
            return try body()
        } catch {
            throw .system(path: path, error)
        }
    }
}
