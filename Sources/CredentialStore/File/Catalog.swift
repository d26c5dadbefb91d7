import Glibc
import OAuth
import Reactor

/// The list of a store's records, and the last segment of the log, so that a missing file is noticed.
///
/// The file is a sequence of frames. The first frame lists the records that existed when the file was written; each
/// further frame lists what a commit added and removed. A commit that only replaces records adds no frame. When much of
/// the file is outdated, it is written anew.
///
/// Not Sendable: belongs to one `FileRecords` and its thread. Calls block.
final class Catalog {
    static let name = "catalog"
    static let countLimit = 1 << 30
    /// The least length in octets at which the file is written anew.
    private static let leastLimit = 4 << 20
    /// How many octets are reserved at once.
    private static let roomStep = 64 << 10

    struct Content: Equatable {
        var records: Set<RecordID> = []
        /// The first sequence of the log's last segment; 0 when the log never had one.
        var segment: Int64 = 0
    }

    private let files: StoreFiles
    private var end = 0
    private var limit = leastLimit
    /// At least as many octets as it takes to note the removal of every record.
    private var removalCount = 0
    private var reservedEnd = 0

    init(_ files: StoreFiles) {
        self.files = files
    }

    /// Whether so much of the file is outdated that it should be written anew.
    var isLong: Bool { end > limit }

    /// The change that lists what a commit adds and removes; nil when the commit does neither. Reserves room for it.
    /// - Parameter segment: the first sequence of the segment that begins with the commit, if one does.
    func addition(
        adding added: [RecordID], removing removed: [RecordID], segment: Int64?
    ) throws(SystemError) -> FileChange? {
        if added.isEmpty, removed.isEmpty, segment == nil { return nil }
        let bytes = CatalogFrame(added: added, removed: removed, segment: segment).encoded
        let needed = end + bytes.count
        if needed > reservedEnd {
            // Also reserves the room that it takes to remove every record, because removing must work on a full disk.
            let kept = needed + removalCount + bytes.count + Self.roomStep
            do throws(SystemError) {
                try files.directory.reserve(Self.name, upTo: kept)
                reservedEnd = kept
            } catch {
                guard error.number == ENOSPC || error.number == EDQUOT else { throw error }
                try files.directory.reserve(Self.name, upTo: needed)
                reservedEnd = needed
            }
        }
        return .append(to: Self.name, offset: end, bytes)
    }

    /// To be called when that change has been made.
    func didWrite(_ change: FileChange) {
        guard case .append(_, let offset, let bytes) = change else { return }
        end = offset + bytes.count
        removalCount += bytes.count
    }

    /// To be called when the file has been written anew with this content.
    func didReplace(_ bytes: [UInt8]) {
        (end, removalCount, reservedEnd) = (bytes.count, bytes.count, 0)
        limit = max(Self.leastLimit, 3 * bytes.count)
    }

    /// Reads the file, after the changes in the write-ahead log have been made.
    func read() throws(FileStoreError) -> Content {
        let bytes = try files.read(Self.name, limit: Self.countLimit)
        do throws(FileFlaw) {
            let content = try Self.decode(bytes)
            end = bytes?.count ?? 0
            (removalCount, reservedEnd, limit) = (end, 0, max(Self.leastLimit, end))
            return content
        } catch {
            throw files.damage(Self.name, error)
        }
    }

    static func encode(_ content: Content) -> [UInt8] {
        CatalogFrame(added: content.records.sorted(), removed: [], segment: content.segment).encoded
    }

    /// - Parameter bytes: nil when there is no file.
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
}

/// The changes of one commit in the catalog: the length (4), then a `FramedFile` with the removed and the added
/// records.
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

    /// The frame at the beginning of `bytes`, and its length in octets.
    static func decode(_ bytes: ArraySlice<UInt8>) throws(FramedFile.Failure) -> (frame: CatalogFrame, count: Int) {
        let (body, count) = try FramedFile.decodePart(bytes, mark: mark, format: format)
        var fields = FieldReader(body)
        var frame = CatalogFrame()
        while !fields.isAtEnd {
            let code = fields.integer(UInt8.self)
            switch code {
            case Code.added, Code.removed:
                guard let kind = fields.text(), let tenant = fields.text().flatMap(TenantName.init(stored:)),
                    let key = fields.text()
                else { throw .damaged }
                // The digest of the frame is right, so a later build wrote it, which knows this kind.
                guard let kind = RecordKind(rawValue: kind) else { throw .newerFormat }
                let id = RecordID(kind, tenant, key: key)
                if code == Code.added { frame.added.append(id) } else { frame.removed.append(id) }
            case Code.segment:
                guard let segment = fields.integer(Int64.self), segment == 0 || LogFrame.sequences.contains(segment)
                else { throw .damaged }
                frame.segment = segment
            default: throw .newerFormat
            }
        }
        return (frame, count)
    }
}
