import ExternalText
import OAuth
import Reactor

/// What the file of a chain contains.
struct AuditFile {
    /// The intact blocks, up to the damage.
    let blocks: [AuditBlock]
    let damage: DamagedAuditChain?

    /// - Parameters:
    ///   - path: of the file, for messages.
    ///   - mayGrow: whether a process may be writing the last block.
    init(_ bytes: [UInt8], of chain: String, at path: String, mayGrow: Bool = false) {
        let (blocks, _, flaw) = AuditFrame.blocks(of: bytes)
        self.blocks = blocks
        let isDamage = flaw.map { !mayGrow || $0 != .truncated } ?? false
        damage = isDamage ? flaw.map { Self.damage(of: chain, at: path, behind: blocks.count, $0.text) } : nil
    }

    /// A file that cannot be read.
    init(unreadable chain: String, at path: String, _ reason: String) {
        blocks = []
        damage = Self.damage(of: chain, at: path, behind: 0, reason)
    }

    private static func damage(of chain: String, at path: String, behind count: Int, _ reason: String)
        -> DamagedAuditChain
    {
        guard AuditBlock.isName(chain.utf8) else {
            let directory = Substring(path.utf8.dropLast(chain.utf8.count + 1))
            return DamagedAuditChain(
                chain: nil, text: "\(directory) has a file with a name that no process gives to a chain")
        }
        return DamagedAuditChain(chain: chain, text: "\(path) is damaged behind \(count) blocks: \(reason)")
    }
}

extension StoreFiles {
    /// The content of a chain's file. One that the disk or its owner does not let this process read counts as damaged, because
    /// the others can be read.
    /// - Throws: where the disk as a whole cannot be used.
    func auditFile(of chain: String, mayGrow: Bool = false) throws(FileStoreError) -> AuditFile {
        let name = AuditFrame.path(of: chain)
        let bytes: [UInt8]?
        do throws(SystemError) {
            bytes = try directory.read(name, limit: RecordFile.countLimit)
        } catch {
            guard error.leavesOtherFiles else {
                throw .system(path: path, error)
            }
            return AuditFile(unreadable: chain, at: "\(path)/\(name)", FileFlaw.unreadable(error).text)
        }
        return AuditFile(bytes ?? [], of: chain, at: "\(path)/\(name)", mayGrow: mayGrow)
    }

    /// Where the chains with these names stand. Reads the beginnings of those files only whose names do not tell.
    func auditPlaces(_ names: [String]) throws(FileStoreError) -> [AuditPlace] {
        try names.map { name throws(FileStoreError) in
            if let begun = AuditChainName.begun(name) { return AuditPlace(begun: begun, chain: name) }
            var beginning: [UInt8]?
            do throws(SystemError) {
                beginning = try directory.read(
                    AuditFrame.path(of: name), limit: .max, count: AuditFrame.longestBeginning)
            } catch {
                guard error.leavesOtherFiles else {
                    throw .system(path: path, error)
                }
            }
            // What cannot be read stands in front, so that it is noticed.
            return AuditPlace(begun: beginning.flatMap(AuditFrame.begun) ?? .latest, chain: name)
        }
    }
}
