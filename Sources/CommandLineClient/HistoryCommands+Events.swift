import Synchronization

extension HistoryCommands {
    static let events = CommandSpecification(
        "events", "show what has happened to credentials, logins and providers",
        discussion:
            "Shows the events that the broker keeps (of seven days, unless it was set otherwise), the oldest first, and ends "
            + "behind the last one. With --follow it goes on with those that happen, for ever, also behind the broker's "
            + "restart, and begins with them unless --since or --after says where. Times are in UTC.\n\n"
            + "The columns of a refresh's events say who wanted it, and why it failed: the broker's code, and what the "
            + "provider has called it. With --json each line is one event with its id, for --after.",
        options: [
            .init("follow", nil, "go on with what happens, until it is interrupted"),
            .init("since", "TIME", "only from then on: 2026-11-21T09:00:00Z, or so long ago: 90s, 30m, 2h, 7d"),
            .init("until", "TIME", "only until then"),
            .init("after", "ID", "only behind this event: an id of --json"),
            .init(
                "type", "TYPE", "only these, or all whose name begins with this word",
                choices: HistoryEvent.groups + HistoryEvent.kinds, repeats: true),
            .init(
                "ended", nil,
                "only ends: users who are logged out or held, why the refresh failed, and apps' sessions that ended"),
            .init("all-tenants", nil, "those of all tenants, whatever the context's tenant is"),
            .init("storage-key", "KEY", "only those of this storage key", repeats: true),
            .init("user", "ID", "only those of this user, as the provider calls the user"),
        ],
        examples: [
            .init("token-broker events --tenant music --since 12h", "what has happened in the night"),
            .init(
                "token-broker events --tenant music --since 12h --ended",
                "who was logged out, and what the provider said"),
            .init("token-broker events --follow --all-tenants --json", "all that happens, for a program"),
        ],
        body: { invocation throws(CommandError) in
            let isOfAll = invocation.has("all-tenants")
            if isOfAll, let tenant = invocation["tenant"] {
                throw invocation.wrong("--all-tenants and --tenant \(tenant) exclude each other")
            }
            if isOfAll, invocation.has("user") { throw invocation.wrong("--all-tenants and --user exclude each other") }
            if invocation.has("ended"), invocation.has("type") {
                throw invocation.wrong("--ended and --type both say which events")
            }
            let api = try invocation.broker(ofAllTenants: isOfAll)
            if invocation.has("since"), invocation.has("after") {
                throw invocation.wrong("--since and --after both say where to begin")
            }
            if invocation.has("follow"), invocation.has("until") {
                throw invocation.wrong("--follow does not end, so that it cannot be used with --until")
            }
            if let id = invocation["after"], EventPlace(id) == nil {
                throw invocation.wrong("--after must be the id of an event, such as 1041-2; not \(id)")
            }
            let since = try invocation.time("since")
            let until = try invocation.time("until")
            if let since, let until, until < since { throw invocation.wrong("--until is before --since") }
            let keys = try await keysOfUser(invocation, api)
            let filter = EventFilter(
                types: invocation.values("type"), onlyEnds: invocation.has("ended"), since: since, until: until,
                storageKeys: invocation.values("storage-key"), user: invocation["user"], keysOfUser: keys)
            let output = EventOutput(invocation, filter, showsTenant: api.tenant == nil)
            let begin = invocation["after"] ?? EventPlace.beginning
            if invocation.has("follow") {
                let position = invocation.has("after") || invocation.has("since") ? begin : nil
                try await EventConnections(api, invocation).follow(after: position, output)
            } else {
                try await EventConnections(api, invocation).read(after: begin, output)
            }
        })

    /// Where most events name a storage key only: the user's, with those that have ended.
    private static func keysOfUser(_ invocation: Invocation, _ api: BrokerAPI) async throws(CommandError) -> [String] {
        guard let user = invocation["user"] else { return [] }
        _ = try await invocation.requiredTenant(api)
        return try await api.listedSets().filter { $0.userID == user }.map(\.storageKey)
    }
}

/// Prints events: a line for each.
final class EventOutput: Sendable {
    private struct State {
        var filter: EventFilter
        var hasHeader = false
    }

    private let state: Mutex<State>
    private let terminal: any Terminal
    private let printsJSON: Bool
    private let showsTenant: Bool
    private let isBold: Bool

    /// - Parameter showsTenant: whether the events may be of several tenants.
    init(_ invocation: Invocation, _ filter: EventFilter, showsTenant: Bool) {
        state = Mutex(State(filter: filter))
        terminal = invocation.terminal
        printsJSON = invocation.printsJSON
        isBold = invocation.showsColours
        self.showsTenant = showsTenant
    }

    /// - Returns: false where standard output takes no more.
    func show(_ event: HistoryEvent) -> Bool {
        write(event)
        return terminal.outputError == nil
    }

    private func write(_ event: HistoryEvent) {
        if event.isReset {
            terminal.note("Events may be missing here: the broker does not keep all that came before.")
            if printsJSON { terminal.print(json: event.json) }
            return
        }
        let (isWanted, isFirst) = state.withLock { state in
            let isWanted = state.filter.includes(event)
            defer { state.hasHeader = state.hasHeader || isWanted }
            return (isWanted, !state.hasHeader)
        }
        guard isWanted else { return }
        if printsJSON { return terminal.print(json: event.json) }
        if isFirst {
            let header = line(["TIME", "TYPE", "TENANT", "STORAGE KEY", "USER", "CAUSE", "ERROR"])
            terminal.print(isBold ? "\u{1b}[1m\(header)\u{1b}[0m" : header)
        }
        let cells = [
            event.writtenTime, event.kind, event.tenant ?? "-", event.storageKey ?? "-", event.userID ?? "-",
            event.cause, event.problem,
        ]
        terminal.print(line(cells.map(TextTable.shown)))
    }

    /// The widths are those of most events, because a line cannot wait for those that follow it.
    private func line(_ cells: [String]) -> String {
        let widths = [20, 31, 12, 16, 10, 12, 0]
        var text = ""
        for (index, cell) in cells.enumerated() where index != 2 || showsTenant {
            text += cell
            if index < cells.count - 1 {
                text += String(repeating: " ", count: max(0, widths[index] - TextTable.columns(cell)) + 2)
            }
        }
        return text
    }
}
