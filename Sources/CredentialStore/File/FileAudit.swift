internal import ExternalText
internal import Glibc
internal import OAuth
internal import Reactor

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
    /// The chains of which the last block is known.
    private var known: [WireText: AuditChain] = [:]

    init(_ files: StoreFiles) {
        self.files = files
    }

    /// Forgets what is known of the files, before a recovery writes them again.
    func forget() {
        ends = [:]
        known = [:]
    }

    // MARK: Writing

    func addition(of block: AuditBlock) throws(FileStoreError) -> Addition {
        let path = AuditFrame.path(of: block.chain)
        return Addition(block: block, path: path, offset: try end(of: path), bytes: AuditFrame.encode(block))
    }

    private func end(of path: String) throws(FileStoreError) -> Int {
        if let known = ends[WireText(path)] { return known.end }
        guard let bytes = try files.read(path, limit: RecordFile.countLimit) else { return 0 }
        return AuditFrame.blocks(of: bytes).count
    }

    /// Reserves room for the addition, before the commit takes place: a committed change must not fail for lack of room.
    func reserve(_ addition: Addition) throws(SystemError) {
        if let known = ends[WireText(addition.path)], addition.end <= known.reserved { return }
        var kept = addition.end + Self.roomStep
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
        let begun = addition.offset == 0 ? block.time : known[WireText(path)]?.begun
        known[WireText(path)] = begun.map { AuditChain(end: block.end, begun: $0, written: block.time) }
    }

    func didRemove(_ path: String) {
        ends[WireText(path)] = nil
        known[WireText(path)] = nil
    }

    // MARK: Reading

    /// - Parameter since: leaves chains out whose last block was written before, as far as the times of the files say so:
    ///   the whole log is too long to be read while commits wait.
    func chains(since: Timestamp?) throws(FileStoreError) -> [AuditChain] {
        var chains: [AuditChain] = []
        for name in try files.names(in: AuditFrame.directoryName).sorted() {
            let path = AuditFrame.path(of: name)
            if known[WireText(path)] == nil {
                let written = try files.onDisk { () throws(SystemError) in try files.directory.modified(path) }
                if let since, let written, written < since { continue }
                known[WireText(path)] = AuditChain(try blocks(of: name))
            }
            if let chain = known[WireText(path)], since.map({ chain.written >= $0 }) ?? true { chains.append(chain) }
        }
        return chains
    }

    func blocks(of chain: String) throws(FileStoreError) -> [AuditBlock] {
        let path = AuditFrame.path(of: chain)
        guard let bytes = try files.read(path, limit: RecordFile.countLimit) else { return [] }
        let (blocks, _, flaw) = AuditFrame.blocks(of: bytes)
        if let flaw { throw files.damage(path, flaw) }
        return blocks
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
