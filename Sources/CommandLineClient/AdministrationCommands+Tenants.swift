import ExternalText
import HTTPCodec
import JSON

/// `token-broker tenants`.
extension AdministrationCommands {
    static let tenants = [listTenants, showTenant, createTenant, setTenant, checkTenant, deleteTenant]

    /// Of `create` and `set`.
    private static let memberOptions: [CommandSpecification.Option] = [
        .init("scope", "SCOPE", "a scope to ask the provider for", repeats: true),
        .init("redirect-uri", "URI", "an address that logins may have the provider redirect to", repeats: true),
        .init("return-uri", "URI", "an address that the browser may go to after a login", repeats: true),
        secretFile,
    ]

    private static let members =
        "Members are written as MEMBER=TEXT, such as parameters.region=eu, or as MEMBER:=JSON, such as "
        + "certificate_pinning:=false; with @PATH in the place of the value a file holds it, and null is for nothing. "

    private static let listTenants = CommandSpecification(
        "tenants list", "list the tenants",
        options: [limit],
        examples: [
            .init("token-broker tenants list", "all tenants and their providers"),
            .init("token-broker tenants list --json", "a line of JSON for each"),
        ],
        body: { invocation throws(CommandError) in
            let pages = ListPages("/tenants", "tenants", limit: try limit(invocation))
            let tenants = try await pages.elements(try invocation.broker())
            if invocation.printsJSON { return printLines(tenants, invocation) }
            var table = TextTable("NAME", "PROVIDER", "CLIENT", "SECRET", "SCOPES")
            for tenant in tenants {
                table.add(
                    text(of: tenant["tenant"]), text(of: tenant["provider"]), text(of: tenant["client_id"]),
                    tenant["client_secret_set"]?.bool == true ? "set" : "-", text(of: tenant["scopes"]))
            }
            invocation.show(table)
            if tenants.isEmpty {
                let next = invocation.next.typed("tenants", "create", "PROVIDER")
                invocation.terminal.note("There are no tenants. Make one: \(next)")
            }
        })

    private static let showTenant = CommandSpecification(
        "tenants show", "show a tenant's configuration, without its secrets",
        arguments: [.init("NAME", "the tenant; else that of --tenant", isRequired: false)],
        examples: [.init("token-broker tenants show spotify", "with the redirect URI that is to be registered")],
        body: { invocation throws(CommandError) in
            let api = try invocation.broker()
            let answer = try await api.send(.init(.get, path(try await name(invocation, api))))
            try show(answer, first: shownFirst, invocation)
            if !invocation.printsJSON { noteWarnings(try answer.json(), invocation) }
        })

    private static let createTenant = CommandSpecification(
        "tenants create", "make a tenant: a client registration at a provider",
        discussion:
            "Reads the provider's profile, asks for what it requires and for the client secret, which is not shown, makes "
            + "the tenant, and prints the redirect URI to register at the provider. A tenant that exists is not changed.\n\n"
            + members
            + "Where there is no one to ask, everything that the provider requires must stand here, and a required secret is "
            + "read from standard input unless --secret-file names a file; - is standard input there.",
        arguments: [.init("PROVIDER", "one of token-broker providers list")],
        options: [
            .init("name", "NAME", "the tenant's name; by default the provider's"),
            .init("client-id", "ID", "the client identifier that the provider has given"),
        ] + memberOptions + [
            .init("no-secret", nil, "the client has no secret: do not ask for it"),
            .init("set", "MEMBER=VALUE", "another member of the configuration", repeats: true),
            .init("no-browser", nil, "do not open the page where clients are registered"),
        ],
        examples: [
            .init(
                "token-broker tenants create spotify --client-id 4bf3", "ask for the secret, and print what to register"
            ),
            .init(
                "token-broker tenants create zendesk --client-id app --set parameters.subdomain=acme --secret-file key.txt",
                "without a question"),
            .init(
                "token-broker tenants create oidc --name work --client-id app --set issuer=https://login.example --no-secret",
                "any OpenID provider, by its issuer"),
        ],
        body: { invocation throws(CommandError) in
            try await TenantCreation(invocation, try invocation.broker()).run()
        })

    private static let setTenant = CommandSpecification(
        "tenants set", "change members of a tenant's configuration",
        discussion:
            "What is not named stays. " + members
            + "A member whose value is null is unset, and so is a list that is empty.",
        arguments: [
            .init("NAME", "the tenant"),
            .init("MEMBER=VALUE", "what to change", isRequired: false, repeats: true),
        ],
        options: [.init("client-id", "ID", "another client identifier")] + memberOptions + [
            .init("secret", nil, "ask for another client secret, or read it from standard input")
        ],
        examples: [
            .init("token-broker tenants set spotify --scope playlist-read-private", "ask for this scope only"),
            .init(
                "token-broker tenants set spotify proactive_refresh:=600 wave.users:=10", "values that are no texts"),
            .init("token-broker tenants set spotify audience=null", "unset a member"),
            .init("token-broker tenants set spotify --secret", "ask for a new client secret"),
        ],
        body: { invocation throws(CommandError) in
            var changes = try assigned(Array(invocation.arguments.dropFirst()), invocation)
            if let secret = try changedSecret(invocation) {
                try changes.add("client_secret", .string(WireText(secret)))
            }
            if changes.members.isEmpty { throw invocation.wrong("what is to be changed? Name a MEMBER=VALUE") }
            let name = invocation.arguments[0]
            let answer = try await invocation.broker().send(
                .init(.patch, path(name), json: body(changes.members)))
            try show(answer, first: shownFirst, invocation)
            if !invocation.printsJSON { noteWarnings(try answer.json(), invocation) }
        })

    private static let checkTenant = CommandSpecification(
        "tenants check", "try what can be tried at a tenant's provider without a user",
        arguments: [.init("NAME", "the tenant; else that of --tenant", isRequired: false)],
        examples: [
            .init("token-broker tenants check spotify", "addresses, certificates, metadata, keys, and the client")
        ],
        body: { invocation throws(CommandError) in
            let api = try invocation.broker()
            let answer = try await api.send(.init(.post, path(try await name(invocation, api)) + "/check"))
            let checks = try answer.json()["checks"]?.array ?? []
            if invocation.printsJSON {
                invocation.printLine(answer.body)
            } else {
                var table = TextTable("CHECK", "OK", "DETAIL")
                for check in checks {
                    table.add(text(of: check["name"]), text(of: check["ok"]), text(of: check["detail"]))
                }
                invocation.show(table)
            }
            let failed = checks.count { $0["ok"]?.bool != true }
            if failed > 0 {
                let name = try await name(invocation, api)
                throw CommandError(
                    .failed, "\(failed) of \(checks.count) checks failed",
                    next: try await lacksSecret(name, checks, api)
                        ? api.next.typed("tenants", "set", name, "--secret") : api.next.typed("tenants", "show", name))
            }
        })

    /// Whether the provider did not accept the client, and the tenant has nothing by which the client shows who it is.
    private static func lacksSecret(
        _ name: String, _ checks: [JSONValue], _ api: BrokerAPI
    ) async throws(CommandError) -> Bool {
        let isRefused = checks.contains { $0["name"]?.string == "client_authentication" && $0["ok"]?.bool != true }
        guard isRefused else { return false }
        let tenant = try await api.send(.init(.get, path(name))).json().object ?? [:]
        let isSet = { (value: JSONValue) in value.bool == true || value.integer ?? 0 > 0 }
        return !tenant.contains { $0.key.text.hasSuffix("_set") && isSet($0.value) }
            && tenant["client_secret_file"] == nil && tenant["client_assertion_file"] == nil
    }

    private static let deleteTenant = CommandSpecification(
        "tenants delete", "delete a tenant with its API keys, logins and credentials",
        discussion: "All users of the tenant are logged out of the broker, and cannot be restored.",
        arguments: [.init("NAME", "the tenant")], options: [.yes],
        examples: [
            .init("token-broker tenants delete spotify", "asks first"),
            .init("token-broker tenants delete spotify --yes", "does not ask"),
        ],
        body: { invocation throws(CommandError) in
            let (api, name) = (try invocation.broker(), invocation.arguments[0])
            // Asked about nothing is who has misspelt the name.
            _ = try await api.send(.init(.get, path(name)))
            try invocation.confirm(
                "Delete the tenant \(name) with its API keys, and log out all of its users?")
            _ = try await api.send(.init(.delete, path(name)))
            invocation.terminal.note("The tenant \(name) is deleted.")
        })

    private static let shownFirst: [WireText] = ["tenant", "provider", "client_id", "redirect_uri", "scopes"]

    static func path(_ tenant: String) -> String { "/tenants/" + BrokerAPI.segment(tenant) }

    private static func name(_ invocation: Invocation, _ api: BrokerAPI) async throws(CommandError) -> String {
        if let name = invocation.arguments.first { return name }
        return try await invocation.requiredTenant(api)
    }

    /// The members that words and options of `create` and `set` give.
    static func assigned(_ words: [String], _ invocation: Invocation) throws(CommandError) -> AssignedMembers {
        var members = try AssignedMembers(words)
        if let client = invocation["client-id"] { try members.add("client_id", .string(WireText(client))) }
        if let scopes = list(invocation.values("scope")) { try members.add("scopes", scopes) }
        if let uris = list(invocation.values("redirect-uri")) { try members.add("allowed_redirect_uris", uris) }
        if let uris = list(invocation.values("return-uri")) { try members.add("allowed_return_uris", uris) }
        return members
    }

    private static func changedSecret(_ invocation: Invocation) throws(CommandError) -> String? {
        if let secret = try secretOfFile(invocation) { return secret }
        guard invocation.has("secret") else { return nil }
        guard let secret = invocation.terminal.secret("Client secret: "), !secret.isEmpty else {
            throw invocation.wrong("no secret was given")
        }
        return secret
    }
}
