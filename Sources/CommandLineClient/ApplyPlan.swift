import ExternalText
import HTTPCodec
import JSON

/// What has to be done so that a broker is what a file says.
final class ApplyPlan: Sendable {
    struct Step: Sendable {
        enum Kind: String {
            case provider, tenant, client, key
        }

        let kind: Kind
        /// Of a client and a key.
        let tenant: String?
        let name: String
        let isNew: Bool
        let difference: Difference
        let request: BrokerAPI.Request
        /// What the request replaces, where the broker gives it no `ETag` that the request could name.
        var replaced: Replaced?

        struct Replaced {
            let path: String
            /// Nil for nothing.
            let value: JSONValue?
        }

        /// `key spotify/player`
        var title: String { TextTable.shown("\(kind.rawValue) \(tenant.map { $0 + "/" } ?? "")\(name)") }
    }

    private let file: ApplyFile
    private let api: BrokerAPI
    private let setsSecrets: Bool

    /// - Parameter setsSecrets: whether the secrets of the file are set also where the broker has some.
    init(_ file: ApplyFile, _ api: BrokerAPI, setsSecrets: Bool) {
        self.file = file
        self.api = api
        self.setsSecrets = setsSecrets
    }

    /// Does a step, if what it replaces is still what was compared.
    /// - Throws: `failed` where that has been changed meanwhile, and what the broker refuses.
    func carryOut(_ step: Step) async throws(CommandError) -> BrokerAPI.Answer {
        if let replaced = step.replaced {
            let answer = try await api.send(.init(.get, replaced.path, expected: [404]))
            let value = answer.status.code == 404 ? nil : try answer.json()
            guard value == replaced.value else {
                throw CommandError(.failed, "it was changed meanwhile by someone else, and is left as it is")
            }
        }
        return try await api.send(step.request)
    }

    /// In the order in which they can be done; none where nothing differs.
    /// - Throws: `refused` for an API key that is another than the file says: such are made anew only.
    func steps() async throws(CommandError) -> [Step] {
        var steps: [Step] = []
        for index in file.providers.indices {
            if let step = try await providerStep(index) { steps.append(step) }
        }
        for tenant in file.tenants {
            let (step, exists) = try await tenantStep(tenant, isGuarded: steps.allSatisfy { $0.kind != .provider })
            if let step { steps.append(step) }
            steps += try await clientSteps(tenant, exists: exists)
            steps += try await keySteps(tenant, exists: exists)
        }
        return steps
    }

    // MARK: Providers

    private func providerStep(_ index: Int) async throws(CommandError) -> Step? {
        let (name, members) = file.providers[index]
        let path = AdministrationCommands.providerPath(name)
        let answer = try await api.send(.init(.get, path, expected: [404]))
        var current = answer.status.code == 404 ? [:] : try answer.json().object ?? [:]
        var wanted = members.object ?? [:]
        for member in ["name", "source"] as [WireText] {
            current[member] = nil
            wanted[member] = nil
        }
        let difference = Difference(wanted: .object(wanted), current: .object(current), isWhole: true)
        if difference.isEmpty { return nil }
        // A profile that the broker carries has no tag; there is none that was put then.
        let request = BrokerAPI.Request(
            .put, path, json: AdministrationCommands.body(wanted), fields: Self.condition(answer.fields["ETag"]))
        return Step(
            kind: .provider, tenant: nil, name: name, isNew: answer.status.code == 404, difference: difference,
            request: request)
    }

    /// That what was compared is still there, or that there is still nothing.
    private static func condition(_ tag: WireText?) -> Fields {
        var fields: Fields = [:]
        if let tag { fields.set("If-Match", tag.text) } else { fields.set("If-None-Match", "*") }
        return fields
    }

    // MARK: Tenants

    /// - Parameter isGuarded: whether the tenant must be what was compared; false where a step before it gives the tenant another
    ///   profile, and so another tag.
    private func tenantStep(
        _ tenant: ApplyFile.Tenant, isGuarded: Bool
    ) async throws(CommandError) -> (step: Step?, exists: Bool) {
        let path = AdministrationCommands.path(tenant.name)
        let answer = try await api.send(.init(.get, path, expected: [404]))
        let exists = answer.status.code != 404
        let current = exists ? try answer.json() : .object([:])
        let difference = Difference(wanted: tenant.members, current: current, setsSecrets: setsSecrets)
        if exists, difference.isEmpty { return (nil, true) }
        let fields = exists && !isGuarded ? [:] : Self.condition(exists ? answer.fields["ETag"] : nil)
        let request = BrokerAPI.Request(
            exists ? .patch : .put, path, json: AdministrationCommands.body(difference.changes), fields: fields)
        let step = Step(
            kind: .tenant, tenant: nil, name: tenant.name, isNew: !exists, difference: difference, request: request)
        return (step, exists)
    }

    private func clientSteps(_ tenant: ApplyFile.Tenant, exists: Bool) async throws(CommandError) -> [Step] {
        var steps: [Step] = []
        for (name, members) in tenant.clients {
            let path = AdministrationCommands.path(tenant.name) + "/clients/" + BrokerAPI.segment(name)
            var current: JSONValue?
            if exists {
                let answer = try await api.send(.init(.get, path, expected: [404]))
                if answer.status.code != 404 { current = try answer.json() }
            }
            let difference = Difference(wanted: members, current: current ?? .object([:]), setsSecrets: setsSecrets)
            if current != nil, difference.isEmpty { continue }
            // A registration is sent as a whole.
            var registration = current?.object ?? [:]
            registration["client_id"] = nil
            registration["client_secret_set"] = nil
            registration.merge(difference.changes) { _, new in new }
            steps.append(
                Step(
                    kind: .client, tenant: tenant.name, name: name, isNew: current == nil, difference: difference,
                    request: .init(.put, path, json: AdministrationCommands.body(registration)),
                    replaced: .init(path: path, value: current)))
        }
        return steps
    }

    // MARK: API keys

    private func keySteps(_ tenant: ApplyFile.Tenant, exists: Bool) async throws(CommandError) -> [Step] {
        if tenant.keys.isEmpty { return [] }
        let path = AdministrationCommands.path(tenant.name) + "/api-keys"
        let keys = exists ? try await ListPages(path, "api_keys").elements(api) : []
        var steps: [Step] = []
        for (name, members) in tenant.keys {
            let named = keys.filter { $0["name"]?.string == WireText(name) }
            if named.contains(where: { Self.isSame(members, $0) }) { continue }
            if let other = named.first {
                let id = AdministrationCommands.text(of: other["id"])
                throw CommandError(
                    .refused,
                    TextTable.shown(
                        "the API key \(name) of \(tenant.name) is another than the file says, and keys do not change"),
                    next: api.next.typed("keys", "delete", id, tenant: tenant.name))
            }
            var body = members.object ?? [:]
            body["name"] = .string(WireText(name))
            steps.append(
                Step(
                    kind: .key, tenant: tenant.name, name: name, isNew: true,
                    difference: Difference(wanted: members, current: .object([:])),
                    request: .init(.post, path, json: AdministrationCommands.body(body), form: .created)))
        }
        return steps
    }

    /// Whether a key may do what the file says, and no more.
    private static func isSame(_ wanted: JSONValue, _ key: JSONValue) -> Bool {
        let compared: [WireText] = ["permissions", "storage_keys", "tenants", "identity"]
        return !compared.contains { Difference.differs(wanted[$0] ?? .null, key[$0]) }
    }
}
