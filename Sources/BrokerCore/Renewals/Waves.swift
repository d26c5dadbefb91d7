internal import Containers
internal import CredentialStore
internal import Cryptography
internal import OAuth
internal import Reactor
internal import Synchronization
internal import Waiting

/// The brake on waves: where a provider refuses the refresh tokens of many users of a tenant at once, as after a bad deployment
/// there, their sessions are held and do not end. A held set is not renewed; its token is served while it lives. `WaveJob` tries
/// one held set from time to time, and the first that the provider accepts frees all.
///
/// All replicas count the refusals in one record of the tenant (`WaveRefusals`), which each commit replaces that ends a session
/// by one. So the commit that begins a wave (`ProviderWave`) makes each such commit a conflict that is under way, and none is
/// forgotten. Only the refusals that come before the wave is noticed end sessions, and these are put back.
package final class Waves: Sendable {
    private struct State {
        /// The tenants with a wave, as this replica knows them; nil where the wave's number is still to be read.
        var numbers: [TenantName: Int64?] = [:]
        /// The sets that are being tried.
        var trials: Set<CredentialsID> = []
        /// The trials that the provider has refused.
        var refusedTrials: Set<CredentialsID> = []
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
    /// Names this replica in the record of the refusals.
    private let process = RefreshID().text
    private let counts = RenewalCounts()
    private let state = Mutex(State())
    /// A set that is forgotten is looked up in the store.
    private let held = Mutex(BoundedTable<CredentialsID, Held>(capacity: 16_384))
    /// Signalled when `WaveJob` has something to do.
    let work = KeyedSignal<Int>()

    init(records: CredentialsRecords, metrics: Metrics) {
        self.records = records
        self.metrics = metrics
        (time, log) = (records.time, records.log)
        records.bus.onChange(of: .wave) { [weak self] id, version in self?.changed(id, version) }
        records.bus.onChange(of: .held) { [weak self] id, version in
            if version == nil, let id = CredentialsID(id) { self?.forget(id) }
        }
        records.bus.onRemoval { [weak self] tenant in self?.ended(tenant) }
    }

    /// How many tenants have a wave.
    package var count: Int { state.withLock { $0.numbers.count } }

    // MARK: What this replica knows

    private func changed(_ id: RecordID, _ version: Int64?) {
        if CredentialsRecords.isWave(id) {
            if version == nil { ended(id.tenant) } else { found(id.tenant) }
        }
        if id != CredentialsRecords.refusalsID(id.tenant) { work.signal(0) }
    }

    private func forget(_ id: CredentialsID) { held.withLock { _ = $0.removeValue(forKey: id) } }

    private func found(_ tenant: TenantName) {
        state.withLock { state in
            if state.numbers[tenant] == nil { state.numbers[tenant] = .some(nil) }
        }
    }

    func begun(_ wave: ProviderWave, _ tenant: TenantName) {
        state.withLock { $0.numbers[tenant] = wave.number }
    }

    func ended(_ tenant: TenantName) {
        state.withLock { _ = $0.numbers.removeValue(forKey: tenant) }
    }

    /// Makes what this replica knows what the store has.
    func adopt(_ tenants: Set<TenantName>) {
        state.withLock { state in
            for known in state.numbers.keys where !tenants.contains(known) { state.numbers[known] = nil }
        }
        for tenant in tenants { found(tenant) }
    }

    /// Whether the tenant has a wave, as far as this replica knows.
    func isOn(_ tenant: TenantName) -> Bool { state.withLock { $0.numbers[tenant] != nil } }

    /// The number of the tenant's wave; nil where there is none.
    func current(_ tenant: TenantName) async throws(StoreError) -> Int64? {
        guard let known = state.withLock({ $0.numbers[tenant] }) else { return nil }
        if let known { return known }
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
        let number = state.withLock { $0.trials.contains(id) ? nil : $0.numbers[id.tenant] ?? nil }
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
    func noteRenewed(_ tenant: Tenant) {
        let wave = tenant.configuration.wave
        if wave.isOn { counts.add(tenant.name, wave.window, at: time.now) }
    }

    /// Decides about a session whose refresh the provider has refused as over. Begins a wave where this refusal makes one.
    /// - Parameter errorCode: the provider's; nil where it has sent none.
    func judge(_ id: CredentialsID, of tenant: Tenant, errorCode: String?) async throws(StoreError) -> Verdict {
        let settings = tenant.configuration.wave
        guard settings.isOn else { return .ends([]) }
        for _ in 0..<Self.tries {
            // In this order: a wave that begins after the first of these reads replaces what it has read.
            let known = try await records.waveRefusals(tenant.name)
            if let wave = try await records.wave(tenant.name)?.wave {
                begun(wave, tenant.name)
                noteRefused(id)
                return .held(wave)
            }
            let now = time.now
            var refusals = known?.refusals ?? WaveRefusals()
            refusals.add(id.storageKey, at: now, within: settings.window)
            let beginning = refusals.beginning(at: now, settings.window)
            refusals.note(
                renewed: counts.count(tenant.name, settings.window, since: beginning, at: now), by: process, at: now)
            guard refusals.isWave(settings) else {
                return .ends([records.change(of: refusals, tenant.name, over: known?.version)])
            }
            do throws(StoreError) {
                return .held(try await begin(refusals, id, over: known?.version, of: tenant, errorCode))
            } catch .conflict {
                // Another replica has counted, or begun the wave; or the tenant was removed.
                continue
            }
        }
        throw .conflict
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
