import BrokerCore
import ExternalText
import HTTPCodec
import HTTPSClient
import HTTPServer
import JSON
import OAuth

/// `/providers`: the profiles that a tenant's `provider` can name, for people who choose, and those of them that operators put.
struct ProviderRoutes {
    private let broker: Broker
    private var profiles: OperatorProfiles { broker.core.profiles }

    init(_ broker: Broker) {
        self.broker = broker
    }

    var all: [Route] {
        [
            Route(.get, "/providers", .anyKey, list),
            Route(.get, "/providers/{name}", .anyKey, get),
            Route(.put, "/providers/{name}", .admin, put),
            Route(.delete, "/providers/{name}", .admin, delete),
        ]
    }

    /// Where a profile is from.
    private enum Source: String, CaseIterable {
        /// The program carries it.
        case shipped
        /// It was put.
        case `operator`
    }

    private static let sourceMember: WireText = "source"

    /// What the list tells of a profile; the rest is in its document.
    private static let listed: [WireText] = [
        "name", "title", "documentation", "registration", "as_of", "required", "notes", "changes", "refresh_tokens",
    ]

    private func list(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let own = Dictionary(try await profiles.all().map { ($0.name, $0.document) }, uniquingKeysWith: { $1 })
        let names = Set(ShippedProfiles.names.map { WireText($0) }).union(own.keys).sorted()
        return await Page.answer(names.count) { json in
            json.name("providers")
            json.array { json in
                for name in names {
                    let members = (own[name] ?? ShippedProfiles.document(name))?.object ?? [:]
                    json.object { json in
                        for name in Self.listed { if let value = members[name] { json.member(name.text, value) } }
                        json.member(Self.sourceMember.text, Self.source(isOwn: own[name] != nil))
                    }
                }
            }
        }
    }

    private static func source(isOwn: Bool) -> String { (isOwn ? Source.operator : .shipped).rawValue }

    private func get(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let name = call.parameters["name"] ?? ""
        if let own = try await profiles.profile(name) { return Self.answer(.ok, own) }
        guard let document = ShippedProfiles.document(name) else {
            throw BrokerError(.notFound, "There is no provider of that name. GET /providers lists them.")
        }
        return Self.answer(.ok, document, isOwn: false)
    }

    private static func answer(_ status: Status, _ document: JSONValue, isOwn: Bool) -> Response {
        .json(status) { json in
            for (name, value) in (document.object ?? [:]).sorted(by: { $0.key < $1.key }) {
                json.member(name.text, value)
            }
            json.member(sourceMember.text, source(isOwn: isOwn))
        }
    }

    private static func answer(_ status: Status, _ own: OperatorProfile) -> Response {
        var response = answer(status, own.document, isOwn: true)
        response.fields.append("ETag", CredentialsSnapshot.tag(own.version))
        return response
    }

    private func put(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let name = call.parameters["name"] ?? ""
        guard ProviderPreset.isName(name) else {
            throw BrokerError.invalidRequest(
                "name",
                "A provider's name is 1 to 63 characters of a-z, 0-9 and hyphen, and does not begin with a hyphen.")
        }
        // Elsewhere no body counts as an empty object. Here that would put a profile with nothing in it in the place of another.
        if call.request.body.isEmpty {
            throw BrokerError(
                .invalidRequest,
                "The body is missing: send the whole profile as a JSON object, with application/json as its Content-Type. GET "
                    + "/providers/{name} shows what it consists of.",
                faults: [.init("", "is required")])
        }
        let isWanted = TenantRoutes.condition(call)
        let targets = broker.settings.core.providerTargets
        let change = try await call.json { (json) throws(BrokerError) in
            var document = try Self.document(json, named: name)
            if case .object(let members) = document, members.values.contains(.null) {
                // A member that is null is one that is left out, but it must be one that there is.
                _ = try Self.read(document, targets)
                document = .object(members.filter { $0.value != .null })
            }
            return OperatorProfiles.Change(try Self.read(document, targets), document, isWanted: isWanted)
        }
        let written = try await profiles.put(change)
        broker.log.info(
            "provider_configured",
            [.provider(written.profile.profile), .version(written.profile.version), .count(written.tenants)])
        return Self.answer(written.isNew ? .created : .ok, written.profile)
    }

    /// The document of the content, with the name of the path and without what only answers have. A member may be null.
    private static func document(_ content: JSONValue, named name: WireText) throws(BrokerError) -> JSONValue {
        guard case .object(var members) = content else {
            throw BrokerError(.invalidRequest, "The body must be an object.")
        }
        if let source = members[sourceMember], source == .null || source.string.flatMap({ Source($0) }) != nil {
            members[sourceMember] = nil
        }
        if let own = members["name"], own != .null, own != .string(name) {
            throw BrokerError.invalidRequest("/name", "The name must be the one in the path, or be left out.")
        }
        members["name"] = .string(name)
        return .object(members)
    }

    private static func read(_ document: JSONValue, _ targets: TargetPolicy) throws(BrokerError) -> ProviderPreset {
        var faults = FaultList()
        let profile = ProviderPreset.reading(document, allowsHTTP: targets.allowsHTTP, &faults)
        try faults.check(in: "The body") { $0.pointer.isEmpty ? "The body" : $0.pointer }
        guard let profile, let length = profile.document?.count, length <= ProviderPreset.longestDocument else {
            throw BrokerError(
                .payloadTooLarge,
                "A profile must not be longer than \(ProviderPreset.longestDocument) bytes as JSON without spaces.")
        }
        return profile
    }

    private func delete(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let name = call.parameters["name"] ?? ""
        guard try await profiles.delete(name, isWanted: TenantRoutes.condition(call)) else {
            throw BrokerError(
                .notFound,
                ShippedProfiles.document(name) == nil
                    ? "There is no provider of that name. GET /providers lists them."
                    : "This provider's profile is the shipped one, which stays.")
        }
        broker.log.info("provider_deleted", [.provider(named: name)])
        return .empty(.noContent)
    }
}
