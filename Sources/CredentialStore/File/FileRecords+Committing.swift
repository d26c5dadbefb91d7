import Glibc
import OAuth
import Reactor

extension FileRecords {
    /// A change as the write-ahead log records it, and the draft that it needs. The draft is written before the commit
    /// takes place, because writing a file is what a full disk refuses first.
    private struct Step {
        let change: FileChange
        /// The draft that is renamed to the change's path; nil when the change is made in place.
        var draft: String?
    }

    /// Carries out a plan. On a full disk, a plan that adds next to nothing uses the space that is kept for such ones.
    func write(_ plan: CommitPlan) throws(FileStoreError) {
        if !reserve.isWhole, try !addsNextToNothing(plan) {
            try files.onDisk { () throws(SystemError) in try reserve.fill() }
        }
        do throws(FileStoreError) {
            try writeOnce(plan)
        } catch {
            guard error.isFullDisk, !mustRecover, try addsNextToNothing(plan), reserve.giveUp() else { throw error }
            report(error)
            try writeOnce(plan)
        }
    }

    /// Whether the plan changes or removes records, and does not make them larger than a renewal does: logouts, renewals,
    /// leases, removals. A logout may keep what it is to revoke.
    private func addsNextToNothing(_ plan: CommitPlan) throws(FileStoreError) -> Bool {
        var growth = 0
        var isLogout = false
        for (id, outcome) in plan.outcomes {
            let (before, after) = (try load(id)?.sealed.count ?? 0, outcome?.sealed.count ?? 0)
            growth += after - before
            if id.kind == .credentials, outcome != nil, after < before / 2 { isLogout = true }
        }
        return !plan.outcomes.isEmpty && growth <= (isLogout ? Self.logoutGrowth : Self.leastGrowth)
    }

    /// How many octets the records of a commit may grow on a full disk: a new token is about as long as the last one.
    private static let leastGrowth = 256
    /// The same for a logout.
    private static let logoutGrowth = 16_384

    private func writeOnce(_ plan: CommitPlan) throws(FileStoreError) {
        let addition = try log.addition(of: plan.entries)
        let state = log.state(cutting: plan.clearedTenants)
        let block = try plan.block.map { block throws(FileStoreError) in try audit.addition(of: block) }
        if catalog.isLong { try renewCatalog() }
        try carryOut { () throws(FileStoreError) in
            let segment = addition.flatMap { $0.offset == 0 ? $0.first : nil }
            var steps = try steps(for: plan.outcomes, beginning: segment)
            if state != log.state { steps.append(try step(writing: state.encode(), to: FileLog.statePath)) }
            if let addition { steps.append(try step(for: addition)) }
            if let block { steps.append(try step(for: block)) }
            return steps
        } finishing: { () throws(SystemError) in
            log.didClear(plan.clearedTenants)
            if let addition { log.didWrite(addition) }
            if let block { audit.didWrite(block) }
            if state != log.state { try moveLog(to: state) }
        }
        for id in plan.outcomes.keys { index.remove(id) }
        for case let record? in plan.outcomes.values where RecordPath(for: record).tree == .indexed {
            let isFree = index.insert(record)
            precondition(isFree, "a commit was planned with a look-up digest that is taken")
        }
        for (id, record) in plan.outcomes {
            leases.note(id, record: record, recovery: plan.recoveries[id])
            listings.note(id, exists: record != nil)
        }
    }

    func removeExpired(before now: Timestamp, limit: Int) throws(FileStoreError) -> Int {
        try recoverIfNeeded()
        let expired = index.expired(before: now, limit: limit)
        try carryOut { () throws(FileStoreError) in
            let steps = expired.map { Step(change: .remove(RecordPath(.indexed, $0).text)) }
            return try steps + catalogSteps(removing: expired)
        }
        for id in expired {
            index.remove(id)
            leases.note(id, record: nil)
            listings.note(id, exists: false)
        }
        return expired.count
    }

    func trimLog(before time: Timestamp, keeping count: Int, limit: Int) throws(FileStoreError) -> Int {
        try recoverIfNeeded()
        let old = try trim(log.trimming(before: time, limit: limit))
        let surplus = try trim(log.thinning(keeping: count, limit: limit - old))
        if log.mayHaveTooMany(keeping: count) { try compactLog() }
        return old + surplus
    }

    /// Returns how many entries were removed.
    private func trim(_ trimming: FileLog.Trimming) throws(FileStoreError) -> Int {
        if trimming.state == log.state { return 0 }
        try carryOut { () throws(FileStoreError) in
            [try step(writing: trimming.state.encode(), to: FileLog.statePath)]
        } finishing: { () throws(SystemError) in
            log.didTrim(trimming)
            try moveLog(to: trimming.state)
        }
        return trimming.count
    }

    /// Writes segments of the log again without the entries that do not count, after a checkpoint, because changes in the
    /// write-ahead log may be for other places in them.
    private func compactLog() throws(FileStoreError) {
        guard let compaction = try log.compaction() else { return }
        try files.onDisk { () throws(SystemError) in try checkpoint() }
        try carryOut { () throws(FileStoreError) in
            let removals = compaction.joined.map { Step(change: .remove(FileLog.path(of: $0))) }
            return [try step(writing: compaction.draft.bytes, to: compaction.path)] + removals
        } finishing: { () throws(SystemError) in
            log.didCompact(compaction)
        }
    }

    /// Writes other octets for entries of the log, one segment after the other. Returns how many were written.
    func resealLog(_ changes: [Reseal]) throws(FileStoreError) -> Int {
        var others: [Int64: (read: [UInt8], sealed: [UInt8])] = [:]
        for change in changes {
            guard case .entry(let placed) = change.item else { continue }
            others[placed.sequence] = (placed.entry.sealed, change.sealed)
        }
        var written = 0
        for segment in log.segments(of: Array(others.keys)) {
            let (change, count) = try log.rewriting(segment, with: others)
            guard let change else { continue }
            try carryOut { () throws(FileStoreError) in
                [Step(change: change)]
            } finishing: { () throws(SystemError) in
                log.didRewrite()
            }
            written += count
        }
        return written
    }

    func removeAuditChain(_ chain: String) throws(FileStoreError) {
        try recoverIfNeeded()
        let path = AuditFrame.path(of: chain)
        guard try files.exists(path) else { return }
        try carryOut { () throws(FileStoreError) in
            [Step(change: .remove(path))]
        } finishing: { () throws(SystemError) in
            audit.didRemove(chain)
        }
    }

    // MARK: Preparing

    /// Writes the drafts of the records, and returns the steps that remain.
    /// - Parameter segment: the first sequence of the segment of the log that begins with the commit, if one does.
    private func steps(
        for outcomes: [RecordID: StoredRecord?], beginning segment: Int64?
    ) throws(FileStoreError) -> [Step] {
        var steps: [Step] = []
        var added: [RecordID] = []
        var removed: [RecordID] = []
        for (id, outcome) in outcomes.sorted(by: { $0.key < $1.key }) {
            let current = try location(of: id)
            var target: RecordPath?
            if let record = outcome {
                let place = RecordPath(for: record)
                try files.onDisk { () throws(SystemError) in try writer.makeDirectory(place.directory) }
                let bytes = RecordFile.encode(record)
                guard bytes.count <= RecordFile.countLimit else {
                    throw .system(path: files.path, SystemError("write", number: EFBIG))
                }
                steps.append(try step(writing: bytes, to: place.text))
                target = place
            }
            if let current, current != target { steps.append(Step(change: .remove(current.text))) }
            if current == nil, target != nil { added.append(id) }
            if current != nil, target == nil { removed.append(id) }
        }
        return try steps + catalogSteps(adding: added, removing: removed, segment: segment)
    }

    private func catalogSteps(
        adding added: [RecordID] = [], removing removed: [RecordID] = [], segment: Int64? = nil
    ) throws(FileStoreError) -> [Step] {
        let change = try files.onDisk { () throws(SystemError) in
            try catalog.addition(adding: added, removing: removed, segment: segment)
        }
        return change.map { [Step(change: $0)] } ?? []
    }

    private func step(writing bytes: [UInt8], to target: String) throws(FileStoreError) -> Step {
        let draft = writer.newDraft()
        try files.onDisk { () throws(SystemError) in try files.directory.writeForNow(draft, bytes) }
        return Step(change: .write(to: target, bytes), draft: draft)
    }

    private func step(for addition: FileLog.Addition) throws(FileStoreError) -> Step {
        if addition.offset > 0 {
            try files.onDisk { () throws(SystemError) in
                try log.reserve(addition, in: addition.path, sparingly: !reserve.isWhole)
            }
            return Step(change: addition.change)
        }
        let draft = writer.newDraft()
        try files.onDisk { () throws(SystemError) in
            try log.reserve(addition, in: draft, sparingly: !reserve.isWhole)
            try files.directory.append(addition.bytes, to: draft, at: 0)
        }
        return Step(change: addition.change, draft: draft)
    }

    private func step(for block: FileAudit.Addition) throws(FileStoreError) -> Step {
        try files.onDisk { () throws(SystemError) in
            try writer.makeDirectory(AuditFrame.directoryName)
            try audit.reserve(block, sparingly: !reserve.isWhole)
        }
        return Step(change: block.change)
    }

    private func location(of id: RecordID) throws(FileStoreError) -> RecordPath? {
        if index.entries[id] != nil { return RecordPath(.indexed, id) }
        let place = RecordPath(.plain, id)
        return try files.exists(place.text) ? place : nil
    }

    // MARK: Carrying out

    /// Commits the steps that `prepare` returns, and makes their changes. When the disk refuses a change, the store
    /// recovers from the write-ahead log; while that fails as well, no read is served, because it might see half of a
    /// commit.
    /// - Parameter finish: called when the changes have been made.
    private func carryOut(
        _ prepare: () throws(FileStoreError) -> [Step], finishing finish: () throws(SystemError) -> Void = {}
    ) throws(FileStoreError) {
        let steps: [Step]
        do throws(FileStoreError) {
            steps = try prepare()
            if steps.isEmpty { return }
            try files.onDisk { () throws(SystemError) in try logAhead(steps.map(\.change)) }
        } catch {
            // The commit did not take place.
            discardDrafts()
            throw error
        }
        do throws(SystemError) {
            for step in steps { try make(step) }
            try finish()
        } catch {
            report(.system(path: files.path, error))
            mustRecover = true
            try recoverIfNeeded()
        }
    }

    /// Writes changes to the write-ahead log, durably. That is the moment at which a commit takes place.
    /// - Throws: when the commit does not take place.
    private func logAhead(_ changes: [FileChange]) throws(SystemError) {
        var frame = try commits.frame(of: changes)
        if !commits.hasRoom(for: frame.count) {
            try checkpoint()
            frame = try commits.frame(of: changes)
        }
        try commits.write(frame)
    }

    private func make(_ step: Step) throws(SystemError) {
        if let draft = step.draft {
            try writer.place(draft, at: step.change.path)
        } else {
            try make(step.change)
        }
    }

    func make(_ change: FileChange) throws(SystemError) {
        try writer.make(change)
        if change.path == Catalog.name { catalog.didWrite(change) }
    }

    /// Makes all changes in the write-ahead log durable in their files, and starts the log again.
    func checkpoint() throws(SystemError) {
        if writer.isSynchronized { return }
        do throws(SystemError) {
            try writer.synchronize()
            try commits.restart()
        } catch {
            // After a failed fsync the kernel may treat data as written that never reached the disk, and a later fsync
            // succeeds. So all changes of the log are made again. (A removal that was not made durable cannot be
            // repeated; a file system on which that fails stops working.)
            mustRecover = true
            throw error
        }
    }

    /// Removes the segments of the log that end before the new state, after a checkpoint, because changes in the
    /// write-ahead log may be for them.
    private func moveLog(to state: LogState) throws(SystemError) {
        if log.losesSegments(with: state) { try checkpoint() }
        try log.didWrite(state)
    }

    func discardDrafts() {
        do throws(SystemError) {
            try writer.removeDrafts()
        } catch {
            // The recovery before the next call removes them.
            mustRecover = true
        }
    }
}
