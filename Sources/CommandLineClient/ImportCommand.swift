import OAuth
import Reactor

/// `token-broker import`.
enum ImportCommand {
    private static let ndjson = "ndjson"

    static let specification = CommandSpecification(
        "import", "take over credentials that another broker or program keeps",
        discussion:
            "ndjson is the form of POST /credentials/import, one set of credentials in each line. The other formats are "
            + "files that programs write: "
            + TokenFileFormat.all.map { "\($0.name) (\($0.help))" }.joined(separator: ", ") + """
                .

                The lines are sent in batches. How far the import is stands in FILE.import-state until it is complete, so that
                the same command goes on where it was; a file that has changed since then is refused. Lines that are stored
                already are unchanged, so a complete import can be repeated as well.

                What cannot be taken over is told with its reason, and does not prevent the others. The exit status is 7
                then, or 8 where nothing was taken over.
                Some programs keep refresh tokens that were used already: --verify presents each one to the provider first.

                A storage key is what the file calls the account, else default. A file of several providers or clients needs
                --only, since each is a tenant of its own.
                """,
        arguments: [
            .init("FORMAT", "ndjson, or the program that has written the file"),
            .init("FILE", "the file; - for standard input"),
        ],
        options: [
            .init("storage-key", "KEY", "the storage key of the file's only entry; not for ndjson"),
            .init("only", "NAME", "take the entries of this name, type, host or client only", repeats: true),
            .init("without-scopes", nil, "leave out the scopes that the file names: those of the tenant count"),
            .init("replace", nil, "replace the credentials of users who are logged in"),
            .init("verify", nil, "present each refresh token to the provider before it is stored"),
            .init("dry-run", nil, "tell what would be done, and store nothing"),
            .init("state", "FILE", "keep here how far the import is, in place of FILE.import-state"),
        ],
        examples: [
            .init(
                "token-broker import ndjson users.ndjson --tenant music",
                "many users, and once more after an interruption"),
            .init(
                "token-broker import spotipy .cache --tenant music --storage-key alice --verify",
                "one user of a script, if the refresh token still serves"),
            .init(
                "token-broker import rclone ~/.config/rclone/rclone.conf --tenant drive --only gd --dry-run",
                "one remote"),
            .init("rclone config show | token-broker import rclone - --tenant drive --only gd", "from another program"),
        ],
        body: { invocation throws(CommandError) in try await run(invocation) })

    private static func run(_ invocation: Invocation) async throws(CommandError) {
        let format = invocation.arguments[0]
        let kind = TokenFileFormat.all.first { $0.name == format }
        guard kind != nil || format == ndjson else {
            let names = [ndjson] + TokenFileFormat.all.map(\.name)
            throw invocation.wrong(Nearest.complaint(about: format, "format", among: names))
        }
        if kind == nil, let option = ["storage-key", "only", "without-scopes"].first(where: invocation.has) {
            throw invocation.wrong("--\(option) is not for ndjson, whose lines say it themselves")
        }
        if invocation.has("verify"), invocation.has("dry-run") {
            throw invocation.wrong("--verify asks the provider, and --dry-run does not: use one of them")
        }
        if let key = invocation["storage-key"], StorageKey(key) == nil {
            throw invocation.wrong("--storage-key has 1 to 200 letters, digits and . _ ~ : @ -")
        }
        let api = try invocation.broker()
        let tenant = try await invocation.requiredTenant(api)
        let input = try ImportInput(invocation.arguments[1], invocation.terminal)
        if kind != nil, input.size > TokenFileFormat.longest { throw input.tooLong(TokenFileFormat.longest) }
        let examined = try input.examined()
        var plan = ImportPlan(
            order: ImportState.Order(
                name: input.lastName, size: input.size, digest: examined.digest, format: format, url: api.url,
                tenant: tenant, options: options(invocation)))
        plan.replaces = invocation.has("replace")
        plan.verifies = invocation.has("verify")
        plan.isDry = invocation.has("dry-run")
        plan.printsJSON = invocation.printsJSON
        plan.total = examined.lines
        if !plan.isDry {
            plan.statePath = invocation["state"] ?? (input.isFile ? ImportState.path(for: input.name) : nil)
        }
        let source = try source(kind, input, invocation, &plan)
        let done = if let path = plan.statePath { try ImportState.read(path, for: plan.order) } else { ImportTally() }
        if done.all > 0, let path = plan.statePath {
            invocation.terminal.note("\(done.all) were dealt with before (\(path)); going on with the others.")
        }
        if let path = plan.statePath { try ImportState.checkPlace(path) }
        let running = ImportRun(api, plan, invocation.terminal, done: done)
        try await running.run(source)
        try conclude(running.state.tally, plan, invocation)
    }

    /// The options that decide about lines, as they are typed.
    private static func options(_ invocation: Invocation) -> [String] {
        ["storage-key", "only", "without-scopes", "replace", "verify"].flatMap { name in
            invocation.values(name).map { $0.isEmpty ? "--\(name)" : "--\(name)=\($0)" }
        }
    }

    private static func source(
        _ kind: TokenFileFormat?, _ input: ImportInput, _ invocation: Invocation, _ plan: inout ImportPlan
    ) throws(CommandError) -> ImportSource {
        guard let kind else { return .lines(NDJSONLines(input)) }
        let bytes = try input.whole(limit: TokenFileFormat.longest)
        let name = input.name == "-" ? "standard input" : input.name
        if NDJSONLines.begins(bytes) {
            throw CommandError(
                .refused, "\(name) has lines of ndjson, and is no file of \(kind.name): import it as ndjson",
                next: invocation.next("import", "ndjson", input.name))
        }
        let entries: [TokenFileEntry]
        do throws(TokenFileFault) {
            entries = try kind.read(bytes)
        } catch {
            let place = error.line.map { ", line \($0)" } ?? ""
            throw CommandError(.refused, TextTable.shown("\(name)\(place) \(error.text)"))
        }
        guard entries.count <= TokenFileFormat.mostEntries else {
            throw CommandError(.refused, "\(input.name) has more than \(TokenFileFormat.mostEntries) entries")
        }
        var lines = TokenFileLines(now: Timestamp(milliseconds: WallClock.milliseconds))
        lines.storageKey = invocation["storage-key"]
        lines.only = invocation.values("only")
        lines.leavesOutScopes = invocation.has("without-scopes")
        let items = try lines.items(entries)
        plan.total = items.count
        return .items(items[...])
    }

    private static func conclude(
        _ tally: ImportTally, _ plan: ImportPlan, _ invocation: Invocation
    ) throws(CommandError) {
        if !plan.printsJSON {
            var table = TextTable("OUTCOME", plan.isDry ? "WOULD BE" : "COUNT")
            table.add("imported", "\(tally.imported)")
            table.add("unchanged", "\(tally.unchanged)")
            table.add("refused", "\(tally.refused)")
            invocation.show(table)
        }
        if tally.all == 0 { throw CommandError(.refused, "there is nothing to import in \(invocation.arguments[1])") }
        if tally.refused > 0 {
            throw CommandError(
                tally.refused == tally.all ? .refused : .partly,
                "\(tally.refused) of \(tally.all) \(plan.isDry ? "would not be" : "were not") taken over; the reasons are "
                    + (plan.printsJSON ? "in the outcomes" : "above"))
        }
    }
}
