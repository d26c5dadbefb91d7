import BrokerCore
import Cryptography
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import OAuth

/// `/tenants`, for the admin.
struct TenantRoutes {
    private let broker: Broker

    init(_ broker: Broker) {
        self.broker = broker
    }

    var all: [Route] {
        [
            Route(.get, "/tenants", .admin, list),
            Route(.get, "/tenants/{tenant}", .admin, get),
            Route(.put, "/tenants/{tenant}", .admin, put),
            Route(.patch, "/tenants/{tenant}", .admin, patch),
            Route(.delete, "/tenants/{tenant}", .admin, delete),
            Route(.post, "/tenants/{tenant}/check", .admin, check),
        ]
    }

    private func list(_ call: Call) async throws(BrokerError) -> Response {
        var query = try call.query()
        let page = Page(&query)
        try query.finish()
        let after = try page.after { TenantName($0) }
        // One more tenant than requested shows whether there is a next page.
        let tenants = try await broker.tenants.list(after: after, limit: page.limit + 1)
        return await Page.answer(tenants.count) { json in
            json.name("tenants")
            json.array { json in
                for tenant in tenants.prefix(page.limit) { json.object { Self.encode(tenant, to: &$0) } }
            }
            if tenants.count > page.limit {
                json.member("next_cursor", Page.cursor(after: tenants[page.limit - 1].name.description))
            }
        }
    }

    private func get(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        guard let name = TenantName(call.parameters["tenant"] ?? ""),
            let tenant = try await broker.tenants.tenant(name)
        else { throw BrokerError.noSuchTenant }
        return answer(.ok, tenant)
    }

    private func put(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        guard let name = TenantName(call.parameters["tenant"] ?? "") else {
            throw BrokerError.invalidRequest(
                "tenant",
                "A tenant's name is 1 to 63 characters of a-z, 0-9 and hyphen, and does not begin with a hyphen.")
        }
        let targets = broker.settings.core.providerTargets
        let provider = try await call.json { (json) throws(BrokerError) in json["provider"] ?? .null }
        let profile = try await broker.core.profiles.profile(named: provider)
        let (configuration, named) = try await call.json { (json) throws(BrokerError) in
            (
                try TenantConfiguration(json, rules: targets, profile: profile),
                TenantConfiguration.namedSecrets(in: json)
            )
        }
        let change = TenantDirectory.Change(isWanted: Self.condition(call)) { previous in
            Result { () throws(BrokerError) in
                try configuration.keepingSecrets(of: previous, unless: named).keepingFinding(of: previous)
                    .withUsableClient()
            }
        }
        return try await write(name, change)
    }

    /// RFC 7396: the members of the stored configuration, changed.
    private func patch(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        guard let name = TenantName(call.parameters["tenant"] ?? "") else { throw BrokerError.noSuchTenant }
        let targets = broker.settings.core.providerTargets
        let patch = try await call.json { (json) throws(BrokerError) in json }
        guard case .object = patch else { throw BrokerError(.invalidRequest, "The body must be an object.") }
        let condition = Self.condition(call)
        let provider = patch["provider"]
        let named: ProviderPreset? =
            if let provider { try await broker.core.profiles.profile(named: provider) } else { nil }
        let change = TenantDirectory.Change(isWanted: condition) { previous in
            guard let previous else { return .failure(.noSuchTenant) }
            do throws(BrokerError) {
                let merged = TenantConfiguration.merged(previous.configuredMembers, with: patch)
                let kept = previous.preset.document == nil ? nil : previous.preset
                let changed = try TenantConfiguration(merged, rules: targets, profile: provider == nil ? kept : named)
                return .success(try changed.keepingFinding(of: previous).withUsableClient())
            } catch {
                return .failure(error)
            }
        }
        return try await write(name, change)
    }

    /// What `If-Match` and `If-None-Match` ask for (RFC 9110 §13.1.1 and §13.1.2). Nil, instead of a version, stands for nothing that
    /// is there.
    static func condition(_ call: Call) -> @Sendable (Int64?) -> Bool {
        let wanted = call.request.fields.list("If-Match")
        let unwanted = call.request.fields.list("If-None-Match")
        let (any, weak): (WireText, WireText) = ("*", "W/")
        return { version in
            guard let version else { return wanted.isEmpty }
            let tag = WireText(CredentialsSnapshot.tag(version))
            return (wanted.isEmpty || wanted.contains { $0 == any || $0 == tag })
                && !unwanted.contains { $0 == any || ($0.starts(with: weak) ? $0.dropping(weak.count) : $0) == tag }
        }
    }

    private static func hasCondition(_ call: Call) -> Bool {
        ["If-Match", "If-None-Match"].contains { !call.request.fields.list($0).isEmpty }
    }

    private func write(_ name: TenantName, _ change: TenantDirectory.Change) async throws(BrokerError) -> Response {
        let written = try await broker.tenants.put(name, change)
        let (tenant, configuration) = (written.tenant, written.tenant.configuration)
        var fields: [LogField] = [.tenant(name), .provider(configuration.preset), .version(tenant.version)]
        if configuration.effectivePins.isEmpty, !configuration.preset.pinnedCertificates.isEmpty {
            fields.append(.outcome("certificate_pinning_disabled"))
            broker.log.warning("tenant_configured", fields)
        } else {
            broker.log.info("tenant_configured", fields)
        }
        return answer(
            written.isNew ? .created : .ok, tenant, dropped: written.previous.map { configuration.dropped(from: $0) })
    }

    /// - Parameter dropped: the members that were set before, and are not now; nil for leaving that out.
    private func answer(_ status: Status, _ tenant: Tenant, dropped: [String]? = nil) -> Response {
        let warnings = tenant.configuration.warnings(at: broker.time.now)
        let redirectURI = broker.logins.redirectURI(of: tenant)
        var response = Response.json(status) { json in
            Self.encode(tenant, to: &json)
            json.member("redirect_uri", redirectURI)
            if let dropped { json.member("dropped", dropped) }
            json.name("warnings")
            json.array { json in
                for warning in warnings {
                    json.object { json in
                        json.member("code", warning.code.rawValue)
                        json.member("detail", warning.detail)
                    }
                }
            }
        }
        response.fields.append("ETag", CredentialsSnapshot.tag(tenant.version))
        return response
    }

    private func delete(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let isWanted = Self.condition(call)
        guard let name = TenantName(call.parameters["tenant"] ?? ""),
            try await broker.core.deleteTenant(name, isWanted: Self.hasCondition(call) ? isWanted : nil)
        else { throw BrokerError.noSuchTenant }
        broker.log.info("tenant_deleted", [.tenant(name)])
        return .empty(.noContent)
    }

    private func check(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        try await call.body { _ in }
        guard let name = TenantName(call.parameters["tenant"] ?? ""),
            let tenant = try await broker.tenants.tenant(name)
        else { throw BrokerError.noSuchTenant }
        let outcomes = await broker.core.tenantCheck.outcomes(of: tenant)
        broker.log.info("tenant_checked", [.tenant(name), .count(outcomes.count { !$0.isWell })])
        return .json(.ok) { json in
            json.name("checks")
            json.array { json in
                for outcome in outcomes {
                    json.object { json in
                        json.member("name", outcome.name.rawValue)
                        json.member("ok", outcome.isWell)
                        json.member("detail", outcome.detail)
                    }
                }
            }
        }
    }

    private static func encode(_ tenant: Tenant, to json: inout JSONWriter) {
        json.member("tenant", tenant.name.description)
        tenant.configuration.encode(to: &json, revealingSecret: false)
    }
}

/// The parameters `limit` and `cursor` of a list.
struct Page: Sendable {
    let limit: Int
    private let cursor: WireText?

    init(_ query: inout QueryReader) {
        limit = Int(query.integer("limit", in: 1...1000) ?? 100)
        cursor = query.string("cursor")
    }

    /// The place at which the page begins; nil for the first page.
    func after<T>(_ read: (WireText) -> T?) throws(BrokerError) -> T? {
        guard let cursor else { return nil }
        guard let place = Self.place(cursor).flatMap(read) else {
            throw BrokerError.invalidRequest("cursor", "is not the next_cursor of a list")
        }
        return place
    }

    /// The place that a cursor stands for; nil if this broker did not issue the cursor.
    static func place(_ cursor: WireText) -> WireText? {
        Base64URL.decode(cursor.text).flatMap { WireText(validating: $0.span) }
    }

    /// The approximate length of a list's element, in bytes.
    private static let elementBytes = 512

    /// The answer with `count` elements. A long answer is written on Swift's global thread pool, so that the loop is
    /// not held up.
    static func answer(_ count: Int, _ write: @Sendable (inout JSONWriter) -> Void) async -> Response {
        await InputReading.run(bytes: count * elementBytes) { .json(.ok, write) }
    }

    static func cursor(after text: String) -> String { Base64URL.encode(Array(text.utf8)) }
}
