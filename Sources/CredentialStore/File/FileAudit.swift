import ExternalText
import Glibc
import OAuth
import Reactor

/// The audit log in a store's directory: one file for each chain, with one frame for each block. The name of a file is
/// the name of its chain.
///
/// A frame is written when the write-ahead log contains it, and again by a recovery. No block is kept in memory.
///
/// Not Sendable: belongs to one `FileRecords` and its thread. Calls block.
final class FileAudit {
    /// The frame that a commit adds, and its position.
    struct Addition {
        let block: AuditBlock
        let path: String
        let offset: Int
        let bytes: [UInt8]

        var end: Int { offset + bytes.count }
        var change: FileChange { .append(to: path, offset: offset, bytes) }
    }

    /// How many octets are reserved at once.
    private static let roomStep = 256 << 10
    /// How many chains are written at the same time, at most.
    private static let mostEnds = 16

    private let files: StoreFiles
    /// The lengths of the files that were written last, in octets, and up to where room was reserved for each.
    private var ends: [WireText: (end: Int, reserved: Int)] = [:]
    /// What is known of the chains that were written or read, by path.
    private var known: [WireText: Finding] = [:]
    /// Every chain that has a file; nil before it is first needed. Only this process adds and removes files.
    private var index: AuditIndex?

    private enum Finding {
        case chain(AuditChain)
        case damage(DamagedAuditChain)
        /// The file has no block: its first one was not committed.
        case nothing
    }

    init(_ files: StoreFiles) {
        self.files = files
    }

    /// Forgets what is known of the files, before a recovery writes them again.
    func forget() {
        ends = [:]
        known = [:]
        index = nil
    }

    // MARK: Writing

    /// - Throws: `.damaged` for a chain whose file has a flaw, because another block would take the place of what is behind the
    ///   flaw. The writer goes on in another chain.
    func addition(of block: AuditBlock) throws(FileStoreError) -> Addition {
        let path = AuditFrame.path(of: block.chain)
        return Addition(block: block, path: path, offset: try end(of: path), bytes: AuditFrame.encode(block))
    }

    private func end(of path: String) throws(FileStoreError) -> Int {
        if let known = ends[WireText(path)] { return known.end }
        guard let bytes = try files.read(path, limit: RecordFile.countLimit) else { return 0 }
        let (_, count, flaw) = AuditFrame.blocks(of: bytes)
        if let flaw { throw files.damage(path, flaw) }
        return count
    }

    /// Reserves room for the addition, before the commit takes place: a committed change must not fail for lack of room.
    /// - Parameter sparingly: whether to reserve no more than the addition takes, because the disk is full.
    func reserve(_ addition: Addition, sparingly: Bool) throws(SystemError) {
        if let known = ends[WireText(addition.path)], addition.end <= known.reserved { return }
        var kept = sparingly ? addition.end : addition.end + Self.roomStep
        do throws(SystemError) {
            try files.directory.reserve(addition.path, upTo: kept)
        } catch {
            guard error.number == ENOSPC || error.number == EDQUOT else { throw error }
            kept = addition.end
            try files.directory.reserve(addition.path, upTo: kept)
        }
        if ends.count >= Self.mostEnds { ends = [:] }
        ends[WireText(addition.path)] = (addition.offset, kept)
    }

    /// To be called when the addition is written.
    func didWrite(_ addition: Addition) {
        let (path, block) = (addition.path, addition.block)
        ends[WireText(path)] = (addition.end, max(addition.end, ends[WireText(path)]?.reserved ?? 0))
        var begun = addition.offset == 0 ? block.time : nil
        if case .chain(let chain)? = known[WireText(path)] { begun = chain.begun }
        known[WireText(path)] = begun.map { .chain(AuditChain(end: block.end, begun: $0, written: block.time)) }
        if addition.offset == 0 {
            index?.insert(AuditPlace(begun: AuditChainName.begun(block.chain) ?? block.time, chain: block.chain))
        }
    }

    func didRemove(_ chain: String) {
        let path = WireText(AuditFrame.path(of: chain))
        ends[path] = nil
        known[path] = nil
        index?.remove(chain)
    }

    // MARK: Reading

    /// - Parameter since: leaves chains out whose last block was written before. A file that was not written since then, by the
    ///   clock of the file system, is not read: commits wait meanwhile.
    func chains(
        _ order: AuditOrder, since: Timestamp?, after place: AuditPlace?, limit: Int
    ) throws(FileStoreError) -> AuditPage {
        let (places, next) = try indexed().page(order, after: place, limit: limit)
        var page = AuditPage(next: next)
        for place in places {
            switch try finding(place.chain, since: since) {
            case .chain(let chain): if since.map({ chain.written >= $0 }) ?? true { page.chains.append(chain) }
            case .damage(let damage): page.damaged.append(damage)
            case .nothing: break
            }
        }
        return page
    }

    func blocks(of chain: String) throws(FileStoreError) -> [AuditBlock] { try files.auditFile(of: chain).blocks }

    private func indexed() throws(FileStoreError) -> AuditIndex {
        if let index { return index }
        let made = AuditIndex(try files.auditPlaces(try files.names(in: AuditFrame.directoryName)))
        index = made
        return made
    }

    private func finding(_ chain: String, since: Timestamp?) throws(FileStoreError) -> Finding {
        let path = AuditFrame.path(of: chain)
        if let known = known[WireText(path)] { return known }
        // A file whose time cannot be read is read, which tells why.
        if let since, let written = try? files.directory.modified(path), written < since { return .nothing }
        let file = try files.auditFile(of: chain)
        let finding: Finding =
            if let damage = file.damage { .damage(damage) } else {
                AuditChain(file.blocks).map { .chain($0) } ?? .nothing
            }
        known[WireText(path)] = finding
        return finding
    }
}

/// A block of the audit log in a file: the length (4), then a `FramedFile` with the block.
enum AuditFrame {
    static let directoryName = "audit"
    private static let mark = "TBau"
    private static let format: UInt8 = 1

    static func path(of chain: String) -> String { "\(directoryName)/\(chain)" }

    /// Whether the path is that of a chain. The names of chains consist of lower-case letters, digits and hyphens.
    static func isChain(at path: String) -> Bool {
        let name = path.utf8.dropFirst(directoryName.utf8.count + 1)
        return path.utf8.starts(with: "\(directoryName)/".utf8) && AuditBlock.isName(name)
    }

    /// How many octets of a file `begun` needs.
    static let longestBeginning = 256

    /// The time of the first block of a file that begins so, before its digest is checked; nil for one that has no block.
    static func begun(_ beginning: [UInt8]) -> Timestamp? {
        var fields = FieldReader(beginning[...])
        guard fields.bare(lengthCount) != nil,
            fields.bare(mark.utf8.count).map({ $0.elementsEqual(mark.utf8) }) == true,
            fields.integer(UInt8.self) == format, fields.text() != nil,
            fields.bare(2 * MemoryLayout<Int64>.size) != nil,
            let time = fields.integer(Int64.self)
        else { return nil }
        return Timestamp(milliseconds: time)
    }

    private static let lengthCount = 4

    static func encode(_ block: AuditBlock) -> [UInt8] {
        var body = FieldWriter(capacity: block.body.count + 256)
        body.write(block.chain)
        body.write(block.first)
        body.write(block.last)
        body.write(block.time.milliseconds)
        body.write(block.body)
        body.write(block.hash)
        body.write(optional: block.signature)
        return FramedFile.encodePart(mark: mark, format: format, body.bytes)
    }

    /// The intact blocks at the beginning of a file, their length in octets, and the flaw behind them, if there is one.
    static func blocks(of bytes: [UInt8]) -> (blocks: [AuditBlock], count: Int, flaw: FileFlaw?) {
        var blocks: [AuditBlock] = []
        var rest = bytes[...]
        while !rest.isEmpty {
            do throws(FramedFile.Failure) {
                let (block, count) = try decode(rest)
                blocks.append(block)
                rest = rest.dropFirst(count)
            } catch {
                return (blocks, rest.startIndex, FramedFile.flaw(error, ofPart: rest))
            }
        }
        return (blocks, bytes.count, nil)
    }

    private static func decode(_ bytes: ArraySlice<UInt8>) throws(FramedFile.Failure) -> (AuditBlock, count: Int) {
        let (body, count) = try FramedFile.decodePart(bytes, mark: mark, format: format)
        var fields = FieldReader(body)
        guard let chain = fields.text(), let first = fields.integer(Int64.self), let last = fields.integer(Int64.self),
            let time = fields.integer(Int64.self), let lines = fields.bytes(), let hash = fields.bytes(),
            let signature = fields.optionalBytes(), fields.isAtEnd
        else { throw .damaged }
        let block = AuditBlock(
            chain: chain, first: first, last: last, time: Timestamp(milliseconds: time), body: lines, hash: hash,
            signature: signature)
        return (block, count)
    }
}
