import ExternalText
package import OAuth
import Synchronization
import Waiting

/// Writes the audit log of one process.
///
/// The entries of a process stand in chains, which no other process writes, so that no replica waits for another one.
/// Each commit appends one block to a chain that no other commit uses meanwhile: commits that run at the same time use
/// different chains. A block is written with the changes that it tells of, in one commit.
///
/// A chain begins with `audit.opened`, which names the end of the chain before it, and ends with `audit.closed`. The
/// chain of a process that was killed has no such end, nor has a chain of which the process does not know whether its
/// last block was stored: the process goes on in a new one. `sign` writes `audit.signed`, which names the ends of all
/// chains that were written lately, also those of other processes. So a chain whose end is cut off shows, and one that
/// is missing.
package final class AuditLog: Sendable {
    /// Up to what size a chain goes on.
    package struct Limits: Sendable {
        package var entries: Int64 = 100_000
        package var bytes = 32 << 20
        package var age: Duration = .seconds(86_400)

        package init() {}
    }

    /// The use of one chain after the other, by one commit at a time.
    private struct Lane: Sendable {
        /// No other lane has it.
        let number: Int64
        /// Empty before the first block is written.
        var chain = ""
        var last: Int64 = 0
        var hash = AuditBlock.beginning
        var begun: Timestamp?
        var bytes = 0
        /// The end of the chain before this one.
        var previous: AuditHead?
        /// When the last block was stored, of the chain or of the one before it.
        var written: Timestamp?

        var end: AuditHead? { last == 0 ? previous : AuditHead(chain: chain, sequence: last, hash: hash) }

        mutating func note(_ block: AuditBlock) {
            last = block.last
            hash = block.hash
            bytes += block.body.count
            if begun == nil { begun = block.time }
            written = block.time
        }
    }

    /// What this process knows of the end of one of its chains.
    private struct OwnEnd {
        /// The last one that the store has confirmed.
        var confirmed: AuditHead?
        /// The end if the store has taken the last block that was sent.
        var sent: AuditHead
        var time: Timestamp
    }

    private struct State {
        var free: [Lane] = []
        /// How many lanes there are, in use or free.
        var count = 0
        /// The tasks that wait for a lane; they get nil when the store does not answer.
        var waiting = WaitList<Void, Lane?>()
        var lastNumber: Int64 = 0
        /// Entries that are to be written together.
        var entries = WaitList<AuditEntry, Result<Void, StoreError>>()
        var isWritingEntries = false
        /// The ends of the chains of this process that were written within `witnessSpan`.
        var own: [WireText: OwnEnd] = [:]
        /// How many blocks were written since the last signature.
        var unsigned = 0
        /// The last entry of each chain that a signature of this process has named.
        var witnessed: [WireText: Int64] = [:]
        /// The damaged chains that this process has reported.
        var damaged: Set<WireText> = []
    }

    /// What a process finds out by signing.
    package struct Findings: Sendable, Equatable {
        /// How many chains of this process have another end in the store than this process has written. Such a chain was
        /// changed by someone else; `AuditExamination` finds it, since the signature contradicts it.
        package var changed = 0
        /// The chains that cannot be read, each the first time only. The others are signed.
        package var damaged: [DamagedAuditChain] = []
    }

    /// For how long signatures name the end of a chain that is not written any more.
    static let witnessSpan: Duration = .seconds(2 * 86_400)
    /// The most ends of chains in one signature.
    private static let mostHeads = 1000
    /// The most entries that one commit writes for callers that wait together.
    private static let mostEntries = 256
    /// More than a store has connections at its default, and few enough to be read.
    private static let mostLanes = 8
    /// How many chains one call of the store looks at, and how many calls a signature makes: far more chains than processes begin
    /// within the days that a signature looks back.
    private static let pageCount = 50
    private static let mostPages = 200

    private let vault: Vault
    private let now: @Sendable () -> Timestamp
    private let limits: Limits
    private let laneLimit: Int
    private let process: String
    // Called from any task.
    private let state = Mutex(State())

    /// - Parameters:
    ///   - vault: whose store has the log, and whose keys sign it.
    ///   - now: the time of day.
    package init(vault: Vault, limits: Limits = Limits(), now: @escaping @Sendable () -> Timestamp) {
        self.vault = vault
        self.limits = limits
        self.now = now
        // A store with one writer makes one commit after the other, so further chains would bring nothing.
        laneLimit = vault.revalidateAfter == nil ? 1 : Self.mostLanes
        let digits = String(UInt64.random(in: .min ... .max), radix: 16)
        process = String(repeating: "0", count: 16 - digits.utf8.count) + digits
    }

    // MARK: Writing

    /// Commits the changes together with the entries that tell of them.
    /// - Throws: as `RecordStore.commit`. An entry is in the log exactly when the changes were made.
    func commit(_ changes: [RecordChange], _ entries: [AuditEntry]) async throws(StoreError) {
        try await write(entries, with: changes).get()
    }

    /// Writes an entry. Entries that wait at the same time are written in one commit. A cancellation does not end the
    /// wait; the time limit of the store's commit does.
    /// - Throws: `.unavailable` or `.damaged` when the entry may not be in the log.
    package func record(_ entry: AuditEntry) async throws(StoreError) {
        let (waiter, begins) = state.withLock { state in
            let waiter = state.entries.enter(entry)
            defer { state.isWritingEntries = true }
            return (waiter, !state.isWritingEntries)
        }
        // Detached: the task also writes entries of other callers.
        if begins { Task.detached(priority: Task.currentPriority) { await self.writeEntries() } }
        try await waiter.value().get()
    }

    private func writeEntries() async {
        while true {
            let batch = state.withLock { state in
                var batch: [(subject: AuditEntry, waiter: Waiter<Result<Void, StoreError>>)] = []
                while batch.count < Self.mostEntries, let next = state.entries.popFirst() { batch.append(next) }
                if batch.isEmpty { state.isWritingEntries = false }
                return batch
            }
            if batch.isEmpty { return }
            let outcome = await write(batch.map(\.subject))
            var waiters = batch.map(\.waiter)
            if case .failure = outcome {
                // Those that came meanwhile would wait as long again for a store that does not answer.
                waiters += state.withLock { $0.entries.removeAll() }
            }
            for waiter in waiters { waiter.resume(returning: outcome) }
        }
    }

    /// Signs the log, unless this process has written nothing since it last did. Of chains of this process, the signature names
    /// the ends that this process has written, and of others those that the store has.
    /// - Parameter isStart: signs in any case, and also names the chains that were written lately when the last process stopped.
    ///   The start then fails if the log cannot be written.
    /// - Throws: when the signature may not be in the log.
    @discardableResult
    package func sign(isStart: Bool = false) async throws(StoreError) -> Findings {
        let unsigned = state.withLock { $0.unsigned }
        if unsigned == 0, !isStart { return Findings() }
        let (stored, damaged) = try await recentChains(isStart: isStart)
        // Taken after the reading, so that it has every block that the store had then.
        let (own, witnessed) = state.withLock { ($0.own, $0.witnessed) }
        let (ownHeads, changed) = Self.heads(of: own, in: stored)
        let others = stored.filter { own[WireText($0.end.chain)] == nil }
            .sorted { $0.written > $1.written }.prefix(Self.mostHeads)
        let heads = ownHeads + others.map(\.end)
        var entry = AuditEntry(AuditEntry.Own.signed, origin: .broker)
        entry.heads = heads.filter { end in witnessed[WireText(end.chain)].map { $0 < end.sequence } ?? true }
        try await write([entry], isSigned: true).get()
        state.withLock { state in
            state.unsigned -= unsigned
            state.witnessed = Dictionary(heads.map { (WireText($0.chain), $0.sequence) }) { $1 }
        }
        return Findings(changed: changed, damaged: newlyFound(damaged))
    }

    /// The chains that were written within `witnessSpan`; at a start also those that were at the end of the last process. And
    /// the damaged ones among them. Reads the newest chains only, as many as were begun so late that they can have been written
    /// within that time.
    private func recentChains(
        isStart: Bool
    ) async throws(StoreError) -> (chains: [AuditChain], damaged: [DamagedAuditChain]) {
        let oldest = now().advanced(by: .zero - Self.witnessSpan)
        state.withLock { state in state.own = state.own.filter { $0.value.time >= oldest } }
        var since = oldest
        if isStart, let begun = try await newestBeginning() {
            since = min(oldest, begun.advanced(by: .zero - Self.witnessSpan))
        }
        // A process does not go on with a chain that is as old as a chain may become, or that it has not written for
        // `witnessSpan`. One more day, because clocks differ.
        let end = since.advanced(by: .zero - limits.age - Self.witnessSpan - .seconds(86_400))
        var (chains, damaged, place): ([AuditChain], [DamagedAuditChain], AuditPlace?) = ([], [], nil)
        for _ in 0..<Self.mostPages {
            let page = try await vault.asking(
                .read,
                await vault.store.auditChains(.newestFirst, since: since, after: place, limit: Self.pageCount))
            chains += page.chains
            damaged += page.damaged
            guard let next = page.next, next.begun >= end else { break }
            place = next
        }
        if isStart, let last = chains.map(\.written).max() {
            let first = min(oldest, last.advanced(by: .zero - Self.witnessSpan))
            chains.removeAll { $0.written < first }
        }
        return (chains, damaged)
    }

    /// When the newest chain of the store began; nil when there is none.
    private func newestBeginning() async throws(StoreError) -> Timestamp? {
        let page = try await vault.asking(
            .read, await vault.store.auditChains(.newestFirst, since: nil, after: nil, limit: 1))
        return page.chains.first?.begun ?? page.next?.begun
    }

    private func newlyFound(_ damaged: [DamagedAuditChain]) -> [DamagedAuditChain] {
        state.withLock { state in damaged.filter { state.damaged.insert(WireText($0.text)).inserted } }
    }

    /// The ends of the process's chains as it has written them, and how many of them the store has otherwise.
    private static func heads(
        of own: [WireText: OwnEnd], in stored: [AuditChain]
    ) -> (heads: [AuditHead], changed: Int) {
        let ends = Dictionary(stored.map { (WireText($0.end.chain), $0.end) }) { $1 }
        var (heads, changed) = ([AuditHead](), 0)
        for (chain, end) in own {
            let found = ends[chain]
            if found == end.sent {
                heads.append(end.sent)
                continue
            }
            if let confirmed = end.confirmed { heads.append(confirmed) }
            // A block that the store had not taken yet when it was read is no change.
            guard let found else { continue }
            if let confirmed = end.confirmed, found.sequence < confirmed.sequence || found == confirmed { continue }
            changed += 1
        }
        return (heads, changed)
    }

    /// Ends those chains of this process that are as old as a chain may become and are not in use, so that a process which
    /// writes nothing leaves no chain open for longer. To be called at intervals. A chain whose end the store does not take
    /// stays open, and the process goes on in another one.
    package func endOld() async {
        let old = state.withLock { state in
            defer { state.free.removeAll(where: isFull) }
            return state.free.filter(isFull)
        }
        for var lane in old {
            await end(&lane)
            give(lane)
        }
    }

    /// Ends all chains of this process. No entry may be written any more.
    package func close() async {
        let count = state.withLock { $0.count }
        for _ in 0..<count {
            if var lane = await take() { await end(&lane) }
        }
        state.withLock { $0.count = 0 }
    }

    /// Removes all chains whose last entry was written before `time`, after an entry that names their ends. For an
    /// operator: the role of a service may not remove anything. Processes may write the log meanwhile: none of them goes on
    /// with a chain that is as old.
    /// - Parameter time: more than `witnessSpan` ago, by a day or more because clocks differ, so that no process appends to a
    ///   chain that is removed, and that entries which name a chain are removed before the entry that tells of its removal.
    /// - Returns: how many chains were removed, and the damaged ones, which were left, because their ends are not known.
    package func remove(before time: Timestamp) async throws(StoreError) -> (count: Int, left: [DamagedAuditChain]) {
        var (old, left): ([AuditHead], [DamagedAuditChain]) = ([], [])
        try await vault.asking(
            .read,
            await vault.store.readAuditPages { page in
                old += page.chains.filter { $0.written < time }.map(\.end)
                left += page.damaged
            })
        for start in stride(from: 0, to: old.count, by: Self.mostHeads) {
            let ends = Array(old[start..<min(start + Self.mostHeads, old.count)])
            var entry = AuditEntry(AuditEntry.Own.removed, origin: AuditOrigin(caller: "operator"))
            entry.heads = ends
            try await write([entry], isSigned: true).get()
            for end in ends { try await vault.asking(.write, await vault.store.removeAuditChain(end.chain)) }
        }
        await close()
        return (old.count, left)
    }

    // MARK: Blocks

    /// Commits one block. When it is not known whether the block was stored, its lane goes on in another chain.
    private func write(
        _ entries: [AuditEntry], with changes: [RecordChange] = [], isSigned: Bool = false
    ) async -> Result<Void, StoreError> {
        guard var lane = await take() else { return .failure(.unavailable) }
        if mayBeRemoved(lane) { lane = newLane() }
        if isFull(lane) { await end(&lane) }
        if lane.last == 0 {
            lane.chain = AuditChainName.make(begun: now(), process: process, number: lane.number)
        }
        let block = block(entries, in: lane, isSigned: isSigned)
        do throws(StoreError) {
            try await commit(changes, block)
        } catch {
            if error != .conflict { lane = newLane(after: lane) }
            give(lane)
            if error == .unavailable { sendAway() }
            return .failure(error)
        }
        lane.note(block)
        if !isSigned { state.withLock { $0.unsigned += 1 } }
        give(lane)
        return .success(())
    }

    private func isFull(_ lane: Lane) -> Bool {
        guard let begun = lane.begun else { return false }
        return lane.last >= limits.entries || lane.bytes >= limits.bytes || begun.duration(to: now()) >= limits.age
    }

    /// Ends the lane's chain; the lane goes on in another one. When the store does not take the end, the chain stays open,
    /// as that of a killed process does, and the next one names its last entry.
    private func end(_ lane: inout Lane) async {
        guard lane.last > 0 else { return }
        if mayBeRemoved(lane) {
            lane = newLane()
            return
        }
        let block = block([AuditEntry(AuditEntry.Own.closed, origin: .broker)], in: lane, isSigned: true)
        do throws(StoreError) {
            try await commit([], block)
            lane.note(block)
        } catch {
            // The store has reported the error.
        }
        lane = newLane(after: lane)
    }

    private func commit(_ changes: [RecordChange], _ block: AuditBlock) async throws(StoreError) {
        let chain = WireText(block.chain)
        state.withLock { state in
            let confirmed = state.own[chain]?.confirmed
            state.own[chain] = OwnEnd(confirmed: confirmed, sent: block.end, time: block.time)
        }
        do throws(StoreError) {
            try await vault.asking(.write, await vault.store.commit(changes + [.audit(block)]))
        } catch {
            // The chain has not begun, and its first block gets another name.
            if error == .conflict, block.first == 1 { state.withLock { $0.own[chain] = nil } }
            throw error
        }
        state.withLock { $0.own[chain]?.confirmed = block.end }
    }

    /// Whether the chain, or the one before it, may have been removed.
    private func mayBeRemoved(_ lane: Lane) -> Bool {
        lane.written.map { $0.duration(to: now()) >= Self.witnessSpan } ?? false
    }

    private func block(_ entries: [AuditEntry], in lane: Lane, isSigned: Bool) -> AuditBlock {
        var entries = entries
        if lane.last == 0 {
            var opening = AuditEntry(AuditEntry.Own.opened, origin: .broker)
            opening.previous = lane.previous
            entries.insert(opening, at: 0)
        }
        if isSigned { entries[entries.count - 1].keyID = vault.keyring.primaryID }
        let time = now()
        var (sequence, hash, body) = (lane.last, lane.hash, [UInt8]())
        for entry in entries {
            sequence += 1
            let line = entry.line(chain: lane.chain, sequence: sequence, at: time)
            hash = AuditBlock.hash(of: line, after: hash)
            body += line
            body.append(UInt8(ascii: "\n"))
        }
        let head = AuditHead(chain: lane.chain, sequence: sequence, hash: hash)
        let signature =
            isSigned
            ? vault.keyring.authenticationCode(
                of: AuditBlock.signedMessage(head), label: AuditBlock.signatureLabel, count: hash.count) : nil
        return AuditBlock(
            chain: lane.chain, first: lane.last + 1, last: sequence, time: time, body: body, hash: hash,
            signature: signature)
    }

    // MARK: Lanes

    /// - Parameter lane: the one that goes on in the new one.
    private func newLane(after lane: Lane? = nil) -> Lane {
        let number = state.withLock { state in
            state.lastNumber += 1
            return state.lastNumber
        }
        return Lane(number: number, previous: lane?.end, written: lane?.written)
    }

    /// A lane that no other task uses. Waits for one where there are as many as there may be; nil when the store does not
    /// answer meanwhile.
    private func take() async -> Lane? {
        enum Finding {
            case lane(Lane)
            case isToBeMade
            case waiter(Waiter<Lane?>)
        }
        let finding = state.withLock { state -> Finding in
            if let lane = state.free.popLast() { return .lane(lane) }
            if state.count >= laneLimit { return .waiter(state.waiting.enter()) }
            state.count += 1
            return .isToBeMade
        }
        switch finding {
        case .lane(let lane): return lane
        case .isToBeMade: return newLane()
        case .waiter(let waiter): return await waiter.value()
        }
    }

    private func give(_ lane: Lane) {
        let waiter = state.withLock { state -> Waiter<Lane?>? in
            if let (_, waiter) = state.waiting.popFirst() { return waiter }
            state.free.append(lane)
            return nil
        }
        waiter?.resume(returning: lane)
    }

    /// Ends the waits for lanes, because each would take as long as a commit whose answer does not come.
    private func sendAway() {
        for waiter in state.withLock({ $0.waiting.removeAll() }) { waiter.resume(returning: nil) }
    }
}
