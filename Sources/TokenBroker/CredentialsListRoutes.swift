import BrokerCore
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import OAuth

/// The operations on many sets of credentials: `/credentials/list` and `/credentials/restore`.
struct CredentialsListRoutes {
    private let broker: Broker

    init(_ broker: Broker) {
        self.broker = broker
    }

    var all: [Route] {
        [
            Route(.get, "/credentials/list", .tenant(.credentialsRead), list),
            Route(.post, "/credentials/restore", .admin, restore),
        ]
    }

    // MARK: GET /credentials/list

    private func list(_ call: Call) async throws(BrokerError) -> Response {
        var query = try call.query()
        let page = Page(&query)
        let filter = CredentialsFilter(
            state: query.choice("state", CredentialsState.self),
            expiresBefore: query.timestamp("expires_before"))
        try query.finish()
        let after = try page.after { StorageKey($0) }
        let tenant = try await broker.tenant(of: call)
        let found = try await broker.core.list.list(
            tenant, only: call.narrowedStorageKeys, filter, after: after, limit: page.limit)
        return await Page.answer(found.listed.count) { json in
            json.name("credentials")
            json.array { json in
                for listed in found.listed { json.object { Self.encode(listed, of: tenant.name, to: &$0) } }
            }
            if let next = found.next { json.member("next_cursor", Page.cursor(after: next.description)) }
        }
    }

    private static func encode(_ listed: ListedCredentials, of tenant: TenantName, to json: inout JSONWriter) {
        json.member("storage_key", listed.storageKey.description)
        json.member(
            "storage_key_digest",
            CredentialsID(tenant: tenant, storageKey: listed.storageKey).storageKeyDigest)
        json.member("state", listed.state.rawValue)
        json.member("level", listed.level.rawValue)
        json.memberOrNull("user_id", listed.userID?.text)
        json.memberOrNull("expires", listed.expires?.description)
        json.member("refreshable", listed.isRefreshable)
        ForeseenEnd.encode(listed.end, to: &json)
        json.memberOrNull("last_refresh", listed.lastRefresh?.description)
        if let failure = listed.lastError {
            json.name("last_error")
            json.object { json in
                json.member("code", failure.code)
                json.memberIfPresent("error_code", failure.errorCode)
                json.member("time", failure.last.description)
                json.member("since", failure.first.description)
            }
        } else {
            json.memberOrNull("last_error", nil)
        }
        json.memberIfPresent("ended", listed.session?.time.description)
        json.memberIfPresent("cause", listed.session?.cause.rawValue)
        json.memberIfPresent("kept_until", listed.quarantinedUntil?.description)
        if !listed.differences.isEmpty { json.member("configuration_differences", listed.differences) }
    }

    // MARK: POST /credentials/restore

    private enum Subjects: Sendable {
        case one(StorageKey)
        case named([StorageKey])
        case ended(ClosedRange<Timestamp>, EndedSession.Cause?, after: StorageKey?)
    }

    private struct Wanted: Sendable {
        let subjects: Subjects
        let mode: CredentialsRestorer.Mode
    }

    /// The most sets of credentials that one call restores.
    private static let restoredAtMost = 1000

    private func restore(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let wanted = try await call.body(Self.wanted)
        let tenant = try await broker.tenant(of: call)
        switch wanted.subjects {
        case .one(let storageKey):
            let id = CredentialsID(tenant: tenant.name, storageKey: storageKey)
            let restored = try await broker.core.restorer.restore(id, of: tenant, wanted.mode)
            return CredentialsRoutes.summary(storageKey, restored.held, restored.snapshot)
        case .named(let storageKeys): return await restore(storageKeys, of: tenant, wanted.mode, next: nil)
        case .ended(let span, let cause, let after):
            let (storageKeys, next) = try await broker.core.list.quarantined(
                tenant.name, after: after, limit: Self.restoredAtMost
            ) { kept in
                guard let session = kept.session else { return false }
                return span.contains(session.time) && (cause == nil || session.cause == cause)
            }
            return await restore(storageKeys, of: tenant, wanted.mode, next: next)
        }
    }

    private static func wanted(_ body: inout ObjectReader) -> Wanted {
        let (isDry, verifies) = (body.bool("dry_run") ?? false, body.bool("verify") ?? false)
        if isDry, verifies { body.refuse("verify", "asks the provider, and dry_run does not: use one of them") }
        return Wanted(subjects: subjects(&body), mode: isDry ? .dry : verifies ? .verifying : .plain)
    }

    private static func subjects(_ body: inout ObjectReader) -> Subjects {
        let storageKeys = body.strings("storage_keys", allowsEmpty: false, atMost: restoredAtMost) {
            StorageKey($0) == nil ? StorageKey.rule : nil
        }
        if let storageKeys {
            for name: WireText in ["storage_key", "ended_since", "ended_until", "cause", "cursor"] {
                body.refuse(name, "is not used together with storage_keys")
            }
            // A storage key that is named twice is restored once.
            var seen: Set<StorageKey> = []
            return .named(storageKeys.compactMap { StorageKey($0) }.filter { seen.insert($0).inserted })
        }
        guard let since = body.timestamp("ended_since") else {
            for name: WireText in ["ended_until", "cause", "cursor"] {
                body.refuse(name, "is used together with ended_since only")
            }
            return .one(body.storageKey())
        }
        body.refuse("storage_key", "is not used together with ended_since")
        let until = body.timestamp("ended_until") ?? .latest
        if until < since { body.note("ended_until", "is before ended_since") }
        let cause = body.choice("cause", EndedSession.Cause.self)
        if cause == .logout { body.note("cause", "must be revoked or expired, because a logout quarantines nothing") }
        let cursor = body.string("cursor")
        let after = cursor.flatMap(Page.place).flatMap { StorageKey($0) }
        if cursor != nil, after == nil { body.note("cursor", "is not the next_cursor of a restore") }
        return .ended(since...max(since, until), cause, after: after)
    }

    private func restore(
        _ storageKeys: [StorageKey], of tenant: Tenant, _ mode: CredentialsRestorer.Mode, next: StorageKey?
    ) async -> Response {
        let results = await broker.core.restorer.restore(storageKeys, of: tenant, mode)
        return await Page.answer(results.count) { json in
            json.name("outcomes")
            json.array { json in
                for (storageKey, result) in zip(storageKeys, results) {
                    json.object { json in
                        json.member("storage_key", storageKey.description)
                        switch result {
                        case .success: json.member("outcome", "restored")
                        case .failure(let error):
                            json.member("outcome", "failed")
                            json.member("code", error.code.rawValue)
                            json.memberIfPresent("error_code", error.errorCode)
                            json.member("detail", error.detail)
                        }
                    }
                }
            }
            if let next { json.member("next_cursor", Page.cursor(after: next.description)) }
        }
    }
}
