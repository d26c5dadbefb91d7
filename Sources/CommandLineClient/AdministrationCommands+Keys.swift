import ExternalText
import HTTPCodec
import JSON

/// `token-broker keys`: the API keys of a tenant's callers.
extension AdministrationCommands {
    static let keys = [listKeys, showKey, createKey, rotateKey, deleteKey]

    private static let permissions = ["credentials:read", "credentials:write", "login", "events"]
    private static let expiry = CommandSpecification.Option(
        "expires-in", "TIME", "how long it is valid, such as 90d, 12h or 3600 (seconds)")
    private static let id = CommandSpecification.Argument(
        "ID", "one of token-broker keys list, or the name of a key that no other key has")

    private static let listKeys = CommandSpecification(
        "keys list", "list a tenant's API keys, without the keys themselves",
        options: [limit],
        examples: [.init("token-broker keys list --tenant spotify", "what each may do, and until when")],
        body: { invocation throws(CommandError) in
            let api = try invocation.broker()
            let pages = ListPages(try await keyPath(invocation, api), "api_keys", limit: try limit(invocation))
            let keys = try await pages.elements(api)
            if invocation.printsJSON { return printLines(keys, invocation) }
            var table = TextTable("ID", "NAME", "PERMISSIONS", "STORAGE KEYS", "EXPIRES")
            for key in keys {
                table.add(
                    text(of: key["id"]), text(of: key["name"]), text(of: key["permissions"]),
                    key["storage_keys"].map { text(of: $0) } ?? "all", text(of: key["expires"]))
            }
            invocation.show(table)
        })

    private static let showKey = CommandSpecification(
        "keys show", "show an API key, without the key itself",
        arguments: [id],
        examples: [.init("token-broker keys show 0f3b8a6d1c2e4f5a6b7c8d9e --tenant spotify", "what it may do")],
        body: { invocation throws(CommandError) in
            let api = try invocation.broker()
            try show(try await key(invocation, api), first: keyMembers, invocation)
        })

    private static let createKey = CommandSpecification(
        "keys create", "make an API key for a program that asks for tokens",
        discussion:
            "The key alone is printed to standard output, so that it can be piped; the broker keeps its digest only, and shows it "
            + "never again. With --identity there is no key: the program shows a certificate, or a token of its platform.",
        arguments: [.init("NAME", "what the key is for")],
        options: [
            .init("permission", "PERMISSION", "what it may do", choices: permissions, repeats: true),
            .init("storage-key", "KEY", "the users it is limited to; team-a.* is for all that begin so", repeats: true),
            expiry,
            .init("also-tenant", "NAME", "another tenant that it is valid in", repeats: true),
            .init("identity", "URI", "who uses it, in place of a key"),
        ],
        examples: [
            .init(
                "token-broker keys create player --tenant spotify --permission credentials:read >player.key",
                "a key that reads tokens, in a file"),
            .init(
                "token-broker keys create worker --tenant spotify --permission login --storage-key 'team-a.*' --expires-in 90d",
                "limited to some users, for 90 days"),
        ],
        body: { invocation throws(CommandError) in
            let permissions = invocation.values("permission")
            if permissions.isEmpty {
                throw invocation.wrong(
                    "--permission is missing: what may the key do?" + Nearest.choices(Self.permissions))
            }
            let api = try invocation.broker()
            let tenant = try await invocation.requiredTenant(api)
            var members: [WireText: JSONValue] = [
                "name": .string(WireText(invocation.arguments[0])),
                "permissions": list(permissions) ?? .null,
            ]
            members["storage_keys"] = list(invocation.values("storage-key"))
            members["identity"] = invocation["identity"].map { .string(WireText($0)) }
            members["expires_in"] = try invocation.span("expires-in").map { .integer($0) }
            let tenants = invocation.values("also-tenant")
            members["tenants"] = tenants.isEmpty ? nil : list(Array(Set([tenant] + tenants)).sorted())
            let name = invocation.arguments[0]
            let others = try await ids(ofName: name, invocation, api)
            let answer = try await api.send(
                .init(.post, path(tenant) + "/api-keys", json: body(members), form: .created))
            try showNew(answer, invocation)
            if !others.isEmpty {
                invocation.terminal.note(
                    "Warning: there is another key called \(name): \(others.joined(separator: ", ")). Where the new one is to take "
                        + "its place, delete it, or rotate a key in the place of making one.")
            }
        })

    private static let rotateKey = CommandSpecification(
        "keys rotate", "give an API key another secret; the one before stays valid for a day",
        discussion:
            "The new key alone is printed to standard output. Where the answer is lost, the command says how to run it again so "
            + "that the key that is in use stays valid.",
        arguments: [id],
        options: [
            .init("overlap", "TIME", "how long the one before stays valid; by default 1d, 0 ends it at once"),
            expiry,
            .init("replaces", "N", "the generation of the key that is in use; by default the newest"),
        ],
        examples: [
            .init("token-broker keys rotate player --tenant spotify >player.key", "the new key, in a file"),
            .init(
                "token-broker keys rotate 0f3b8a6d1c2e4f5a6b7c8d9e --tenant spotify --overlap 0",
                "the one before is not valid any more"),
        ],
        body: { invocation throws(CommandError) in
            let api = try invocation.broker()
            let wanted = try invocation.integer("replaces", in: 1...Int(Int32.max)).map { Int64($0) }
            var members: [WireText: JSONValue] = [:]
            members["overlap"] = try invocation.span("overlap").map { .integer($0) }
            members["expires_in"] = try invocation.span("expires-in").map { .integer($0) }
            let known: JSONValue
            do throws(CommandError) {
                known = try await key(invocation, api).json()
            } catch {
                throw wanted.map { rotationError(error, $0, invocation) } ?? error
            }
            let path = try await keyPath(invocation, api, text(of: known["id"]))
            let replaced = wanted ?? known["generation"]?.integer ?? 1
            members["replaces"] = .integer(replaced)
            let answer: BrokerAPI.Answer
            do throws(CommandError) {
                answer = try await api.send(.init(.post, path + "/rotate", json: body(members), form: .created))
            } catch {
                throw rotationError(error, replaced, invocation)
            }
            try showNew(answer, invocation)
        })

    /// A rotation may be done although its answer is lost. The next one has to replace the same generation then.
    private static func rotationError(
        _ error: CommandError, _ replaced: Int64, _ invocation: Invocation
    ) -> CommandError {
        guard [.unreachable, .tryLater, .failed].contains(error.status) else { return error }
        return CommandError(error.status, error.text, next: invocation.again(["replaces": ["\(replaced)"]]))
    }

    private static let deleteKey = CommandSpecification(
        "keys delete", "delete an API key; programs that use it are refused from then on",
        arguments: [id], options: [.yes],
        examples: [.init("token-broker keys delete 0f3b8a6d1c2e4f5a6b7c8d9e --tenant spotify", "asks first")],
        body: { invocation throws(CommandError) in
            let api = try invocation.broker()
            let key = try await key(invocation, api).json()
            let id = text(of: key["id"])
            let name = TextTable.shown(text(of: key["name"]))
            let places = key["tenants"].map { " It is valid in \(TextTable.shown(text(of: $0)))." } ?? ""
            try invocation.confirm("Delete the API key \(name) (\(id))?\(places)")
            _ = try await api.send(.init(.delete, try await keyPath(invocation, api, id)))
            invocation.terminal.note("The API key \(name) is deleted.")
        })

    private static let keyMembers: [WireText] = ["id", "name", "permissions", "storage_keys", "expires"]

    private static func keyPath(
        _ invocation: Invocation, _ api: BrokerAPI, _ id: String? = nil
    ) async throws(CommandError) -> String {
        path(try await invocation.requiredTenant(api)) + "/api-keys" + (id.map { "/" + BrokerAPI.segment($0) } ?? "")
    }

    /// Says so where the secret of a new key was to be printed and could not be: no one has it then.
    /// - Parameter tenant: the key's, where that is to be named.
    static func checkPrinted(_ key: JSONValue, tenant: String?, _ invocation: Invocation) throws(CommandError) {
        guard let error = invocation.terminal.outputError, key["api_key"] != nil else { return }
        let id = text(of: key["id"])
        let reason = error.text.isEmpty ? "what reads standard output has gone" : error.text
        throw CommandError(
            error.status,
            "the secret of the API key \(TextTable.shown(id)) was made, and could not be printed: \(reason). Rotate the key, or "
                + "delete it with " + invocation.next.typed("keys", "delete", id, tenant: tenant),
            next: invocation.next.typed("keys", "rotate", id, tenant: tenant))
    }

    /// The key that the command names, by its identifier, or by its name where no other key has that.
    /// - Throws: `notFound`; `usage` for the name of several keys, and lists them.
    private static func key(_ invocation: Invocation, _ api: BrokerAPI) async throws(CommandError) -> BrokerAPI.Answer {
        let word = invocation.arguments[0]
        let answer = try await api.send(
            .init(.get, try await keyPath(invocation, api, word), expected: [400, 404]))
        if answer.status.code == 200 { return answer }
        let ids = try await ids(ofName: word, invocation, api)
        if ids.count > 1 {
            throw CommandError(
                .usage, "\(ids.count) keys are called \(word): \(ids.joined(separator: ", ")). Name one of these",
                next: api.next.typed("keys", "list", tenant: try await invocation.requiredTenant(api)))
        }
        return try await api.send(.init(.get, try await keyPath(invocation, api, ids.first ?? word)))
    }

    /// The identifiers of the keys that have a name.
    private static func ids(
        ofName name: String, _ invocation: Invocation, _ api: BrokerAPI
    ) async throws(CommandError) -> [String] {
        try await ListPages(try await keyPath(invocation, api), "api_keys").elements(api)
            .filter { $0["name"]?.string?.text == name }.compactMap { $0["id"]?.string?.text }
    }

    /// The secret alone on standard output, what else is known of the key beside it.
    private static func showNew(_ answer: BrokerAPI.Answer, _ invocation: Invocation) throws(CommandError) {
        let key = try answer.json()
        if invocation.printsJSON {
            invocation.printLine(answer.body)
        } else if let secret = key["api_key"]?.string?.text {
            invocation.terminal.print(TextTable.shown(secret))
        }
        try checkPrinted(key, tenant: invocation["tenant"], invocation)
        if invocation.printsJSON { return }
        for name in keyMembers + ["identity", "tenants", "earlier_secret_expires"] {
            guard let value = key[name] else { continue }
            let text = name == "expires" && value == .null ? "never" : text(of: value)
            invocation.terminal.note("\(name.text): \(TextTable.shown(text))")
        }
        if key["api_key"] != nil { invocation.terminal.note("Keep the key: it is not shown again.") }
    }
}
