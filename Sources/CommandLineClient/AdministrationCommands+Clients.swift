import ExternalText
import HTTPCodec
import JSON

/// `token-broker clients` and `token-broker sessions`: the apps that get tokens from the broker as from an OAuth server.
extension AdministrationCommands {
    static let clients = [listClients, showClient, createClient, deleteClient]
    static let sessions = [listSessions, revokeSession]

    private static let client = CommandSpecification.Argument("ID", "one of token-broker clients list")

    private static let listClients = CommandSpecification(
        "clients list", "list the apps of a tenant",
        options: [limit],
        examples: [.init("token-broker clients list --tenant spotify", "all of them")],
        body: { invocation throws(CommandError) in
            let api = try invocation.broker()
            let path = path(try await invocation.requiredTenant(api)) + "/clients"
            let clients = try await ListPages(path, "clients", limit: try limit(invocation)).elements(api)
            if invocation.printsJSON { return printLines(clients, invocation) }
            var table = TextTable("ID", "NAME", "SECRET", "STORAGE KEY", "REDIRECT URIS")
            for client in clients {
                table.add(
                    text(of: client["client_id"]), text(of: client["name"]),
                    client["client_secret_set"]?.bool == true ? "set" : "-",
                    client["storage_key"]?.string?.text ?? "one for each user", text(of: client["redirect_uris"]))
            }
            invocation.show(table)
        })

    private static let showClient = CommandSpecification(
        "clients show", "show an app's registration",
        arguments: [client],
        examples: [.init("token-broker clients show player-android --tenant spotify", "all that is set")],
        body: { invocation throws(CommandError) in
            let api = try invocation.broker()
            let answer = try await api.send(.init(.get, try await clientPath(invocation, api)))
            try show(answer, first: ["client_id", "name", "redirect_uris", "storage_key"], invocation)
        })

    private static let createClient = CommandSpecification(
        "clients create", "register an app, or replace its registration",
        discussion:
            "A registration is replaced as a whole: what is named neither here nor in the file is unset, but for the client secret, "
            + "which stays. --set takes MEMBER=TEXT and MEMBER:=JSON, such as session_days:=30, and wins over the file.",
        arguments: [.init("ID", "the app's client identifier")],
        options: [
            .init("file", "FILE", "the registration as JSON; - is standard input"),
            .init("redirect-uri", "URI", "an address that the app may have the browser sent to", repeats: true),
            .init("set", "MEMBER=VALUE", "another member", repeats: true),
            secretFile,
        ],
        examples: [
            .init(
                "token-broker clients create player --tenant spotify --redirect-uri https://player.example/redirect "
                    + "--set session_days:=30", "an app without a secret"),
            .init("token-broker clients create player --tenant spotify --file player.json", "as a file says"),
        ],
        body: { invocation throws(CommandError) in
            var changes = try AssignedMembers(invocation.values("set"))
            if let uris = list(invocation.values("redirect-uri")) { try changes.add("redirect_uris", uris) }
            if let secret = try secretOfFile(invocation) { try changes.add("client_secret", .string(WireText(secret))) }
            var registration: [WireText: JSONValue] = [:]
            if let path = invocation["file"] {
                registration = try GivenFile.object(path, limit: 1 << 20, invocation).object ?? [:]
            }
            // Of an answer that was changed and is sent back.
            registration["client_id"] = nil
            registration["client_secret_set"] = nil
            registration.merge(changes.members) { _, changed in changed }
            if registration.isEmpty { throw invocation.wrong("what is the app's registration? Name a --redirect-uri") }
            let api = try invocation.broker()
            let answer = try await api.send(
                .init(.put, try await clientPath(invocation, api), json: body(registration)))
            try show(answer, first: ["client_id", "name", "redirect_uris", "storage_key"], invocation)
            invocation.terminal.note("The app is \(answer.status.code == 201 ? "registered" : "replaced").")
        })

    private static let deleteClient = CommandSpecification(
        "clients delete", "remove an app; its sessions end, its users stay logged in at the provider",
        arguments: [client], options: [.yes],
        examples: [.init("token-broker clients delete player-android --tenant spotify", "asks first")],
        body: { invocation throws(CommandError) in
            let api = try invocation.broker()
            let path = try await clientPath(invocation, api)
            _ = try await api.send(.init(.get, path))
            try invocation.confirm("Remove the app \(invocation.arguments[0]) and end its sessions?")
            _ = try await api.send(.init(.delete, path))
            invocation.terminal.note("The app \(invocation.arguments[0]) is removed.")
        })

    private static func clientPath(_ invocation: Invocation, _ api: BrokerAPI) async throws(CommandError) -> String {
        path(try await invocation.requiredTenant(api)) + "/clients/" + BrokerAPI.segment(invocation.arguments[0])
    }

    // MARK: Sessions

    private static let listSessions = CommandSpecification(
        "sessions list", "list the sessions that apps have with the broker, and biometric keys",
        options: [
            .init("storage-key", "KEY", "those of this user only"), .init("client", "ID", "those of this app only"),
            limit,
        ],
        examples: [
            .init("token-broker sessions list --tenant spotify", "all of them"),
            .init(
                "token-broker sessions list --tenant spotify --client player-android --json", "of an app, for programs"),
        ],
        body: { invocation throws(CommandError) in
            let api = try invocation.broker()
            var filter: [(name: String, value: String)] = []
            if let key = invocation["storage-key"] { filter.append((name: "storage_key", value: key)) }
            if let client = invocation["client"] { filter.append((name: "client_id", value: client)) }
            let limit = try limit(invocation)
            let path = path(try await invocation.requiredTenant(api)) + "/sessions"
            var elements: [JSONValue] = []
            try await ListPages(path, "sessions", filter: filter, limit: limit).forEachPage(api) { page in
                elements += (page["sessions"]?.array ?? []) + (page["biometric_keys"]?.array ?? [])
                return elements.count
            }
            elements = Array(elements.prefix(limit ?? .max))
            if invocation.printsJSON { return printLines(elements, invocation) }
            var table = TextTable("ID", "KIND", "APP", "STORAGE KEY", "USER", "LAST USED", "EXPIRES")
            for element in elements {
                table.add(
                    text(of: element["session_id"] ?? element["key_id"]),
                    element["session_id"] == nil ? "biometric key" : "session", text(of: element["client_id"]),
                    text(of: element["storage_key"]), text(of: element["user_id"]), text(of: element["last_used"]),
                    text(of: element["expires"]))
            }
            invocation.show(table)
        })

    private static let revokeSession = CommandSpecification(
        "sessions revoke", "end a session of an app; the user stays logged in at the provider",
        arguments: [.init("ID", "one of token-broker sessions list")],
        options: [
            .init(
                "biometric-key", nil,
                "the ID is that of a biometric key: it is removed, and the sessions begun with it end"),
            .yes,
        ],
        examples: [
            .init(
                "token-broker sessions revoke N6gxkOX4ODbMGXsw9v4OXg.sR0nMQmkD6fLdzWNdVQyKA --tenant spotify",
                "asks first")
        ],
        body: { invocation throws(CommandError) in
            let api = try invocation.broker()
            let id = invocation.arguments[0]
            let isKey = invocation.has("biometric-key")
            let path = path(try await invocation.requiredTenant(api)) + (isKey ? "/biometric-keys/" : "/sessions/")
            try invocation.confirm(isKey ? "Remove the biometric key \(id)?" : "End the session \(id)?")
            _ = try await api.send(.init(.delete, path + BrokerAPI.segment(id)))
            invocation.terminal.note(isKey ? "The biometric key is removed." : "The session is ended.")
        })
}
