import Containers
import CredentialStore
import Cryptography
import OAuth
import Reactor
import Synchronization
import Waiting

/// The brake on waves: where a provider refuses the refresh tokens of many users of a tenant at once, as after a bad deployment
/// there, their sessions are held and do not end. A held set is not renewed; its token is served while it lives. `WaveJob` tries
/// one held set from time to time, and the first that the provider accepts frees all.
///
/// All replicas count the refusals in one record of the tenant (`WaveRefusals`), which each commit replaces that ends a session
/// by one. So the commit that begins a wave (`ProviderWave`) makes each such commit a conflict that is under way, and none is
/// forgotten. Only the refusals that come before the wave is noticed end sessions, and these are put back. Before a wave begins, all
/// replicas are asked how many refreshes have succeeded (`WaveTallies`).
///
/// A wave also ends when the provider refutes it: when as many sets as begin a wave were refreshed in it with refresh tokens that
/// had been granted before it, and the held sets are not the share of both that begins one (`WaveJob`).
package final class Waves: Sendable {
    private struct State {
        /// The tenants with a wave, as this replica knows them; nil where the wave is still to be read.
        var waves: [TenantName: Known?] = [:]
        /// The sets that are being tried.
        var trials: Set<CredentialsID> = []
        /// The trials that the provider has refused.
        var refusedTrials: Set<CredentialsID> = []
    }

    private struct Known {
        let number: Int64
        let since: Timestamp
    }

    /// A set that is known to be held.
    private struct Held {
        let wave: Int64
        let digest: [UInt8]
        /// When the store is asked again: a notice that another replica has freed the set may have been lost.
        let until: MonotonicInstant
    }

    /// What is to become of a session whose refresh the provider has refused.
    enum Verdict {
        case held(ProviderWave)
        /// It ends, with these changes in the commit that ends it. A conflict with them asks for another verdict.
        case ends([VaultChange])
    }

    /// For how long a set counts as held that was found so in the store.
    private static let validity: Duration = .seconds(5)
    /// How often a verdict is tried again because another replica has counted meanwhile.
    private static let tries = 8

    private let records: CredentialsRecords
    private let metrics: Metrics
    private let time: any Time
    private let log: Log
    let tallies: WaveTallies
    private let state = Mutex(State())
    /// A set that is forgotten is looked up in the store.
    private let held = Mutex(BoundedTable<CredentialsID, Held>(capacity: 16_384))
    /// Signalled when `WaveJob` has something to do.
    let work = KeyedSignal<Int>()

    init(records: CredentialsRecords, metrics: Metrics) {
        self.records = records
        self.metrics = metrics
        (time, log) = (records.time, records.log)
        tallies = WaveTallies(records: records)
        metrics.show(.waves) { [weak self] in self?.count }
        records.bus.onChange(of: .wave) { [weak self] id, version in self?.changed(id, version) }
        records.bus.onChange(of: .held) { [weak self] id, version in
            if version == nil, let id = CredentialsID(id) { self?.forget(id) }
        }
        records.bus.onRemoval { [weak self] tenant in self?.ended(tenant) }
    }

    /// How many tenants have a wave.
    package var count: Int { state.withLock { $0.waves.count } }

    // MARK: What this replica knows

    private func changed(_ id: RecordID, _ version: Int64?) {
        if CredentialsRecords.isWave(id) {
            if version == nil { ended(id.tenant) } else { found(id.tenant) }
        }
        if id == CredentialsRecords.refusalsID(id.tenant) || CredentialsRecords.isReport(id) { return }
        if id == CredentialsRecords.questionID(id.tenant), version != nil { tallies.noteQuestion(about: id.tenant) }
        work.signal(0)
    }

    private func forget(_ id: CredentialsID) { held.withLock { _ = $0.removeValue(forKey: id) } }

    private func found(_ tenant: TenantName) {
        state.withLock { state in
            if state.waves[tenant] == nil { state.waves[tenant] = .some(nil) }
        }
    }

    func begun(_ wave: ProviderWave, _ tenant: TenantName) {
        state.withLock { $0.waves[tenant] = Known(number: wave.number, since: wave.since) }
    }

    func ended(_ tenant: TenantName) {
        state.withLock { _ = $0.waves.removeValue(forKey: tenant) }
        tallies.forgetWave(tenant)
    }

    /// Makes what this replica knows what the store has.
    func adopt(_ tenants: Set<TenantName>) {
        for known in state.withLock({ Array($0.waves.keys) }) where !tenants.contains(known) { ended(known) }
        for tenant in tenants { found(tenant) }
    }

    /// Whether the tenant has a wave, as far as this replica knows.
    func isOn(_ tenant: TenantName) -> Bool { state.withLock { $0.waves[tenant] != nil } }

    /// The number of the tenant's wave; nil where there is none.
    func current(_ tenant: TenantName) async throws(StoreError) -> Int64? {
        guard let known = state.withLock({ $0.waves[tenant] }) else { return nil }
        if let known { return known.number }
        guard let wave = try await records.wave(tenant)?.wave else {
            ended(tenant)
            return nil
        }
        begun(wave, tenant)
        return wave.number
    }

    /// Whether these credentials are held. Where the store does not answer, only sets are held that this replica knows of.
    func holds(_ credentials: HeldCredentials?, _ id: CredentialsID) async -> Bool {
        guard isOn(id.tenant), credentials?.level == .user, let digest = credentials?.refreshTokenDigest else {
            return false
        }
        do throws(StoreError) {
            guard let number = try await current(id.tenant) else { return false }
            let now = time.monotonic
            if let known = held.withLock({ $0[id] }), known.wave == number, known.digest == digest, known.until > now {
                return true
            }
            guard try await records.heldMark(id)?.mark?.holds(credentials, in: number) == true else { return false }
            held.withLock {
                _ = $0.setNewest(
                    Held(wave: number, digest: digest, until: now.advanced(by: Self.validity)), forKey: id)
            }
            return true
        } catch {
            records.report(error, id)
            return held.withLock { $0[id] }?.digest == digest
        }
    }

    /// What callers get of credentials that are held, without a call to the provider; nil where they may be renewed.
    func refusal(of credentials: HeldCredentials?, _ id: CredentialsID, _ tenant: Tenant) async -> BrokerError? {
        guard isOn(id.tenant), !state.withLock({ $0.trials.contains(id) }), await holds(credentials, id) else {
            return nil
        }
        return Self.refusal(tenant)
    }

    /// The same for a set of which this replica has found a moment ago that it is held; nil where the store is to be asked.
    func knownRefusal(of credentials: HeldCredentials?, _ id: CredentialsID, _ tenant: Tenant) -> BrokerError? {
        let number = state.withLock { $0.trials.contains(id) ? nil : ($0.waves[id.tenant] ?? nil)?.number }
        guard let number, let known = held.withLock({ $0[id] }), known.wave == number,
            known.until > time.monotonic, credentials?.refreshTokenDigest == known.digest
        else { return nil }
        return Self.refusal(tenant)
    }

    static func refusal(_ tenant: Tenant, errorCode: String? = nil) -> BrokerError {
        BrokerError(
            .illegalConfiguration,
            "The provider refuses the refresh tokens of many users at once, which looks like a fault there and not like the "
                + "end of each session. The session is held: it is kept, and the provider is tried again every "
                + "\(tenant.configuration.wave.trial.components.seconds) s with one of the held sessions. An operator can free "
                + "it by POST /credentials/restore, or end it by DELETE /credentials.",
            errorCode: errorCode, retryAfter: Int(tenant.configuration.wave.trial.components.seconds))
    }

    // MARK: Trials

    /// Lets the set be renewed although it is held, while `body` runs.
    /// - Returns: what `body` returns, and whether the provider has refused the set.
    func trying<R: Sendable>(
        _ id: CredentialsID, _ body: () async -> R
    ) async -> (result: R, isRefused: Bool) {
        state.withLock { _ = $0.trials.insert(id) }
        let result = await body()
        let isRefused = state.withLock { state in
            state.trials.remove(id)
            return state.refusedTrials.remove(id) != nil
        }
        return (result, isRefused)
    }

    private func noteRefused(_ id: CredentialsID) {
        state.withLock { state in
            if state.trials.contains(id) { state.refusedTrials.insert(id) }
        }
    }

    // MARK: Counting

    /// A refresh of the tenant has succeeded.
    /// - Parameter presented: the record whose refresh token was presented.
    func noteRenewed(_ tenant: Tenant, from presented: CredentialRecord) {
        let settings = tenant.configuration.wave
        guard settings.isOn else { return }
        let wave = state.withLock { $0.waves[tenant.name] ?? nil }
        let granted = wave == nil ? nil : presented.renewed ?? presented.held?.login
        let isProof = wave.flatMap { wave in granted.map { $0 < wave.since } } ?? false
        tallies.add(tenant.name, settings.window, provingAgainst: isProof ? wave?.number : nil)
    }

    /// Decides about a session whose refresh the provider has refused as over. Begins a wave where this refusal makes one.
    /// - Parameter errorCode: the provider's; nil where it has sent none.
    func judge(_ id: CredentialsID, of tenant: Tenant, errorCode: String?) async throws(StoreError) -> Verdict {
        let settings = tenant.configuration.wave
        guard settings.isOn else { return .ends([]) }
        var mayWait = true
        for _ in 0..<Self.tries {
            // In this order: a wave that begins after the first of these reads replaces what it has read.
            let known = try await records.waveRefusals(tenant.name)
            if let wave = try await records.wave(tenant.name)?.wave {
                begun(wave, tenant.name)
                noteRefused(id)
                return .held(wave)
            }
            var suspicion = Suspicion(tenant: tenant, refusals: known?.refusals ?? WaveRefusals(), mayWait: mayWait)
            suspicion.refusals.add(id.storageKey, at: time.now, within: settings.window)
            do throws(StoreError) {
                let (refusals, version) = (suspicion.refusals, known?.version)
                switch try await isWave(suspicion) {
                case false?: return .ends([records.change(of: refusals, tenant.name, over: version)])
                case true?: return .held(try await begin(refusals, id, over: version, of: tenant, errorCode))
                case nil: mayWait = false
                }
            } catch .conflict {
                // Another replica has counted, asked or begun the wave; or the tenant was removed.
                continue
            }
        }
        throw .conflict
    }

    /// Refusals that may be a wave.
    private struct Suspicion {
        let tenant: Tenant
        var refusals: WaveRefusals
        /// Whether the other replicas may still be asked and waited for.
        let mayWait: Bool
    }

    /// Whether the refusals are a wave by the successes of all replicas. The others are asked only where they are one by this
    /// replica's.
    /// - Returns: nil after the others were asked and have had time to answer: to be asked again, since more may have happened.
    private func isWave(_ suspicion: Suspicion) async throws(StoreError) -> Bool? {
        let (settings, tenant) = (suspicion.tenant.configuration.wave, suspicion.tenant.name)
        let now = time.now
        let since = suspicion.refusals.beginning(at: now, settings.window)
        let own = tallies.renewed(tenant, settings.window, since: since)
        guard suspicion.refusals.isWave(settings, renewed: own) else { return false }
        guard records.isShared else { return true }
        let question = WaveQuestion(time: now, since: since, window: settings.window)
        let inquiry = WaveTallies.Inquiry(tenant: tenant, question: question, mayWait: suspicion.mayWait)
        switch try await tallies.renewedElsewhere(inquiry) {
        case .known(let elsewhere): return suspicion.refusals.isWave(settings, renewed: own + elsewhere)
        case .asked(let patience):
            // This replica answers, too, for the others.
            work.signal(0)
            try? await time.sleep(for: patience)
            return nil
        }
    }

    private func begin(
        _ refusals: WaveRefusals, _ id: CredentialsID, over version: Int64?, of tenant: Tenant, _ errorCode: String?
    ) async throws(StoreError) -> ProviderWave {
        let now = time.now
        var wave = ProviderWave(number: records.nextVersion(after: 0), since: now, errorCode: errorCode)
        wave.ended = refusals.refused.map(\.storageKey).filter { $0 != id.storageKey }
        let event = BrokerEvent.providerDegraded(
            tenant.name, BrokerError(.illegalConfiguration, "", errorCode: errorCode), by: .wave,
            retryAt: now.advanced(by: tenant.configuration.wave.trial), at: now)
        try await records.commit(
            [
                .require(RecordID(.tenant, tenant.name)),
                records.change(of: WaveRefusals(), tenant.name, over: version),
                // Due at once, for the sessions that are to be put back.
                records.change(of: wave, tenant.name, due: now, over: nil).change,
                BrokerEvent.entry([event], of: tenant.name, key: "", at: now),
            ], of: tenant.name)
        log.error(
            "wave_begun",
            [.tenant(tenant.name), .provider(tenant.configuration.preset), .count(refusals.refused.count)])
        begun(wave, tenant.name)
        work.signal(0)
        return wave
    }

    /// The changes that hold a set whose refresh the provider has refused during the wave, and the event of it.
    /// - Parameter refreshID: nil for a set that is put back.
    /// - Returns: neither where the set is held already.
    func changesHolding(
        _ credentials: HeldCredentials, _ id: CredentialsID, in wave: ProviderWave, errorCode: String?,
        _ refreshID: RefreshID?
    ) async throws(StoreError) -> (changes: [VaultChange], events: [BrokerEvent]) {
        let known = try await records.heldMark(id)
        guard let digest = credentials.refreshTokenDigest, known?.mark?.holds(credentials, in: wave.number) != true
        else { return ([], []) }
        let mark = HeldMark(wave: wave.number, digest: digest, since: time.now, errorCode: errorCode)
        // A set that is put back has no mark of this wave before its record is written.
        return (
            [.require(CredentialsRecords.waveID(id.tenant)), records.change(of: mark, id, over: known?.version)],
            [.held(id, errorCode: errorCode, refreshID, at: time.now)]
        )
    }

    /// Counts a set that is held from now on.
    func noteHeld(_ id: CredentialsID, _ preset: ProviderPreset) {
        metrics.credentialsHeld(provider: preset.name)
        log.warning("credentials_held", LogField.credentials(id) + [.provider(preset)])
    }
}
