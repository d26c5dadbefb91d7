package import CredentialStore
package import OAuth

/// What the broker writes into the audit log, and when it signs it.
package struct AuditTrail: BackgroundJob {
    /// Which reads of tokens the log tells of.
    package enum Reads: Sendable, Equatable {
        case none
        case all
        /// One in this many, chosen at random; 2 or more.
        case oneIn(Int)
    }

    package struct Settings: Sendable {
        /// Whether the log tells of changes. Default false.
        package var changes = false
        /// Which reads the log tells of. Default none.
        package var reads = Reads.none
        /// How often the log is signed while it grows. Default 60 s.
        package var signatureInterval: Duration = .seconds(60)

        package init() {}

        package var isOn: Bool { changes || reads != .none }
    }

    private let settings: Settings
    /// Nil where nothing is audited.
    private let chains: AuditLog?
    private let refusals = RefusedRequests()
    package let time: any Time
    private let log: Log

    init(_ settings: Settings, vault: Vault, time: any Time, log: Log) {
        self.settings = settings
        self.time = time
        self.log = log
        chains = settings.isOn ? AuditLog(vault: vault) { time.now } : nil
    }

    /// `open` has signed.
    package var firstPause: Duration? { isOn ? settings.signatureInterval : nil }

    /// Whether anything is audited.
    package var isOn: Bool { chains != nil }

    /// Whether the log tells of any reads.
    package var tellsOfReads: Bool { settings.reads != .none }

    /// The vault, which writes an entry for each change if changes are audited.
    func audited(_ vault: Vault) -> Vault {
        guard settings.changes, let chains else { return vault }
        return vault.audited(by: chains, AuditedChanges.entries)
    }

    /// Writes an entry for a read of a token, if reads are audited and this one is chosen. To be called before the token is
    /// handed out, which must not happen if this throws.
    /// - Parameters:
    ///   - action: a name of the read, such as `credentials.read`.
    ///   - version: that of the credentials; nil where none are handed out.
    ///   - outcome: nil for success, else why nothing is handed out.
    ///   - caller: who reads; nil for the caller of the present request.
    /// - Throws: `storage_unavailable` when the entry may not be in the log.
    package func tell(
        ofRead action: String, _ id: CredentialsID, version: Int64?, outcome: String? = nil, by caller: String? = nil
    ) async throws(BrokerError) {
        guard let chains, isChosen() else { return }
        var origin = AuditOrigin.current
        if let caller {
            origin = AuditOrigin(
                caller: caller, address: origin?.address, operation: origin?.operation, requestID: origin?.requestID)
        }
        let entry = AuditEntry(
            action, outcome: outcome ?? AuditEntry.done, tenant: id.tenant,
            AuditEntry.Subject("storage_key", id.storageKey.description), version: version, origin: origin)
        do throws(StoreError) {
            try await chains.record(entry)
        } catch {
            log.storeFailed(error, LogField.credentials(id))
            var problem = BrokerError(
                .storageUnavailable, "The audit log cannot be written now, so no token is handed out. Try again.",
                retryAfter: 1)
            problem.storeError = error
            throw problem
        }
    }

    /// Writes an entry for an export of credentials, if anything is audited. To be called before the first set leaves, which must
    /// not happen if this throws, and at the end.
    /// - Parameters:
    ///   - outcome: `begun`, `done`, or why it has ended before its end.
    ///   - count: how many sets have left; nil at the beginning.
    package func tell(ofExportFrom tenant: TenantName, outcome: String, count: Int?) async throws(BrokerError) {
        guard let chains else { return }
        do throws(StoreError) {
            try await chains.record(
                AuditEntry("credentials.exported", outcome: outcome, tenant: tenant, count: count))
        } catch {
            log.storeFailed(error, [.tenant(tenant)])
            var problem = BrokerError(
                .storageUnavailable, "The audit log cannot be written now, so nothing is exported. Try again.",
                retryAfter: 1)
            problem.storeError = error
            throw problem
        }
    }

    /// Writes an entry for a request of a known caller that it may not make, or counts it; see `RefusedRequests`. To be called
    /// before the answer, which is the same if the entry cannot be written, since nothing is handed out.
    package func tell(ofRefusalTo origin: AuditOrigin, tenant: TenantName?, storageKey: StorageKey?) async {
        guard isOn else { return }
        let refusal = AuditEntry.refusal(tenant: tenant, storageKey: storageKey, origin: origin)
        await write(refusals.met(refusal, at: time.monotonic))
    }

    private func write(_ entries: [AuditEntry]) async {
        guard let chains else { return }
        for entry in entries {
            do throws(StoreError) {
                try await chains.record(entry)
            } catch {
                log.storeFailed(error)
            }
        }
    }

    private func isChosen() -> Bool {
        switch settings.reads {
        case .none: false
        case .all: true
        case .oneIn(let count): Int.random(in: 0..<count) == 0
        }
    }

    /// Writes the beginning of the log of this process. To be called before the first caller is served, which then finds out
    /// that the log cannot be written.
    package func open() async throws(StoreError) {
        if let found = try await chains?.sign(isStart: true) { tell(of: found) }
    }

    private func tell(of found: AuditLog.Findings) {
        if found.changed > 0 { log.error("audit_chains_changed", [.count(found.changed)]) }
        for chain in found.damaged { log.error("audit_chain_damaged", [.store(.damaged(chain.text))]) }
    }

    /// Signs the log, writes how many refusals were only counted, and ends chains that are old enough.
    package func work() async -> NextTime {
        guard let chains else { return .never }
        await write(refusals.ended(by: time.monotonic))
        await chains.endOld()
        do throws(StoreError) {
            tell(of: try await chains.sign())
        } catch {
            log.storeFailed(error)
        }
        return .after(settings.signatureInterval)
    }

    /// Writes the end of the log of this process. Nothing may be told any more.
    func close() async {
        await write(refusals.ended(by: nil))
        await chains?.close()
    }
}
