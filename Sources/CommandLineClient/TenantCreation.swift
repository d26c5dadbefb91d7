import ExternalText
import HTTPCodec
import JSON

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
            .notFound, Nearest.complaint(about: provider, "provider", among: names, lists: false),
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
        if missing.contains("client_id"), let page = registration(members, profile) {
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
        guard isRequired || mayHaveSecret(members, profile) else { return }
        if !isRequired, !terminal.canAsk {
            // Standard input may be one that never ends.
            return terminal.note(
                "The tenant has no client secret, since \(provider) does not require one, and standard input is not read for it. "
                    + "To set one: \(api.next.typed("tenants", "set", name, "--secret")); --no-secret says that the client has none."
            )
        }
        let secret =
            invocation.terminal.secret(isRequired ? "Client secret: " : "Client secret (nothing, if it has none): ")
            ?? ""
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

    /// What the person gave, and what is to be done next, in its order. What the profile has filled in is shown by other commands.
    private func report(
        _ answer: BrokerAPI.Answer, _ members: AssignedMembers, _ profile: JSONValue
    ) throws(CommandError) {
        let tenant = try answer.json()
        if invocation.printsJSON { invocation.printLine(answer.body) } else { showGiven(tenant, members) }
        let logsIn = hasLogins(members, profile)
        if logsIn { noteRegistration(tenant, members, profile) }
        AdministrationCommands.noteWarnings(tenant, invocation)
        let count = profile["notes"]?.array?.count ?? 0
        if count > 0 {
            let next = api.next.typed("providers", "show", provider)
            terminal.note("\(count == 1 ? "A note" : "\(count) notes") on this provider: \(next)")
        }
        terminal.note("What the profile has filled in: \(api.next.typed("tenants", "show", name))")
        terminal.note(
            logsIn
                ? "Next, log a user in: \(api.next.typed("login", name))"
                : "Next, try what can be tried without a user: \(api.next.typed("tenants", "check", name))")
    }

    /// What is to be registered before a user can log in, and where.
    private func noteRegistration(_ tenant: JSONValue, _ members: AssignedMembers, _ profile: JSONValue) {
        if let redirect = tenant["redirect_uri"]?.string?.text {
            terminal.note("First, register this redirect URI at the provider:\n\n  \(TextTable.shown(redirect))\n")
        }
        if let page = registration(members, profile) {
            let isOpened = terminal.canAsk && Browser.open(page, invocation)
            terminal.note("The page for it\(isOpened ? ", which a browser opens": ""): \(TextTable.shown(page))")
        }
    }

    /// The page where clients are registered; nil where the profile knows none, and where a part of its address is not known.
    private func registration(_ members: AssignedMembers, _ profile: JSONValue) -> String? {
        guard var page = profile["registration"]?.string?.text else { return nil }
        for (name, parameter) in profile["parameters"]?.object ?? [:] {
            let value = members.members["parameters"]?[name]?.string ?? parameter["default"]?.string
            if let value { page = page.replacing("{\(name.text)}", with: value.text) }
        }
        return page.contains("{") ? nil : page
    }

    /// Whether there is, or will be found, an address where users log in. Keys that do not come by OAuth have none, and neither have
    /// accounts that the broker itself makes.
    private func hasLogins(_ members: AssignedMembers, _ profile: JSONValue) -> Bool {
        if let accounts = profile["accounts"], accounts != .null { return false }
        return profile["endpoints"]?["authorization"] != nil || profile["issuer"] != nil
            || ["issuer", "resource", "endpoints.authorization"].contains { members.has($0) }
    }

    private func showGiven(_ tenant: JSONValue, _ members: AssignedMembers) {
        var table = TextTable("MEMBER", "VALUE")
        table.add("tenant", AdministrationCommands.text(of: tenant["tenant"]))
        for (name, value) in (tenant.object ?? [:]).sorted(by: { $0.key < $1.key })
        where members.members[name] != nil {
            table.add(name.text, AdministrationCommands.text(of: SecretMembers.shown(name, value)))
        }
        table.add("client_secret", tenant["client_secret_set"]?.bool == true ? "set" : "-")
        if let redirect = tenant["redirect_uri"]?.string?.text { table.add("redirect_uri", redirect) }
        invocation.show(table)
    }
}
