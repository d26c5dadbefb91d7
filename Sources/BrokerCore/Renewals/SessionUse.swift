import CredentialStore
import OAuth
import Reactor
import Renewal
import Waiting

/// Work with the refresh token of a session that does not spend it. No renewal of the storage key runs meanwhile, at any
/// replica: both take the lease in the record's row.
struct SessionUse {
    /// What is known while the lease is held.
    struct Held {
        let snapshot: CredentialsSnapshot
        let lease: OwnLease
    }

    private let renewer: CredentialsRenewer
    private let id: CredentialsID
    private let tenant: Tenant
    /// For how long the work waits for a renewal that is under way.
    private static let patience: Duration = .seconds(30)

    private var records: CredentialsRecords { renewer.records }

    init(_ renewer: CredentialsRenewer, _ id: CredentialsID, of tenant: Tenant) {
        self.renewer = renewer
        self.id = id
        self.tenant = tenant
    }

    /// Runs `body` under the lease, on credentials that have no lease of another holder.
    /// - Parameters:
    ///   - prepare: looks at what is stored before the lease is taken, and says what is to be stored first; nil for nothing. It
    ///     is asked again about what was stored.
    ///   - server: the provider, at which a place is taken while `body` runs.
    ///   - body: the work. It ends the lease by one of the two `end` methods, unless it throws.
    /// - Throws: what the two closures throw; `retryable_error` where another renewal does not end; `storage_unavailable`.
    func run<R>(
        at server: AuthorizationServer,
        prepare: (CredentialsSnapshot) throws(BrokerError) -> CredentialRecord?,
        _ body: (Held) async throws(BrokerError) -> R
    ) async throws(BrokerError) -> R {
        let latest = records.time.monotonic.advanced(by: Self.patience)
        var isFirst = true
        while true {
            if !isFirst, latest <= records.time.monotonic {
                throw BrokerError(
                    .retryableError, "The credentials are being renewed all the time. Ask again.", retryAfter: 1)
            }
            isFirst = false
            let ticket = records.changes.ticket(id)
            if records.unpublished(id) != nil {
                // The store has the spent refresh token. The token that replaced it is in the journal.
                guard await renewer.publisher.isPublished(id, since: ticket) else {
                    throw BrokerError(StoreError.unavailable)
                }
            }
            let (snapshot, lease) = try await read()
            if snapshot.record.waiting != nil {
                _ = try await renewer.verification.verify(id, of: tenant, snapshot).get()
                continue
            }
            let next = try prepare(snapshot)
            if let lease, !lease.isSettled {
                if lease.hasRunOut || renewer.holders.isGone(lease.holder) {
                    // Its refresh token may be spent.
                    try await renewer.recover(id)
                } else {
                    await records.changes.wait(for: id, since: ticket) { [time = records.time] in
                        try? await time.sleep(for: CredentialsRecords.changeInterval)
                    }
                }
                if Task.isCancelled {
                    throw BrokerError.shuttingDown
                }
            } else if let next {
                try await store(next, over: snapshot)
            } else if let result = try await underLease(snapshot, replacing: lease?.holder, at: server, body) {
                return result
            }
        }
    }

    private func read() async throws(BrokerError) -> (CredentialsSnapshot, Lease?) {
        do throws(StoreError) {
            return try await records.readWithLease(id)
        } catch {
            records.report(error, id)
            throw BrokerError(error)
        }
    }

    /// Stores a record before the work, unless a renewal has begun meanwhile. No answer shows what has changed.
    private func store(_ record: CredentialRecord, over snapshot: CredentialsSnapshot) async throws(BrokerError) {
        let lease = ownLease()
        defer { lease.end() }
        var record = record
        record.heldSince = snapshot.heldVersion
        do throws(StoreError) {
            _ = try await records.write(
                records.prepare(record, id, over: snapshot.version, lease: .fenced(for: lease.holder)) { _ in [] }, id)
        } catch .conflict {
            return
        } catch {
            records.report(error, id)
            throw BrokerError(error)
        }
    }

    private func ownLease() -> OwnLease {
        OwnLease(on: CredentialsRecords.recordID(id), of: id, by: renewer.keeper)
    }

    /// - Returns: nil where the lease could not be taken.
    private func underLease<R>(
        _ snapshot: CredentialsSnapshot, replacing settled: String?, at server: AuthorizationServer,
        _ body: (Held) async throws(BrokerError) -> R
    ) async throws(BrokerError) -> R? {
        let rules = renewer.rules(for: nil, of: tenant)
        let lease = ownLease()
        defer { lease.end() }
        return try await renewer.providers.endpoint.budget.withPlace(
            for: tenant.configuration.client, at: server, of: tenant.name
        ) { () async throws(BrokerError) -> R? in
            var claim = lease.claim(by: rules, notAfter: records.claimDeadline)
            claim.replacing = settled
            do throws(StoreError) {
                try await lease.take(claim, on: snapshot.version)
            } catch .conflict {
                return nil
            } catch {
                lease.noteUnreleased()
                records.report(error, id)
                throw BrokerError(error)
            }
            let extending = lease.beginExtending(by: lease.claim(by: rules), on: snapshot.version, rules)
            defer { lease.endExtending(extending) }
            let held = Held(snapshot: snapshot, lease: lease)
            do throws(BrokerError) {
                return try await body(held)
            } catch {
                await end(held, telling: [])
                throw error
            }
        }
    }

    /// Ends the lease. The events are told even if the lease is lost already.
    func end(_ held: Held, telling events: [BrokerEvent]) async {
        do throws(StoreError) {
            let release = held.lease.release(held.snapshot.version, LeaseRelease(.settled))
            try await held.lease.giveBack(by: [[release], []], telling: events)
        } catch {
            if error != .conflict { records.report(error, id) }
        }
        // Renewals of this process may wait for the lease; other replicas are told by the store.
        records.changes.signal(id)
    }

    /// Stores a record in place of the one that was worked with, which ends the lease. A store that does not answer is asked again
    /// a few times.
    /// - Returns: whether it is stored.
    func end(_ held: Held, storing record: CredentialRecord, telling events: [BrokerEvent]) async -> Bool {
        var record = record
        record.heldSince = nil
        let prepared = records.prepare(
            record, id, over: held.snapshot.version, lease: .fenced(for: held.lease.holder)
        ) { _ in events }
        for attempt in 1...3 {
            do throws(StoreError) {
                _ = try await records.write(prepared, id)
                return true
            } catch .conflict {
                return false
            } catch {
                records.report(error, id)
                if attempt < 3 { try? await records.time.sleep(for: CredentialsRecords.pause(beforeTry: attempt)) }
            }
        }
        return false
    }
}
