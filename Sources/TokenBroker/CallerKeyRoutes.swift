import BrokerCore
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import OAuth

/// `/tenants/{tenant}/api-keys`, for the admin.
struct CallerKeyRoutes {
    private let broker: Broker

    init(_ broker: Broker) {
        self.broker = broker
    }

    var all: [Route] {
        [
            Route(.get, "/tenants/{tenant}/api-keys", .admin, list),
            Route(.post, "/tenants/{tenant}/api-keys", .admin, create),
            Route(.get, "/tenants/{tenant}/api-keys/{id}", .admin, get),
            Route(.delete, "/tenants/{tenant}/api-keys/{id}", .admin, delete),
            Route(.post, "/tenants/{tenant}/api-keys/{id}/rotate", .admin, rotate),
        ]
    }

    private func list(_ call: Call) async throws(BrokerError) -> Response {
        var query = try call.query()
        let page = Page(&query)
        try query.finish()
        let tenant = try await tenant(call)
        let after = try page.after { Self.isKeyID($0) ? $0.text : nil }
        let keys = try await broker.keys.list(tenant: tenant, after: after, limit: page.limit + 1)
        return await Page.answer(keys.count) { json in
            json.name("api_keys")
            json.array { json in
                for key in keys.prefix(page.limit) { json.object { encode(key, to: &$0) } }
            }
            if keys.count > page.limit { json.member("next_cursor", Page.cursor(after: keys[page.limit - 1].id)) }
        }
    }

    private func create(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let longestLife = LongestLife(broker.settings.apiKeyLongestLifetime)
        let own = call.parameters["tenant"] ?? ""
        let wanted = try await call.body { body in
            let name = body.requiredString("name", limit: 100)
            let identity = body.string("identity", limit: CallerIdentity.longest)
            if let identity, CallerIdentity(identity) == nil { body.note("identity", CallerIdentity.rule) }
            let permissions = body.requiredStrings("permissions") { text in
                Permission(text) == nil
                    ? "must be one of " + Permission.allCases.map(\.rawValue).joined(separator: ", ") : nil
            }
            let storageKeys = body.strings("storage_keys", allowsEmpty: false, atMost: StorageKeyLimit.most) {
                StorageKeyPattern($0) == nil ? StorageKeyPattern.rule : nil
            }?.compactMap { StorageKeyPattern($0) }
            if let storageKeys, storageKeys.count(where: \.isPrefix) > StorageKeyLimit.mostPrefixes {
                body.note("storage_keys", "must not have more than \(StorageKeyLimit.mostPrefixes) members with a *")
            }
            return (
                name: name?.text ?? "", identity: identity.flatMap { CallerIdentity($0) },
                permissions: Permission.allCases.filter { permissions?.contains(WireText($0.rawValue)) ?? false },
                storageKeys: storageKeys.map { StorageKeyLimit($0) },
                expiresIn: longestLife.read("expires_in", &body), tenants: Self.tenants(&body, own)
            )
        }
        let tenant = try await tenant(call)
        let (key, secret) = try await broker.keys.create(
            CallerKey.Draft(
                tenants: try await known(wanted.tenants) ?? [tenant], name: wanted.name, identity: wanted.identity,
                permissions: wanted.permissions, storageKeys: wanted.storageKeys,
                expiresIn: wanted.expiresIn ?? broker.settings.apiKeyLifetime ?? longestLife.limit))
        broker.log.info("api_key_created", [.tenant(tenant), .apiKey(APIKeyID(key.id))])
        return answer(key, secret)
    }

    /// The tenants of a key of several tenants; nil where the request names none.
    /// - Parameter own: the tenant of the path, which must be one of them: a key is listed where it was made.
    private static func tenants(_ body: inout ObjectReader, _ own: WireText) -> [WireText]? {
        let tenants = body.strings("tenants", allowsEmpty: false, atMost: CallerKey.mostTenants) {
            TenantName($0) == nil ? "must be a tenant's name" : nil
        }
        if let tenants, !tenants.contains(own) { body.note("tenants", "must name the tenant of the path, too") }
        return tenants
    }

    /// The tenants of these names.
    /// - Throws: `illegal_argument` with each that does not exist.
    private func known(_ names: [WireText]?) async throws(BrokerError) -> [TenantName]? {
        guard let names else { return nil }
        var tenants: [TenantName] = []
        var faults: [BrokerError.Fault] = []
        for (index, text) in names.enumerated() {
            if let name = TenantName(text), try await broker.tenants.tenant(name) != nil {
                tenants.append(name)
            } else {
                faults.append(.init("/tenants/\(index)", "is not the name of a tenant that exists"))
            }
        }
        if faults.isEmpty { return tenants }
        throw BrokerError(.illegalArgument, "Not every one of the tenants exists.", faults: faults)
    }

    /// The one answer that has the secret, if the key has one.
    private func answer(_ key: CallerKey, _ secret: String?) -> Response {
        .json(.created) { json in
            encode(key, to: &json)
            json.memberIfPresent("api_key", secret)
        }
    }

    /// For how long the secret before a rotation is accepted where the request does not say it, and the longest time.
    private static let overlap: (usual: Duration, longest: Int64) = (.seconds(86_400), 30 * 86_400)

    private func rotate(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let longestLife = LongestLife(broker.settings.apiKeyLongestLifetime)
        let rotation = try await call.body { body in
            CallerKey.Rotation(
                overlap: body.integer("overlap", in: 0...Self.overlap.longest).map { .seconds($0) }
                    ?? Self.overlap.usual,
                replaces: body.integer("replaces", in: 1...Int64(Int32.max)),
                expiresIn: longestLife.read("expires_in", &body), longestLife: longestLife.limit)
        }
        let tenant = try await tenant(call)
        let id = call.parameters["id"] ?? ""
        guard Self.isKeyID(id) else { throw CallerKeyDirectory.noSuchKey }
        let (key, secret) = try await broker.keys.rotate(tenant: tenant, id: id.text, rotation)
        broker.log.info("api_key_rotated", [.tenant(tenant), .apiKey(APIKeyID(key.id))])
        return answer(key, secret)
    }

    private func get(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let tenant = try await tenant(call)
        let id = call.parameters["id"] ?? ""
        guard Self.isKeyID(id), let key = try await broker.keys.key(tenant: tenant, id: id.text) else {
            throw CallerKeyDirectory.noSuchKey
        }
        return .json(.ok) { encode(key, to: &$0) }
    }

    private func delete(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let tenant = try await tenant(call)
        let id = call.parameters["id"] ?? ""
        guard Self.isKeyID(id), try await broker.keys.delete(tenant: tenant, id: id.text) else {
            throw CallerKeyDirectory.noSuchKey
        }
        broker.log.info("api_key_deleted", [.tenant(tenant), .apiKey(APIKeyID(id.text))])
        return .empty(.noContent)
    }

    private func tenant(_ call: Call) async throws(BrokerError) -> TenantName {
        guard let name = TenantName(call.parameters["tenant"] ?? ""),
            try await broker.tenants.tenant(name) != nil
        else { throw BrokerError.noSuchTenant }
        return name
    }

    private static func isKeyID(_ text: WireText) -> Bool {
        text.count == 24 && text.utf8.allSatisfy { $0.isDigit || $0.isLowercaseLetter }
    }

    private func encode(_ key: CallerKey, to json: inout JSONWriter) {
        json.member("id", key.id)
        json.member("name", key.name)
        json.memberIfPresent("identity", key.identity?.description)
        json.member("permissions", key.permissions.map(\.rawValue))
        if let storageKeys = key.storageKeys { json.member("storage_keys", storageKeys.patterns.map(\.description)) }
        if let tenants = key.tenants { json.member("tenants", tenants.map(\.description)) }
        json.member("created", key.created.description)
        json.memberOrNull("expires", key.expires?.description)
        guard let rotated = key.secret.rotated else { return }
        json.member("generation", key.secret.generation)
        json.member("rotated", rotated.description)
        json.memberOrNull("earlier_secret_expires", key.earlierSecretExpires(at: broker.time.now)?.description)
    }
}

/// For how long a new API key, or the new secret of one, may be valid.
private struct LongestLife: Sendable {
    /// The operator's limit; nil for none.
    let limit: Duration?

    init(_ limit: Duration?) {
        self.limit = limit
    }

    /// The longest life that the API knows, in seconds: ten years.
    private static let seconds: Int64 = 315_360_000

    /// The life that a member of a request asks for; nil where it does not. A life beyond the operator's limit is a fault: a
    /// caller that got a shorter one without being told would find its key expired.
    func read(_ name: WireText, _ body: inout ObjectReader) -> Duration? {
        guard let life = body.integer(name, in: 1...Self.seconds).map({ Duration.seconds($0) }) else { return nil }
        guard let limit, life > limit else { return life }
        body.note(
            name,
            "must be at most \(limit.components.seconds), for the operator's TOKEN_BROKER_API_KEY_MAX_DAYS is "
                + "\(limit.components.seconds / 86_400)")
        return nil
    }
}
