import ExternalText
import HTTPCodec
import JSON
import OAuth

/// Logins, tokens, and what is known of users.
enum UserCommands {
    static let all = [login, device, token, run, status, list, logout]

    static let tenantArgument = CommandSpecification.Argument(
        "TENANT", "the tenant, as with --tenant", isRequired: false)
    static let storageKeyOption = CommandSpecification.Option(
        "storage-key", "KEY", "whose credentials; default: default")

    private static let status = CommandSpecification(
        "status", "show whether a user is logged in",
        discussion:
            "Asks the broker what it has stored, not the provider. The exit status is 3 where no user is logged in.\n\n"
            + "The states are those of token-broker list. A session that is quarantined has ended, and can be put back by "
            + "token-broker restore; a key that may not restore it sees it as ended.",
        arguments: [tenantArgument], options: [storageKeyOption],
        examples: [
            .init("token-broker status github", "the user with the storage key default"),
            .init(
                "token-broker status github >/dev/null || token-broker login github", "log in only where that is needed"
            ),
        ],
        body: { invocation throws(CommandError) in
            let user = try invocation.user()
            let answer = try await user.send(
                .init(.get, "/credentials/status", query: [("storage_key", user.storageKey)]))
            let value = try answer.json()
            if invocation.printsJSON {
                invocation.printLine(answer.body)
                if value["logged_in"]?.bool == true { return }
            }
            let session = try await ShownSession.read(value, of: user)
            if !invocation.printsJSON { invocation.show(statusTable(value, session)) }
            if value["logged_in"]?.bool == true { return }
            let text = "no user is logged in\(user.place)" + session.endWords
            if session.isKept {
                throw CommandError(
                    .notLoggedIn, "\(text). For a new login: \(user.command("login"))", next: user.restoration)
            }
            throw user.notLoggedIn(text)
        })

    private static func statusTable(_ value: JSONValue, _ session: ShownSession) -> TextTable {
        var table = TextTable("NAME", "VALUE")
        table.add("logged in", value["logged_in"]?.bool == true ? "yes" : "no")
        table.add("state", session.state)
        table.add("level", value["level"]?.string?.text ?? "-")
        table.add("token expires", value["expires"]?.string?.text ?? "-")
        table.add("can be renewed", value["refreshable"]?.bool == true ? "yes" : "no")
        table.add("login ends", ends(value["ends"]))
        table.add("ended", session.end)
        if let withheld = value["withheld"] { table.add("not renewed now", reason(withheld)) }
        if let differences = value["configuration_differences"]?.array {
            let names = differences.compactMap { $0.string?.text }.joined(separator: ", ")
            table.add("tenant changed", "\(names), since these credentials were granted")
        }
        return table
    }

    /// When a login ends, and why.
    private static func ends(_ value: JSONValue?) -> String {
        guard let time = value?["at"]?.string?.text else { return "-" }
        return time + (value?["why"]?.string.map { " (\($0.text))" } ?? "")
    }

    /// Why the provider is not asked for another token, and until when.
    private static func reason(_ withheld: JSONValue) -> String {
        let code = withheld["code"]?.string?.text ?? "-"
        return code + (withheld["until"]?.string.map { ", until \($0.text)" } ?? "")
    }

    /// The provider's code for the last failure where it sent one, else the broker's.
    private static func lastError(_ value: JSONValue?) -> String {
        (value?["error_code"]?.string ?? value?["code"]?.string)?.text ?? "-"
    }

    private static let list = CommandSpecification(
        "list", "list the users of a tenant",
        discussion:
            "With --json a line of JSON for each, as it is found.\n\n"
            + "active: logged in. degraded: logged in, and the token cannot be renewed as things are. held: kept, because the "
            + "provider refuses many users at once; token-broker restore --held frees them. quarantined: ended, and kept aside for "
            + "token-broker restore. ended: ended, and not kept. logged out: by a logout, or never logged in. In --json those who "
            + "are logged out have the state ended, without a time.",
        arguments: [tenantArgument],
        options: [
            .init(
                "state", "STATE", "only those in this state",
                choices: ["active", "degraded", "held", "ended", "quarantined"]),
            .init(
                "expires-before", "TIME",
                "only those whose token expires before then: 2026-11-21T10:00:00Z, or within so long: 30m, 2h, 7d"),
            .init("limit", "NUMBER", "at most so many; default: all"),
        ],
        examples: [
            .init("token-broker list github", "all users of the tenant github"),
            .init("token-broker list github --state degraded", "those whose tokens cannot be renewed"),
            .init("token-broker list github --json", "a line of JSON for each"),
        ],
        body: { invocation throws(CommandError) in
            let user = try invocation.user()
            var table = TextTable(
                "STORAGE KEY", "STATE", "USER", "TOKEN EXPIRES", "LOGIN ENDS", "ENDED", "LAST ERROR")
            let limit = try invocation.integer("limit", in: 1...10_000_000) ?? .max
            var filter: [(name: String, value: String)] = []
            if let state = invocation["state"] { filter.append((name: "state", value: state)) }
            if let time = try invocation.time("expires-before", isAhead: true) {
                filter.append((name: "expires_before", value: time.description))
            }
            let pages = ListPages("/credentials/list", "credentials", filter: filter, limit: limit)
            var count = 0
            try await pages.forEachPage(user.api) { page throws(CommandError) in
                for entry in (page["credentials"]?.array ?? []).prefix(limit - count) {
                    count += 1
                    if invocation.printsJSON {
                        invocation.printLine(entry)
                    } else {
                        let session = ShownSession(listed: entry)
                        table.add(
                            entry["storage_key"]?.string?.text ?? "-", session.state,
                            entry["user_id"]?.string?.text ?? "-", entry["expires"]?.string?.text ?? "-",
                            ends(entry["ends"]), session.end, lastError(entry["last_error"]))
                    }
                }
                // Of millions of users, no more than a page is held.
                if table.hasRows { invocation.showNext(of: &table) }
                try invocation.terminal.checkOutput()
                return count
            }
            if invocation.printsJSON { return }
            if table.isEmpty {
                invocation.show(table)
                invocation.terminal.note("There are no users\(user.tenantWords).")
            }
        })

    private static let logout = CommandSpecification(
        "logout", "log a user out",
        discussion:
            "The broker forgets the credentials at once and for good: they cannot be restored. With --revoke it also has "
            + "the provider end the token, and tries that for a day. Asks first; --yes is the answer for scripts.",
        arguments: [tenantArgument],
        options: [
            storageKeyOption,
            .init("revoke", nil, "also revoke the token at the provider"),
            .yes,
        ],
        examples: [
            .init("token-broker logout github --revoke", "log out, and end the token at the provider"),
            .init("token-broker logout github --storage-key user-42 --yes", "in a script"),
        ],
        body: { invocation throws(CommandError) in
            let user = try invocation.user()
            try invocation.confirm("Log out the user\(user.place)?")
            let revokes = invocation.has("revoke")
            let isThere = await isKnown(user)
            let answer = try await user.send(
                .init(
                    .delete, "/credentials",
                    query: [("storage_key", user.storageKey), ("revoke", revokes ? "true" : "false")]))
            let revocation = answer.fields["Token-Revocation"]?.text
            if invocation.printsJSON {
                invocation.printLine(
                    JSONWriter.object { writer in
                        writer.member("storage_key", user.storageKey)
                        writer.memberOrNull("revocation", revocation)
                    })
            }
            invocation.terminal.note(
                isThere
                    ? "Logged out\(user.place)." + revocationWords(revocation, isAsked: revokes)
                    : "No user was logged in\(user.place).")
        })

    /// Whether there is something to log out of. Taken for granted for a key that may not read that.
    private static func isKnown(_ user: CommandUser) async -> Bool {
        let request = BrokerAPI.Request(.get, "/credentials/status", query: [("storage_key", user.storageKey)])
        guard let status = try? await user.api.send(request).json() else { return true }
        return status["state"] != nil || status["level"]?.string != "basic"
    }

    private static func revocationWords(_ result: String?, isAsked: Bool) -> String {
        switch result {
        case "revoked": " The provider has ended the token."
        case "failed": " The provider has not ended the token yet; the broker tries that for a day."
        case "unsupported": " The provider has no way to end the token."
        default: isAsked ? " There was nothing to revoke." : ""
        }
    }
}
