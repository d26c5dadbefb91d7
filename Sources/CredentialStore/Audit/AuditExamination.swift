import Cryptography
import ExternalText
import JSON
package import OAuth

/// Checks the whole audit log: the hashes and numbers of every chain, the signatures, and that every end of a chain that
/// a signature names is there.
package struct AuditExamination {
    /// What was read, and how much of it is wrong.
    package struct Summary: Sendable, Equatable {
        package var chains = 0
        package var entries: Int64 = 0
        package var faults = 0
        /// Entries behind the last one that a signature authenticates.
        package var unsigned: Int64 = 0
        /// Entries that are authenticated only by signatures of other processes than the one that wrote them. Such a signature
        /// says what the store had when it was made, and not what was written.
        package var witnessed: Int64 = 0
        /// Chains that have no end: their process runs, was killed, or could not write the end.
        package var open = 0
    }

    private let log: any AuditReading
    private let keyring: Keyring
    private let report: (String) -> Void
    private let progress: (Int) -> Void

    /// - Parameters:
    ///   - keyring: must have every key under which the log was signed.
    ///   - report: called with each fault, in one line for operators.
    ///   - progress: called after about a thousand entries each time, with how many were read so far. Those that are read again count
    ///     again.
    package init(
        _ log: any AuditReading, keyring: Keyring, report: @escaping (String) -> Void,
        progress: @escaping (Int) -> Void = { _ in }
    ) {
        self.log = log
        self.keyring = keyring
        self.report = report
        self.progress = progress
    }

    /// Reads the log, and again the chains whose ends are named. Entries that are written meanwhile may or may not be read.
    /// - Throws: when the store cannot be read.
    package func run() async throws(StoreError) -> Summary {
        var findings = Findings(report: report, progress: progress)
        try await log.readAuditPages { page throws(StoreError) in
            for damaged in page.damaged {
                findings.fault(damaged.text)
                guard let chain = damaged.chain else { continue }
                findings.damaged.insert(WireText(chain))
                try await examine(chain, &findings)
            }
            for chain in page.chains { try await examine(chain.end.chain, &findings) }
        }
        try await compareHeads(&findings)
        for (name, last) in findings.lasts {
            let own = findings.signed[name] ?? 0
            let covered = max(own, findings.witnessed[name] ?? 0)
            findings.summary.unsigned += max(0, last - covered)
            findings.summary.witnessed += covered - own
        }
        return findings.summary
    }

    /// What is known of all chains.
    private struct Findings {
        let report: (String) -> Void
        let progress: (Int) -> Void
        var summary = Summary()
        /// Entries that were read, those that were read again among them.
        var read = 0
        /// The last entry of each chain.
        var lasts: [WireText: Int64] = [:]
        /// Up to which entry signatures of its own process authenticate each chain.
        var signed: [WireText: Int64] = [:]
        /// The same for signatures of other processes.
        var witnessed: [WireText: Int64] = [:]
        /// The hash of each chain at each entry that signed entries name as its end, and the chain of such an entry.
        var heads: [WireText: [Int64: (hash: [UInt8], witness: String, isOwn: Bool)]] = [:]
        /// The chains whose damage was reported.
        var damaged: Set<WireText> = []
        /// The chains that an operator has removed.
        var removed: Set<WireText> = []

        mutating func fault(_ text: String) {
            summary.faults += 1
            report(text)
        }

        mutating func count(_ block: AuditBlock) {
            let before = read
            // By its lines: the numbers of a block may be wrong.
            read += block.body.count { $0 == UInt8(ascii: "\n") }
            if read / 1000 > before / 1000 { progress(read) }
        }

        mutating func note(_ head: AuditHead, by witness: String) {
            guard AuditBlock.isName(head.chain.utf8) else {
                return fault("chain \(witness) names a chain with a name that no process writes")
            }
            let chain = WireText(head.chain)
            // All of them count: a later one could have been named after the chain was changed.
            let isOwn = AuditChainName.process(chain) == AuditChainName.process(WireText(witness))
            let known = heads[chain]?[head.sequence]
            heads[chain, default: [:]][head.sequence] = (head.hash, witness, isOwn || known?.isOwn == true)
            guard let known else { return }
            if known.hash != head.hash {
                fault(
                    "chain \(head.chain) had two contents up to entry \(head.sequence): one that chain \(known.witness) has "
                        + "named, and one that chain \(witness) has named")
            }
        }
    }

    /// What is known of a chain up to some entry.
    private struct Position {
        var last: Int64 = 0
        var hash = AuditBlock.beginning
        var isClosed = false
        /// What entries say that no signature has authenticated yet.
        var unsigned = Statements()
    }

    private struct Statements {
        var heads: [AuditHead] = []
        var removed: [WireText] = []
    }

    /// The most entries of a chain: far more than a process writes.
    private static let mostEntries: Int64 = 1 << 50

    private func examine(_ name: String, _ findings: inout Findings) async throws(StoreError) {
        guard name.utf8.count <= AuditBlock.longestName else {
            return findings.fault("a chain has a name of \(name.utf8.count) bytes, which no process writes")
        }
        // It is printed, and could have the terminal hide other lines.
        guard AuditBlock.isName(name.utf8) else {
            return findings.fault("a chain has a name with characters that no process writes")
        }
        var position = Position()
        try await log.readAuditBlocks(of: name) { block in
            if block.first > 0, block.last >= block.first, block.last <= Self.mostEntries {
                examine(block, of: name, &position, &findings)
            } else {
                findings.fault("chain \(name): a block has the impossible numbers \(block.first), \(block.last)")
            }
        }
        findings.summary.chains += 1
        if !position.isClosed { findings.summary.open += 1 }
        findings.lasts[WireText(name)] = position.last
    }

    private func examine(
        _ block: AuditBlock, of name: String, _ position: inout Position, _ findings: inout Findings
    ) {
        let entries = block.first == block.last ? "entry \(block.first)" : "entries \(block.first) to \(block.last)"
        let isNext = block.first == position.last + 1
        if block.first > position.last + 1 {
            let (missing, last) = (position.last + 1, block.first - 1)
            findings.fault(
                "chain \(name): " + (missing == last ? "entry \(last) is" : "entries \(missing) to \(last) are")
                    + " missing")
        } else if !isNext {
            return findings.fault("chain \(name): a second block has \(entries)")
        }
        if position.isClosed { findings.fault("chain \(name): \(entries) follow behind the end of the chain") }
        let previous = isNext ? position.hash : nil
        position.last = block.last
        position.hash = block.hash
        findings.summary.entries += block.last - block.first + 1
        findings.count(block)
        guard let lines = read(block, of: name, after: previous) else {
            position.unsigned = Statements()
            return findings.fault("chain \(name): \(entries) \(block.first == block.last ? "was" : "were") changed")
        }
        note(lines, of: block, &position, &findings)
    }

    /// The lines of a block as JSON; nil when they are not what was written.
    /// - Parameter previous: the hash before the block; nil when it is not known, because entries are missing.
    private func read(_ block: AuditBlock, of name: String, after previous: [UInt8]?) -> [JSONValue]? {
        guard block.hash.count == AuditBlock.beginning.count, let lines = block.lines,
            Int64(lines.count) == block.last - block.first + 1
        else { return nil }
        if var hash = previous {
            for line in lines { hash = AuditBlock.hash(of: line, after: hash) }
            guard hash == block.hash else { return nil }
        }
        let (chain, time) = (WireText(name), WireText(AuditEntry.text(block.time)))
        var values: [JSONValue] = []
        for (index, line) in lines.enumerated() {
            guard let value = try? JSONValue(parsing: Array(line)), value["chain"]?.string == chain,
                value["sequence"]?.integer == block.first + Int64(index), value["time"]?.string == time
            else { return nil }
            values.append(value)
        }
        return values
    }

    private func note(
        _ lines: [JSONValue], of block: AuditBlock, _ position: inout Position, _ findings: inout Findings
    ) {
        let name = block.chain
        let action = lines.last?["action"]?.string?.text ?? ""
        for line in lines {
            let heads = AuditEntry.heads(in: line)
            position.unsigned.heads += heads
            if line["action"]?.string == WireText(AuditEntry.Own.removed) {
                position.unsigned.removed += heads.map { WireText($0.chain) }
            }
        }
        let isToBeSigned = [AuditEntry.Own.signed, AuditEntry.Own.closed, AuditEntry.Own.removed].contains(action)
        if let signature = block.signature {
            let message = AuditBlock.signedMessage(block.end)
            guard signature.count == AuditBlock.beginning.count,
                keyring.isAuthentic(signature, of: message, label: AuditBlock.signatureLabel)
            else {
                let id = lines.last?["key"]?.string?.text ?? ""
                findings.fault(
                    keyring.contains(id: id)
                        ? "chain \(name): the signature of entry \(block.last) is wrong"
                        : "chain \(name): entry \(block.last) was signed under a key that is not configured")
                return
            }
            findings.signed[WireText(name)] = max(findings.signed[WireText(name)] ?? 0, block.last)
            for head in position.unsigned.heads { findings.note(head, by: name) }
            findings.removed.formUnion(position.unsigned.removed)
            position.unsigned = Statements()
        } else if isToBeSigned {
            findings.fault("chain \(name): the signature of entry \(block.last) is missing")
        }
        if action == AuditEntry.Own.closed { position.isClosed = true }
    }

    /// Compares the ends of chains that signed entries name with the chains. Reads these again, since a process may have named
    /// what was written after the first reading.
    private func compareHeads(_ findings: inout Findings) async throws(StoreError) {
        for (name, named) in findings.heads.sorted(by: { $0.key < $1.key }) {
            var (missing, last) = (named, Int64(0))
            try await log.readAuditBlocks(of: name.text) { block in
                last = max(last, block.last)
                findings.count(block)
                guard let head = missing[block.last], head.hash == block.hash else { return }
                missing[block.last] = nil
                if head.isOwn {
                    findings.signed[name] = max(findings.signed[name] ?? 0, block.last)
                } else {
                    findings.witnessed[name] = max(findings.witnessed[name] ?? 0, block.last)
                }
            }
            guard let end = missing.keys.max(), let witness = missing[end]?.witness else { continue }
            let isDamaged = findings.damaged.contains(name)
            if last == 0 {
                if !isDamaged, !findings.removed.contains(name) {
                    findings.fault(
                        "chain \(name) is missing: it had \(end) entries when chain \(witness) named its end")
                }
                continue
            }
            if end > last, !isDamaged {
                findings.fault(
                    "chain \(name) was cut off: it ends at entry \(last), and had \(end) entries when chain \(witness) "
                        + "named its end")
            }
            if let changed = missing.filter({ $0.key <= last }).max(by: { $0.key < $1.key }) {
                findings.fault(
                    "chain \(name) was changed up to entry \(changed.key), which chain \(changed.value.witness) has named"
                )
            }
        }
    }
}

/// Selects entries of the audit log and writes their lines.
package struct AuditExport: Sendable, Equatable {
    /// Only entries of this tenant; nil for all.
    package var tenant: TenantName?
    /// Only entries from this time on.
    package var from: Timestamp?
    /// Only entries before this time.
    package var to: Timestamp?

    package init(tenant: TenantName? = nil, from: Timestamp? = nil, to: Timestamp? = nil) {
        self.tenant = tenant
        self.from = from
        self.to = to
    }

    /// Calls `write` with the selected lines, each with its newline: chain by chain, each in its order.
    /// - Parameter write: must not keep the entries in memory; the log may be long.
    /// - Returns: how many entries could not be read, because they were changed, and how many chains are damaged.
    package func run(
        _ log: any AuditReading, _ write: (ArraySlice<UInt8>) -> Void
    ) async throws(StoreError) -> (entries: Int, chains: Int) {
        var (unreadable, damaged) = (0, 0)
        try await log.readAuditPages(since: from) { page throws(StoreError) in
            damaged += page.damaged.count
            let whole = page.chains.filter { chain in to.map { chain.begun < $0 } ?? true }.map(\.end.chain)
            try await run(page.damaged.compactMap(\.chain) + whole, of: log, &unreadable, write)
        }
        return (unreadable, damaged)
    }

    private func run(
        _ chains: [String], of log: any AuditReading, _ unreadable: inout Int, _ write: (ArraySlice<UInt8>) -> Void
    ) async throws(StoreError) {
        for chain in chains {
            try await log.readAuditBlocks(of: chain) { block in
                if let from, block.time < from { return }
                if let to, block.time >= to { return }
                let lines = block.lines ?? []
                if lines.isEmpty { unreadable += 1 }
                for line in lines {
                    guard isSelected(line, &unreadable) else { continue }
                    write(line + [UInt8(ascii: "\n")])
                }
            }
        }
    }

    private func isSelected(_ line: ArraySlice<UInt8>, _ unreadable: inout Int) -> Bool {
        guard let value = try? JSONValue(parsing: Array(line)) else {
            unreadable += 1
            return false
        }
        return tenant.map { value["tenant"]?.string == WireText($0.description) } ?? true
    }
}
