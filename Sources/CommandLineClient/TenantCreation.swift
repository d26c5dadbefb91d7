internal import ExternalText
internal import HTTPCodec
internal import JSON

/// Makes a tenant with a person's help, by what the provider's profile says.
final class TenantCreation: Sendable {
    private let invocation: Invocation
    private let api: BrokerAPI
    private let provider: String
    private let name: String

    private var terminal: any Terminal { invocation.terminal }

    init(_ invocation: Invocation, _ api: BrokerAPI) {
        self.invocation = invocation
        self.api = api
        provider = invocation.arguments[0]
        name = invocation["name"] ?? provider
    }

    func run() async throws(CommandError) {
        var members = try AdministrationCommands.assigned(invocation.values("set"), invocation)
        if invocation.has("no-secret"), invocation.has("secret-file") {
            throw invocation.wrong("--no-secret and --secret-file exclude each other")
        }
        let profile = try await profile()
        let known = try await api.send(.init(.get, AdministrationCommands.path(name), expected: [404]))
        if known.status.code != 404 { throw taken }
        try members.add("provider", .string(WireText(provider)))
        try complete(&members, profile)
        try addSecret(&members, profile)
        var fields: Fields = [:]
        fields.set("If-None-Match", "*")
        let answer = try await api.send(
            .init(
                .put, AdministrationCommands.path(name), json: AdministrationCommands.body(members.members),
                fields: fields, expected: [412]))
        if answer.status.code == 412 { throw taken }
        try report(answer, members, profile)
    }

    private var taken: CommandError {
        CommandError(
            .refused, "there is a tenant \(name) already; give this one another --name, or change that one",
            next: api.next.typed("tenants", "set", name, "MEMBER=VALUE"))
    }

    private func profile() async throws(CommandError) -> JSONValue {
        let answer = try await api.send(
            .init(.get, AdministrationCommands.providerPath(provider), expected: [404]))
        if answer.status.code != 404 { return try answer.json() }
        let list = try await api.send(.init(.get, "/providers")).json()
        let names = (list["providers"]?.array ?? []).compactMap { $0["name"]?.string?.text }
        throw CommandError(
            .notFound, Nearest.complaint(about: provider, "provider", among: names),
            next: api.next.typed("providers", "list"))
    }

    // MARK: What the provider requires

    /// Asks for what is missing, the secret apart.
    private func complete(_ members: inout AssignedMembers, _ profile: JSONValue) throws(CommandError) {
        let required = Self.required(profile)
        let missing = required.filter { $0 != "client_secret" && !members.has($0) }
        if missing.isEmpty { return }
        guard terminal.canAsk else {
            let lines = missing.map {
                "\n  \(option(for: $0, profile).joined(separator: " ")): \(meaning(of: $0, profile))"
            }
            throw CommandError(
                .usage, "\(provider) requires more:" + TextTable.shownLines(lines.joined()),
                next: invocation.again(adding: missing.flatMap { option(for: $0, profile) }))
        }
        if missing.contains("client_id"), let page = profile["registration"]?.string?.text {
            terminal.note("Clients are registered at \(TextTable.shown(page))")
        }
        for member in missing {
            let text = terminal.line(TextTable.shown("\(member) (\(meaning(of: member, profile)))") + ": ") ?? ""
            if text.isEmpty { throw invocation.wrong("\(provider) requires \(member)") }
            let scopes = text.split(separator: " ").map(String.init)
            try members.add(
                member, member == "scopes" ? AdministrationCommands.list(scopes) ?? .null : .string(WireText(text)))
        }
    }

    private static func required(_ profile: JSONValue) -> [String] {
        profile["required"]?.array?.compactMap { $0.string?.text } ?? ["client_id"]
    }

    /// How a required member is given on the command line.
    private func option(for member: String, _ profile: JSONValue) -> [String] {
        switch member {
        case "client_id": ["--client-id", "ID"]
        case "scopes": ["--scope", "SCOPE"]
        default: ["--set", "\(member)=" + (parameter(member, profile)?["example"]?.string?.text ?? "VALUE")]
        }
    }

    private func meaning(of member: String, _ profile: JSONValue) -> String {
        switch member {
        case "client_id": "the client identifier that the provider has given"
        case "issuer": "the provider's issuer, such as https://login.example"
        case "resource": "the address of what the tokens are for"
        case "scopes": "what to ask the provider for, with spaces"
        default:
            if let parameter = parameter(member, profile) {
                (parameter["description"]?.string?.text ?? member)
                    + (parameter["example"]?.string.map { " Such as \($0.text)." } ?? "")
            } else {
                "an address of the provider"
            }
        }
    }

    private func parameter(_ member: String, _ profile: JSONValue) -> JSONValue? {
        member.hasPrefix("parameters.") ? profile["parameters"]?[WireText(String(member.dropFirst(11)))] : nil
    }

    // MARK: The secret

    /// What takes the place of a secret.
    private static let otherProofs = [
        "client_secret", "client_secret_file", "client_secrets", "private_key", "client_certificate",
        "client_assertion_file",
    ]

    private func addSecret(_ members: inout AssignedMembers, _ profile: JSONValue) throws(CommandError) {
        if let secret = try AdministrationCommands.secretOfFile(invocation) {
            return try members.add("client_secret", .string(WireText(secret)))
        }
        if invocation.has("no-secret") || Self.otherProofs.contains(where: { members.has($0) }) { return }
        let isRequired = Self.required(profile).contains("client_secret")
        guard isRequired || terminal.canAsk && mayHaveSecret(members, profile) else { return }
        let secret =
            invocation.secret(isRequired ? "Client secret: " : "Client secret (nothing, if it has none): ") ?? ""
        if !secret.isEmpty { return try members.add("client_secret", .string(WireText(secret))) }
        if isRequired {
            throw invocation.wrong(
                "\(provider) requires a client secret: write it to standard input, or say --secret-file PATH")
        }
    }

    /// Whether a client that needs no secret can have one.
    private func mayHaveSecret(_ members: AssignedMembers, _ profile: JSONValue) -> Bool {
        let method = members.members["token_endpoint_auth_method"] ?? profile["token_endpoint_auth_method"]
        let takesSecret = method?.string.map { $0.starts(with: "client_secret") } ?? true
        return takesSecret && members.has("client_id")
    }

    // MARK: What was made

    /// Members of a profile that are for people, or that the report shows elsewhere.
    private static let guide: Set<WireText> = [
        "name", "title", "documentation", "registration", "as_of", "required", "notes", "changes", "parameters",
        "source",
    ]

    private func report(
        _ answer: BrokerAPI.Answer, _ members: AssignedMembers, _ profile: JSONValue
    ) throws(CommandError) {
        let tenant = try answer.json()
        let redirect = tenant["redirect_uri"]?.string?.text
        if invocation.printsJSON {
            invocation.printLine(answer.body)
        } else {
            showFilledIn(tenant, members, profile)
        }
        AdministrationCommands.noteWarnings(tenant, invocation)
        for note in profile["notes"]?.array ?? [] {
            terminal.note("Note: \(TextTable.shown(AdministrationCommands.text(of: note)))")
        }
        guard hasLogins(members, profile) else { return }
        if let redirect { terminal.note("Register this redirect URI at the provider: \(TextTable.shown(redirect))") }
        if let page = profile["registration"]?.string?.text {
            let isOpened = terminal.canAsk && Browser.open(page, invocation)
            terminal.note("The page for it\(isOpened ? ", which a browser opens": ""): \(TextTable.shown(page))")
        }
        terminal.note("Then log a user in: \(api.next.typed("login", tenant: name))")
    }

    /// Whether there is, or will be found, an address where users log in. Keys that do not come by OAuth have none.
    private func hasLogins(_ members: AssignedMembers, _ profile: JSONValue) -> Bool {
        profile["endpoints"]?["authorization"] != nil || profile["issuer"] != nil
            || ["issuer", "resource", "endpoints.authorization"].contains { members.has($0) }
    }

    private func showFilledIn(_ tenant: JSONValue, _ members: AssignedMembers, _ profile: JSONValue) {
        var table = TextTable("MEMBER", "VALUE", "FROM")
        table.add("tenant", AdministrationCommands.text(of: tenant["tenant"]), "")
        for (name, value) in (tenant.object ?? [:]).sorted(by: { $0.key < $1.key })
        where members.members[name] != nil {
            table.add(name.text, AdministrationCommands.text(of: value), "you")
        }
        table.add("client_secret", tenant["client_secret_set"]?.bool == true ? "set" : "-", "you")
        table.add("redirect_uri", AdministrationCommands.text(of: tenant["redirect_uri"]), "the broker")
        let filledIn = (profile.object ?? [:]).filter { !Self.guide.contains($0.key) && members.members[$0.key] == nil }
        for (name, value) in filledIn.sorted(by: { $0.key < $1.key }) {
            if let inner = value.object, !inner.isEmpty {
                for (part, value) in inner.sorted(by: { $0.key < $1.key }) {
                    table.add("\(name.text).\(part.text)", AdministrationCommands.text(of: value), "the profile")
                }
            } else {
                table.add(name.text, AdministrationCommands.text(of: value), "the profile")
            }
        }
        invocation.show(table)
    }
}
