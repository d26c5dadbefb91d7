import CredentialStore
import OAuth

extension CredentialsWriter {
    /// What would become of the line now, and what is stored. Stores nothing.
    func examine(
        _ line: ImportLine
    ) async throws(BrokerError) -> (outcome: ImportLine.Outcome, snapshot: CredentialsSnapshot) {
        do throws(StoreError) {
            let current = try await records.reread(line.id, requiringTombstones: false)
            return (line.outcome(over: current.record, now: time.now) ?? .imported, current)
        } catch {
            records.report(error, line.id)
            throw BrokerError(error)
        }
    }

    /// The set of the line's grant that was put aside after the provider had exchanged the line's refresh token; nil for none.
    func putAside(by line: ImportLine) async throws(BrokerError) -> HeldCredentials? {
        do throws(StoreError) {
            return try await records.aside(line.id, of: line.grant)?.credentials
        } catch .damaged {
            return nil
        } catch {
            records.report(error, line.id)
            throw BrokerError(error)
        }
    }

    /// Stores the line's set, unless other credentials stay.
    func take(_ line: ImportLine) async throws(BrokerError) -> ImportLine.Outcome {
        do throws(StoreError) {
            var sent = Sent()
            return try await store(line, renewed: nil, waiting: nil, sending: &sent).outcome
        } catch .conflict {
            throw Self.tenantIsGone
        } catch {
            records.report(error, line.id)
            throw BrokerError(error)
        }
    }

    /// Stores the line's set, which the provider has just granted, so that its refresh token is nowhere else. A store that does not
    /// take it is asked again until it does.
    /// - Parameters:
    ///   - renewed: when it was granted.
    ///   - waiting: makes what is known of a set that is not verified yet; nil for a verified one.
    ///   - failing: called when the first try has failed.
    /// - Returns: the outcome, and what is stored then.
    func settle(
        _ line: ImportLine, renewed: Timestamp, waiting: ((_ earlier: HeldCredentials?) -> WaitingVerification)?,
        failing: () async -> Void
    ) async throws(BrokerError) -> (outcome: ImportLine.Outcome, snapshot: CredentialsSnapshot?) {
        var sent = Sent()
        return try await untilTaken(line.id, failing) { () async throws(StoreError) in
            try await self.store(line, renewed: renewed, waiting: waiting, sending: &sent)
        }
    }

    /// Puts the refresh token of a set aside that the provider has just granted and other credentials keep from being stored. A store
    /// that does not take it is asked again until it does.
    /// - Parameter quarantine: for how long it is kept, a day at least.
    func putAside(_ held: HeldCredentials, _ id: CredentialsID, for quarantine: Duration) async throws(BrokerError) {
        try await untilTaken(id) { () async throws(StoreError) in
            try await retryingConflicts { () async throws(StoreError) in
                guard try await self.records.tenantExists(id) else { return }
                let changes = try await self.records.changes(puttingAside: held, id, for: quarantine)
                try await self.records.commit([.require(RecordID(.tenant, id.tenant))] + changes)
            }
        }
    }

    private func untilTaken<R>(
        _ id: CredentialsID, _ failing: () async -> Void = {}, _ body: () async throws(StoreError) -> R
    ) async throws(BrokerError) -> R {
        try await untilStored(
            id,
            failed: { (error, tries) throws(BrokerError) in
                if error == .conflict { throw Self.tenantIsGone }
                if tries == 1 { await failing() }
            }, body)
    }

    static let tenantIsGone = BrokerError(.notFound, "The tenant was deleted meanwhile.")

    /// - Parameter sent: see `overwrite`.
    /// - Returns: the outcome, and what is stored then.
    private func store(
        _ line: ImportLine, renewed: Timestamp?, waiting: ((_ earlier: HeldCredentials?) -> WaitingVerification)?,
        sending sent: inout Sent
    ) async throws(StoreError) -> (outcome: ImportLine.Outcome, snapshot: CredentialsSnapshot?) {
        var met: (outcome: ImportLine.Outcome, snapshot: CredentialsSnapshot?)?
        let isRepeated = sent.isAny
        let stored = try await overwrite(
            line.id, with: line.held, by: .set, waiting,
            { _ throws(StoreError) in (try await self.takingUp(line), []) }, renewed: renewed,
            unless: { current in
                met = line.outcome(over: current.record, now: self.time.now).map { ($0, current) }
                if isRepeated, self.isStored(line.held, in: current) { met = (.imported, current) }
                return met != nil
            }, sending: &sent)
        return met ?? (.imported, stored)
    }

    /// The change that removes what was put aside of the line's grant, which the line's set takes the place of.
    private func takingUp(_ line: ImportLine) async throws(StoreError) -> [VaultChange] {
        guard line.wasPutAside, let aside = try await records.aside(line.id, of: line.grant) else { return [] }
        return [aside.removal]
    }
}
