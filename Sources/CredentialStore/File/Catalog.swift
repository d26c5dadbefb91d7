internal import Glibc
internal import OAuth
internal import Reactor

/// Which records a store has, and which segment of the log is the last: by this a file that is missing is noticed.
///
/// The file has frames, one behind the other: the first says what there was when the file was made, each other one what
/// a commit added and removed. A commit that only replaces records adds none. When much of it is out of date, the file is
/// made anew.
///
/// Not Sendable: belongs to one `FileRecords` and its thread. Calls block.
final class Catalog {
    static let name = "catalog"
    static let countLimit = 1 << 30
    /// Octets that the file may have before it is looked at whether it should be made anew.
    private static let leastLimit = 4 << 20
    /// Octets for which room is kept at once.
    private static let roomStep = 64 << 10

    struct Content: Equatable {
        var records: Set<RecordID> = []
        /// The first sequence of the log's last segment; 0 where the log never had one.
        var segment: Int64 = 0
    }

    private let directory: StoreDirectory
    private var end = 0
    private var limit = leastLimit
    /// Octets that it takes to note that each record there is has gone.
    private var owed = 0
    private var reservedEnd = 0

    init(_ directory: StoreDirectory) {
        self.directory = directory
    }

    /// Whether so much of the file is out of date that it should be made anew.
    var isLong: Bool { end > limit }

    /// The step that notes what a commit adds and removes, and for which there is room then; nil where it does neither.
    /// - Parameter segment: the first sequence of a segment that the commit begins.
    func addition(
        adding added: [RecordID], removing removed: [RecordID], segment: Int64?
    ) throws(SystemError) -> FileChange? {
        if added.isEmpty, removed.isEmpty, segment == nil { return nil }
        let bytes = CatalogFrame(added: added, removed: removed, segment: segment).encoded
        let needed = end + bytes.count
        if needed > reservedEnd {
            // With as much more as it takes to remove everything: a full disk must leave room for what frees some.
            let kept = needed + owed + bytes.count + Self.roomStep
            do throws(SystemError) {
                try directory.reserve(Self.name, upTo: kept)
                reservedEnd = kept
            } catch {
                guard error.number == ENOSPC || error.number == EDQUOT else { throw error }
                try directory.reserve(Self.name, upTo: needed)
                reservedEnd = needed
            }
        }
        return .append(to: Self.name, offset: end, bytes)
    }

    /// To be called when that step has been made.
    func didWrite(_ change: FileChange) {
        guard case .append(_, let offset, let bytes) = change else { return }
        end = offset + bytes.count
        owed += bytes.count
    }

    /// To be called when the file has been made anew with this content.
    func didReplace(_ bytes: [UInt8]) {
        (end, owed, reservedEnd) = (bytes.count, bytes.count, 0)
        limit = max(Self.leastLimit, 3 * bytes.count)
    }

    /// What the file holds, once all that `commits` names has been written.
    func read() throws(ReadingFailure) -> Content {
        let bytes: [UInt8]?
        do throws(SystemError) {
            bytes = try directory.read(Self.name, limit: Self.countLimit)
        } catch {
            if error.isOfTheFile { throw .flaw(.otherFile) }
            throw .system(error)
        }
        do throws(FileFlaw) {
            let content = try Self.decode(bytes)
            end = bytes?.count ?? 0
            (owed, reservedEnd, limit) = (end, 0, max(Self.leastLimit, end))
            return content
        } catch {
            throw .flaw(error)
        }
    }

    static func encode(_ content: Content) -> [UInt8] {
        CatalogFrame(added: content.records.sorted(), removed: [], segment: content.segment).encoded
    }

    /// - Parameter bytes: nil where there is no file.
    static func decode(_ bytes: [UInt8]?) throws(FileFlaw) -> Content {
        guard let bytes else { throw .missing }
        if bytes.isEmpty { throw .empty }
        var content = Content()
        var rest = bytes[...]
        while !rest.isEmpty {
            let frame: CatalogFrame
            let count: Int
            do throws(FramedFile.Failure) {
                (frame, count) = try CatalogFrame.decode(rest)
            } catch {
                throw FramedFile.flaw(error, ofPart: rest)
            }
            for id in frame.removed { content.records.remove(id) }
            for id in frame.added { content.records.insert(id) }
            if let segment = frame.segment { content.segment = segment }
            rest = rest.dropFirst(count)
        }
        return content
    }

    enum ReadingFailure: Error {
        case system(SystemError)
        case flaw(FileFlaw)
    }
}

/// What one commit changes in the catalog, as it stands there: its length (4), then a `FramedFile` with what goes and what
/// comes.
struct CatalogFrame {
    private static let mark = "TBca"
    private static let format: UInt8 = 1

    private enum Code {
        static let added: UInt8 = 1
        static let removed: UInt8 = 2
        static let segment: UInt8 = 3
    }

    var added: [RecordID] = []
    var removed: [RecordID] = []
    var segment: Int64?

    var encoded: [UInt8] {
        var body = FieldWriter()
        for (code, ids) in [(Code.removed, removed), (Code.added, added)] {
            for id in ids {
                body.write(code)
                body.write(id.kind.rawValue)
                body.write(id.tenant.description)
                body.write(id.key)
            }
        }
        if let segment {
            body.write(Code.segment)
            body.write(segment)
        }
        return FramedFile.encodePart(mark: Self.mark, format: Self.format, body.bytes)
    }

    /// The frame with which `bytes` begin, and how many octets it takes up.
    static func decode(_ bytes: ArraySlice<UInt8>) throws(FramedFile.Failure) -> (frame: CatalogFrame, count: Int) {
        let (body, count) = try FramedFile.decodePart(bytes, mark: mark, format: format)
        var fields = FieldReader(body)
        var frame = CatalogFrame()
        while !fields.isAtEnd {
            let code = fields.integer(UInt8.self)
            switch code {
            case Code.added, Code.removed:
                guard let kind = fields.text(), let tenant = fields.text().flatMap(RecordPath.tenant),
                    let key = fields.text()
                else { throw .damaged }
                // It has its digest: a later build knows this kind.
                guard let kind = RecordKind(rawValue: kind) else { throw .newerFormat }
                let id = RecordID(kind, tenant, key: key)
                if code == Code.added { frame.added.append(id) } else { frame.removed.append(id) }
            case Code.segment:
                guard let segment = fields.integer(Int64.self) else { throw .damaged }
                frame.segment = segment
            default: throw .newerFormat
            }
        }
        return (frame, count)
    }
}
