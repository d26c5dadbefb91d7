import CredentialStore
import Cryptography
import ExternalText
import JSON
import OAuth

/// What the audit log tells of the changes of a commit.
enum AuditedChanges {
    /// An entry for each change that a caller has asked for or that a user may notice, with the events of the same commit.
    /// Nothing for records by which the broker organizes its work, such as leases, marks and counts.
    static func entries(of changes: [VaultChange]) -> [AuditEntry] {
        var told = changes.compactMap(Told.init)
        var entries: [AuditEntry] = []
        for change in changes {
            let (action, id, version): (String, RecordID, Int64?)
            switch change {
            case .insert(let record), .replace(let record, _, _):
                guard let name = name(of: change, record) else { continue }
                (action, id, version) = (name, record.id, record.version)
            case .remove(let removed, let old):
                // An entry has told of a profile's deletion when its record was marked, which goes later. A tenant's record goes
                // with everything under it, which has an entry.
                guard isAudited(removed.kind), removed.kind != .provider, removed.kind != .tenant,
                    !removed.isOfEarlierSecret,
                    !isOfSeveralTenants(removed)
                else { continue }
                (action, id, version) = ("\(removed.kind.rawValue).removed", removed, old)
            case .removeAll(let tenant): (action, id, version) = ("tenant.removed", RecordID(.tenant, tenant), nil)
            case .require, .settleDue, .claim, .release, .append, .audit: continue
            }
            var events: [String] = []
            if let index = told.firstIndex(where: { $0.isAbout(id) }) {
                events = told.remove(at: index).events
            }
            entries.append(
                AuditEntry(
                    action, tenant: id.tenant == .broker ? nil : id.tenant, subject(id), version: version,
                    events: events))
        }
        // What happened without a change of an audited record, such as a login that has failed.
        for told in told {
            entries.append(
                AuditEntry(
                    told.events.last ?? "", outcome: told.error ?? AuditEntry.done, tenant: told.tenant,
                    told.key.isEmpty ? nil : AuditEntry.Subject("storage_key", told.key), events: told.events))
        }
        return entries
    }

    /// The events of one entry of the log of events.
    private struct Told {
        let tenant: TenantName
        let key: String
        let events: [String]
        /// Why what the last event tells of did not succeed.
        let error: String?

        /// Whether they tell of the change of these credentials.
        func isAbout(_ id: RecordID) -> Bool {
            id.kind == .credentials && tenant == id.tenant && key.utf8.elementsEqual(id.key.utf8)
        }

        /// Nil for changes that are no events, and for events of no interest.
        init?(_ change: VaultChange) {
            guard case .append(let entry) = change else { return nil }
            let events = BrokerEvent.events(in: entry.content.revealedBytes).compactMap(\.self)
                .filter { AuditedChanges.isAudited($0.kind) }
            guard let last = events.last else { return nil }
            (tenant, key) = (entry.tenant, entry.key)
            self.events = events.map(\.kind.rawValue)
            error = (try? JSONValue(parsing: last.data))?["error"]?.string?.text
        }
    }

    private static func isAudited(_ kind: BrokerEvent.Kind) -> Bool {
        switch kind {
        case .credentialsUpdated, .credentialsDeauthorized, .credentialsSubjectChanged, .credentialsDegraded,
            .credentialsHeld, .credentialsRecovered,
            .providerDegraded, .providerRecovered, .revocationFailed, .loginCompleted, .loginFailed, .sessionStarted,
            .sessionEnded,
            .appToAppApproved, .appToAppRejected, .refreshSucceeded, .refreshFailed:
            true
        case .credentialsExpiring, .refreshStarted, .refreshRefreshingAccessToken, .refreshRefreshedAccessToken,
            .refreshFetchingKeys, .refreshFetchedKeys, .refreshVerifyingAccessToken, .refreshVerifyingRefreshToken,
            .refreshSavingTokens, .streamReset:
            false
        }
    }

    private static func isAudited(_ kind: RecordKind) -> Bool {
        switch kind {
        case .tenant, .apiKey, .credentials, .quarantine, .client, .session, .biometricKey, .provider: true
        // Their records change at each poll, and events tell of their ends.
        case .login, .device: false
        case .callerIdentity, .keyCheck, .revocation, .trouble, .unpublished, .process, .recent, .lineage, .code,
            .sessionToken,
            .usedChallenge, .biometricLogin, .softwareKey, .requestCount, .sessionEnding, .endedSession,
            .keptSession, .journal, .outage, .wave, .held, .aside, .tombstone, .tombstones:
            false
        }
    }

    /// The name of what a commit does by writing this record; nil where that is of no interest.
    private static func name(of change: VaultChange, _ record: OpenRecord) -> String? {
        let kind = record.id.kind
        var isNew = false
        if case .insert = change { isNew = true }
        if kind == .login, isNew, isOfStranger(record) { return nil }
        if kind == .login || kind == .device { return isNew ? "\(kind.rawValue).begun" : nil }
        // The record of the key's newest secret tells of the key.
        guard isAudited(kind), !record.id.isOfEarlierSecret, !isOfSeveralTenants(record.id) else { return nil }
        if kind == .apiKey { return isNew ? "api-key.created" : "api-key.rotated" }
        if kind == .credentials {
            // A logout leaves a record without credentials.
            let isEmpty = CredentialRecord(decoding: record.content.revealedBytes).map { $0.granted == nil } ?? false
            return isEmpty ? "credentials.removed" : "credentials.stored"
        }
        if kind == .provider, hasMember("removed", record) { return "provider.removed" }
        return "\(kind.rawValue).\(isNew ? "created" : "changed")"
    }

    /// Whether the record has the secret of an API key of several tenants. Each of them has a share of the key, which has an entry.
    private static func isOfSeveralTenants(_ id: RecordID) -> Bool { id.kind == .apiKey && id.tenant == .broker }

    /// Whether a browser without a key has begun the login, for an app. The log tells of it once it has ended: else anyone
    /// could fill the log.
    private static func isOfStranger(_ login: OpenRecord) -> Bool {
        hasMember("app", login)
    }

    private static func hasMember(_ name: WireText, _ record: OpenRecord) -> Bool {
        (try? JSONValue(parsing: record.content.revealedBytes))?[name] != nil
    }

    private static func subject(_ id: RecordID) -> AuditEntry.Subject? {
        let name: String? =
            switch id.kind {
            case .credentials, .quarantine: "storage_key"
            case .apiKey: "key_id"
            case .client: "client_id"
            case .session: "session_id"
            case .biometricKey: "biometric_key"
            case .provider: "provider"
            case .login, .device: "login_id"
            default: nil
            }
        return name.map { AuditEntry.Subject($0, id.key) }
    }
}
