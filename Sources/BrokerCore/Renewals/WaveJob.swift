import CredentialStore
import Cryptography
import OAuth
import Reactor
import Synchronization
package import Waiting

/// What is to be done during waves and after them: puts back the sessions that ended before a wave was noticed, tries one held
/// set after the other, and frees all when the provider accepts one, or refutes the wave by the other sets that it refreshes. Also
/// writes what this replica has to tell the others of its refreshes (`WaveTallies.report`).
///
/// Due marks of the waves' records make it a job: the replica that moves a mark by compare-and-set has it. Each step can be
/// repeated, so a replica that dies leaves nothing behind but a mark.
package final class WaveJob: BackgroundJob {
    private static let batch = 1000
    /// How many held sets are freed before the record of the wave that is over is written again.
    private static let setsAtOnce = 100
    /// How many waves a replica knows of.
    private static let mostWaves = 10_000
    /// How often the tenants with a wave are looked at, which an operator may switch off.
    private static let longestSight: Duration = .seconds(2)
    /// After this time another replica goes on with work that was not finished.
    private static let patience: Duration = .seconds(30)
    /// How often the end of a wave is tried again.
    private static let tries = 8
    /// The shortest time after which refusals of the held sets count as the provider's will, whatever the quarantine is.
    private static let shortestHold: Duration = .seconds(86_400)

    private let renewer: CredentialsRenewer
    private let sets: HeldSets
    package let time: any Time
    private let log: Log
    /// The work on tenants, so that a provider that does not answer a trial delays no other tenant.
    private let tasks = Mutex<[RecordID: Task<Void, Never>]>([:])

    private var records: CredentialsRecords { renewer.records }
    private var waves: Waves { renewer.waves }
    package var wakeUps: KeyedSignal<Int>? { waves.work }

    init(renewer: CredentialsRenewer) {
        self.renewer = renewer
        sets = HeldSets(renewer: renewer)
        (time, log) = (renewer.time, renewer.log)
    }

    package func work() async -> NextTime { .after(await search()) }

    package func end() async {
        let left = tasks.withLock { Array($0.values) }
        for task in left { task.cancel() }
        for task in left { await task.value }
    }

    /// Does once what is due now, and suspends until it is done. Not beside `run`.
    package func handleAllDue() async {
        _ = await search()
        while let task = tasks.withLock({ $0.values.first }) { await task.value }
    }

    /// Begins what is due.
    /// - Returns: after how long to search again.
    private func search() async -> Duration {
        do throws(StoreError) {
            try await waves.tallies.report()
            let marked = try await records.vault.marked(.wave, limit: Self.mostWaves)
            waves.adopt(Set(marked.filter { CredentialsRecords.isWave($0.id) }.map(\.id.tenant)))
            if marked.isEmpty { return JobInterval.waves }
            let search = DueRecords(vault: records.vault, time: time, batch: Self.batch, interval: JobInterval.waves)
            // A mark of this moment is due already: the commit that begins a wave has written it.
            let due = try await records.vault.due(
                .wave, before: time.now.advanced(by: .milliseconds(1)), limit: Self.batch)
            for record in due { begin(record) }
            for mark in marked where CredentialsRecords.isWave(mark.id) { try await endIfSwitchedOff(mark.id.tenant) }
            let pause = try await search.pause([.wave])
            // A record whose work is under way is due for as long as that has not moved its mark.
            return due.isEmpty ? min(pause, Self.longestSight) : max(pause, .seconds(1))
        } catch {
            if error == .unavailable { records.noteFailure() }
            log.storeFailed(error)
            return .seconds(5)
        }
    }

    private func begin(_ due: DueRecord) {
        tasks.withLock { tasks in
            if tasks[due.id] != nil { return }
            tasks[due.id] = Task {
                await self.handle(due)
                self.tasks.withLock { $0[due.id] = nil }
                self.waves.work.signal(0)
            }
        }
    }

    private func handle(_ due: DueRecord) async {
        do throws(StoreError) {
            guard let wave = (due.record?.content).flatMap({ ProviderWave(decoding: $0.revealedBytes) }) else {
                log.error("wave_unreadable", [.tenant(due.id.tenant), .version(due.version)])
                return try await records.commit([
                    .settleDue(
                        due.id, version: due.version, due: due.mark, next: time.now.advanced(by: .seconds(3600)))
                ])
            }
            if CredentialsRecords.isWave(due.id) {
                try await goOn(wave, due.version, due.id.tenant)
            } else {
                try await tellFreed(wave, due)
            }
        } catch .conflict {
            // Another replica has the work, or the tenant was removed.
        } catch {
            if error == .unavailable { records.noteFailure() }
            log.storeFailed(error, [.tenant(due.id.tenant)])
        }
    }

    /// Ends the wave of a tenant that has none any more by its configuration, at whichever replica that was changed.
    private func endIfSwitchedOff(_ name: TenantName) async throws(StoreError) {
        guard records.tenants.inMemory(name)?.configuration.wave.isOn == false, let tenant = try await tenant(name),
            !tenant.configuration.wave.isOn, let (wave, version) = try await records.wave(name)
        else { return }
        do throws(StoreError) {
            try await end(wave, version, tenant)
        } catch .conflict {
            // Another replica has ended it, or goes on with it and ends it then.
        }
    }

    // MARK: During a wave

    /// Writes the wave's record anew.
    /// - Returns: its new version.
    private func write(
        _ wave: ProviderWave, _ tenant: TenantName, due: Timestamp, over version: Int64
    ) async throws(StoreError) -> Int64 {
        let (change, next) = records.change(of: wave, tenant, due: due, over: version)
        try await records.commit([change])
        return next
    }

    private func goOn(_ stored: ProviderWave, _ version: Int64, _ name: TenantName) async throws(StoreError) {
        guard let tenant = try await tenant(name) else {
            // Another replica may be able to read it.
            _ = try await write(stored, name, due: time.now.advanced(by: Self.patience), over: version)
            return
        }
        waves.begun(stored, name)
        if !tenant.configuration.wave.isOn { return try await end(stored, version, tenant) }
        if !stored.ended.isEmpty { return try await putBack(stored, version, tenant) }
        if let renewed = try await refutation(of: stored, tenant) {
            return try await end(stored, version, tenant, provenBy: renewed)
        }
        try await tryNext(stored, version, tenant)
    }

    /// The tenant as it is stored; nil where it is gone, or cannot be read now.
    private func tenant(_ name: TenantName) async throws(StoreError) -> Tenant? {
        do throws(BrokerError) {
            return try await renewer.tenants.currentTenant(name)
        } catch {
            if error.code == .storageUnavailable { throw .unavailable }
            return nil
        }
    }

    /// Puts back what ended before the wave was noticed.
    private func putBack(_ stored: ProviderWave, _ version: Int64, _ tenant: Tenant) async throws(StoreError) {
        // Until it is done, another replica that finds the mark goes on with it.
        let next = try await write(stored, tenant.name, due: time.now.advanced(by: Self.patience), over: version)
        for storageKey in stored.ended {
            if Task.isCancelled { return }
            let id = CredentialsID(tenant: tenant.name, storageKey: storageKey)
            try await sets.putBack(id, in: stored, of: tenant)
        }
        var wave = stored
        wave.ended = []
        _ = try await write(
            wave, tenant.name, due: time.now.advanced(by: tenant.configuration.wave.trial), over: next)
    }

    /// Has the provider tried with the held set that comes after the last one; frees all where it accepts that, and where no set
    /// is held any more. Where it refuses that, as it has refused each for the days of the quarantine, the session of that set
    /// ends, and no other one.
    private func tryNext(_ stored: ProviderWave, _ version: Int64, _ tenant: Tenant) async throws(StoreError) {
        let set: HeldSets.HeldSet
        switch try await sets.next(after: stored.last, in: stored, tenant.name) {
        case .set(let found): set = found
        case .none: return try await end(stored, version, tenant)
        case .unknown:
            // Another build may be able to read them, or an operator ends them.
            let due = time.now.advanced(by: tenant.configuration.wave.trial)
            _ = try await write(stored, tenant.name, due: due, over: version)
            return
        }
        var wave = stored
        wave.last = set.id.storageKey
        // Moves the mark, so that one replica makes the trial.
        let due = time.now.advanced(by: tenant.configuration.wave.trial)
        let next = try await write(wave, tenant.name, due: due, over: version)
        let (outcome, isRefused) = await waves.trying(set.id) {
            await renewer.renewAhead(set.id, of: tenant, version: set.heldVersion)
        }
        log.info(
            "wave_tried",
            LogField.credentials(set.id) + [
                outcome == .renewed ? .outcome("accepted") : isRefused ? .outcome("refused") : .outcome("unknown")
            ])
        if outcome == .renewed { return try await end(wave.number, tenant) }
        guard isRefused else { return }
        wave.note(refused: set.id.storageKey, at: time.now)
        _ = try await write(wave, tenant.name, due: due, over: next)
        // Without a quarantine the refresh token would be gone for good, so that only an operator ends the session.
        guard renewer.quarantine > .zero, wave.isFinal(at: time.now, after: max(renewer.quarantine, Self.shortestHold))
        else { return }
        try await sets.end(set, of: tenant)
    }

    /// Ends the wave of that number. The call to the provider may have taken so long that another replica has made the next trial
    /// meanwhile, and has written the wave's record anew.
    private func end(_ number: Int64, _ tenant: Tenant) async throws(StoreError) {
        for _ in 0..<Self.tries {
            guard let (wave, version) = try await records.wave(tenant.name), wave.number == number else { return }
            do throws(StoreError) {
                return try await end(wave, version, tenant)
            } catch .conflict {
                continue
            }
        }
    }

    /// Whether the provider shows that it does not refuse all users, by refreshing sets whose refresh tokens were granted before the
    /// wave: as many as begin a wave, and so many that the held sets are not the share of both that begins one. A wave lasts for a
    /// window at least, so that a fault that spreads from one server there to the next is not taken for its end.
    /// - Returns: how many sets were refreshed; nil where the wave goes on.
    private func refutation(of wave: ProviderWave, _ tenant: Tenant) async throws(StoreError) -> Int? {
        let settings = tenant.configuration.wave
        guard wave.since.advanced(by: settings.window) <= time.now else { return nil }
        let renewed = try await waves.tallies.proven(tenant.name, in: wave.number)
        guard renewed >= settings.users else { return nil }
        let isWave = try await sets.areEnough(of: tenant.name) { settings.isWave(refused: $0, renewed: renewed) }
        return isWave ? nil : renewed
    }

    /// The wave is over: the provider accepts refresh tokens again, or no set is held any more.
    /// - Parameter renewed: how many refreshes have refuted it; nil where another thing ends it.
    private func end(
        _ wave: ProviderWave, _ version: Int64, _ tenant: Tenant, provenBy renewed: Int? = nil
    ) async throws(StoreError) {
        let now = time.now
        var changes: [VaultChange] = [
            .require(RecordID(.tenant, tenant.name)),
            .remove(CredentialsRecords.waveID(tenant.name), version: version),
            records.changeFreeing(wave, tenant.name),
            BrokerEvent.entry(
                [.providerRecovered(tenant.name, from: .wave, since: wave.since, at: now)], of: tenant.name,
                key: "", at: now),
        ]
        if let renewed {
            let known = try await records.waveRefusals(tenant.name)
            var refusals = known?.refusals ?? WaveRefusals()
            refusals.note(proven: renewed, at: now)
            changes.append(records.change(of: refusals, tenant.name, over: known?.version))
        }
        try await records.commit(changes, of: tenant.name)
        waves.ended(tenant.name)
        log.warning("wave_over", [.tenant(tenant.name), .provider(tenant.configuration.preset)])
        waves.work.signal(0)
    }

    // MARK: After a wave

    /// Tells listeners of each set that was held, and removes the marks.
    private func tellFreed(_ wave: ProviderWave, _ due: DueRecord) async throws(StoreError) {
        var version = due.version
        var place: RecordID?
        while !Task.isCancelled {
            // Moves the mark, so that one replica does it, and another one if this one dies.
            let record = OpenRecord(
                id: due.id, version: records.nextVersion(after: version), content: SecretBytes(wave.encoded),
                due: time.now.advanced(by: Self.patience))
            try await records.commit([.replace(record, version: version)])
            version = record.version
            let marks = try await records.vault.listSealed(
                .held, tenant: due.id.tenant, after: place, limit: Self.setsAtOnce)
            for mark in marks { try await sets.free(mark, from: wave) }
            guard marks.count == Self.setsAtOnce else {
                return try await records.commit([.remove(due.id, version: version)])
            }
            place = marks.last?.id
        }
    }
}
