import ExternalText
import HTTPCodec
import JSON
import OAuth

extension HistoryCommands {
    static let restore = CommandSpecification(
        "restore", "put back sessions that a provider ended",
        discussion:
            "When a provider ends a session, its credentials are kept aside, for seven days unless it was set otherwise. This puts "
            + "them back, where you know that the provider was wrong: those that are named, or those that ended in a time. It "
            + "shows first whose they are and why they ended, and asks. After a logout nothing is kept.\n\n"
            + "A session whose refresh a provider refuses together with those of many others does not end: it is held, until the "
            + "provider accepts one of them again. --held frees those, and --verify has them renewed at once.\n\n"
            + "Each outcome is printed. What could not be put back does not keep the others, and the command can be run "
            + "again. With --verify the provider is asked to refresh each session first; one that it refuses again stays "
            + "aside.",
        options: [
            .init("storage-key", "KEY", "the session of this storage key", repeats: true),
            .init(
                "since", "TIME",
                "those that ended then or later: 2026-11-21T09:00:00Z, or so long ago: 90s, 30m, 2h, 7d"),
            .init("until", "TIME", "those that ended then or earlier"),
            .init("cause", "CAUSE", "only those that ended for this cause", choices: ["revoked", "expired"]),
            .init("held", nil, "those that are held because the provider refuses many users at once"),
            .init("dry-run", nil, "only show what would be put back"),
            .init("verify", nil, "have the provider refresh each first"),
            .yes,
        ],
        examples: [
            .init(
                "token-broker restore --tenant music --since 12h --dry-run", "who was logged out in the night, and why"),
            .init("token-broker restore --tenant music --since 12h --verify", "put them all back, and try each"),
            .init("token-broker restore --tenant music --held --verify", "free those that are held, and renew each"),
            .init("token-broker restore --tenant music --storage-key user-42", "one user"),
        ],
        body: { invocation throws(CommandError) in try await Restoring(invocation).run() })
}

/// One run of `token-broker restore`.
private struct Restoring {
    /// How many storage keys are named to the broker at once: as many as it takes, or so few that the answer comes soon where the
    /// provider is asked about each.
    private var batch: Int { invocation.has("verify") ? 20 : 1000 }

    private let invocation: Invocation
    private let api: BrokerAPI
    private let tenant: String
    private let named: [String]
    private let since: Timestamp?
    private let until: Timestamp?
    /// Whether those are meant that have not ended.
    private let areHeld: Bool
    /// How long an answer may take: the broker asks the provider about four sessions at a time.
    private static let limit: Duration = .seconds(600)

    init(_ invocation: Invocation) async throws(CommandError) {
        self.invocation = invocation
        var seen: Set<String> = []
        named = invocation.values("storage-key").filter { seen.insert($0).inserted }
        since = try invocation.time("since")
        until = try invocation.time("until")
        areHeld = invocation.has("held")
        guard !named.isEmpty || since != nil || areHeld else {
            throw invocation.wrong(
                "say which sessions: --storage-key KEY, those that ended --since TIME, or those that are --held")
        }
        guard !areHeld || named.isEmpty && since == nil && until == nil && !invocation.has("cause") else {
            throw invocation.wrong(
                "what is held has not ended, so that --storage-key, --since, --until and --cause say nothing beside --held"
            )
        }
        guard named.isEmpty || since == nil && until == nil && !invocation.has("cause") else {
            throw invocation.wrong("--storage-key names the sessions, so that --since, --until and --cause say nothing")
        }
        if let since, let until, until < since { throw invocation.wrong("--until is before --since") }
        api = try invocation.broker()
        tenant = try await invocation.requiredTenant(api)
    }

    func run() async throws(CommandError) {
        let sets = try await wanted()
        if since != nil { try await noteHeld() }
        if sets.isEmpty {
            invocation.terminal.note(
                areHeld
                    ? "No session of \(tenant) is held."
                    : "No session of \(tenant) that ended in this time is kept aside.")
            return
        }
        let isRehearsal = invocation.has("dry-run")
        show(sets, isRehearsal: isRehearsal)
        if isRehearsal { return }
        try invocation.confirm(
            areHeld
                ? "Free \(Self.sessions(sets.count)) of \(tenant)?"
                : "Put back \(Self.sessions(sets.count)) of \(tenant)?",
            again: again)
        var outcomes = Outcomes(invocation, sets)
        let keys = sets.map(\.storageKey)
        let bar = ProgressBar(invocation.terminal, total: keys.count)
        for start in stride(from: 0, to: keys.count, by: batch) {
            bar.advance(to: start)
            do throws(CommandError) {
                let answered = try await restore(Array(keys[start..<min(start + batch, keys.count)]))
                bar.clear()
                for outcome in answered { outcomes.add(outcome) }
            } catch {
                bar.clear()
                outcomes.show()
                throw outcomes.interruption(error, of: sets.count, asked: min(batch, keys.count - start), next: again)
            }
        }
        outcomes.show()
        if let error = outcomes.error(of: sets.count, next: api.next.typed("list", tenant: tenant)) { throw error }
        if !invocation.printsJSON {
            invocation.terminal.note("\(Self.sessions(outcomes.restored)) \(areHeld ? "freed" : "put back").")
        }
    }

    /// Says how many sessions are held: they have not ended, so that no time finds them.
    private func noteHeld() async throws(CommandError) {
        let count = try await api.listedSets(state: "held").count
        if count == 0 { return }
        let next = api.next.typed("restore", "--held", "--dry-run", tenant: tenant)
        invocation.terminal.note(
            "\(Self.sessions(count)) of \(tenant) \(count == 1 ? "is" : "are") held, because the provider refuses many users at "
                + "once. To see whose: \(next)")
    }

    /// What the broker keeps aside of what is asked for. Of storage keys that are named, also those of which it keeps nothing aside:
    /// it says itself why they cannot be put back.
    private func wanted() async throws(CommandError) -> [ListedSet] {
        if areHeld { return try await api.listedSets(state: "held") }
        let kept = try await api.listedSets(state: "quarantined")
        guard named.isEmpty else {
            let known = Dictionary(kept.map { ($0.storageKey, $0) }) { $1 }
            var sets: [ListedSet] = []
            for key in named {
                let set = if let kept = known[key] { kept } else { try await unlisted(key) }
                sets.append(set)
            }
            return sets
        }
        let cause = invocation["cause"]
        return kept.filter { set in
            guard let ended = set.ended.flatMap({ Timestamp(rfc3339: $0) }) else { return false }
            return since.map { $0 <= ended } ?? true && until.map { ended <= $0 } ?? true
                && (cause == nil || set.cause == cause)
        }
    }

    /// A storage key under which nothing is kept aside, with the state of its credentials.
    private func unlisted(_ key: String) async throws(CommandError) -> ListedSet {
        let answer = try await api.send(.init(.get, "/credentials/status", query: [(name: "storage_key", value: key)]))
        return ListedSet(storageKey: key, state: try answer.json()["state"]?.string?.text ?? "nothing")
    }

    /// Shows whose sessions they are: as the result of a rehearsal, else to the person who is asked.
    private func show(_ sets: [ListedSet], isRehearsal: Bool) {
        if invocation.printsJSON, isRehearsal {
            for set in sets { invocation.printLine(set.json) }
            return
        }
        if invocation.printsJSON, invocation.has("yes") { return }
        var table = TextTable("STORAGE KEY", "USER", "STATE", "ENDED", "CAUSE", "PROVIDER'S ERROR", "KEPT UNTIL")
        for set in sets {
            table.add(
                set.storageKey, set.userID ?? "-", set.state, set.ended ?? "-", set.cause ?? "-", set.errorCode ?? "-",
                set.keptUntil ?? "-")
        }
        if isRehearsal { return invocation.show(table) }
        invocation.terminal.writeError(table.text(width: invocation.terminal.canAsk ? invocation.terminal.width : nil))
    }

    private static func sessions(_ count: Int) -> String { count == 1 ? "1 session" : "\(count) sessions" }

    /// This command as it is typed again, about the same sessions however much later that is.
    private var again: String {
        invocation.again([
            "tenant": [tenant], "since": since.map { ["\($0)"] } ?? [], "until": until.map { ["\($0)"] } ?? [],
            "yes": [],
        ])
    }

    private func restore(_ keys: [String]) async throws(CommandError) -> [Outcomes.Outcome] {
        let verifies = invocation.has("verify")
        let body = JSONWriter.object { json in
            json.member("storage_keys", keys)
            if verifies { json.member("verify", true) }
        }
        let answer = try await api.send(.init(.post, "/credentials/restore", json: body, limit: Self.limit)).json()
        return (answer["outcomes"]?.array ?? []).compactMap { outcome in
            guard let key = outcome["storage_key"]?.string?.text else { return nil }
            if outcome["outcome"]?.string == "restored" { return .init(key, verifies ? .verified : .restored) }
            let code = outcome["code"]?.string?.text
            return .init(
                key, code == "invalid_token_request" ? .refused : .failed,
                code: outcome["error_code"]?.string?.text ?? code, detail: outcome["detail"]?.string?.text)
        }
    }
}

/// What has become of each session, in the order of the broker's answers.
private struct Outcomes {
    enum Kind: String {
        case restored
        /// Not put back, for the broker's reason.
        case failed
        /// Accepted by the provider, and put back.
        case verified
        /// Not put back: the provider refuses it.
        case refused
    }

    struct Outcome {
        let storageKey: String
        let kind: Kind
        let code: String?
        let detail: String?

        init(_ storageKey: String, _ kind: Kind, code: String? = nil, detail: String? = nil) {
            self.storageKey = storageKey
            self.kind = kind
            self.code = code
            self.detail = detail
        }
    }

    private let invocation: Invocation
    private let users: [String: String]
    private var all: [Outcome] = []

    /// How many are back.
    var restored: Int { all.count { $0.kind != .failed && $0.kind != .refused } }

    init(_ invocation: Invocation, _ sets: [ListedSet]) {
        self.invocation = invocation
        users = Dictionary(sets.compactMap { set in set.userID.map { (set.storageKey, $0) } }) { $1 }
    }

    mutating func add(_ outcome: Outcome) {
        all.append(outcome)
        guard invocation.printsJSON else { return }
        invocation.printLine(
            JSONWriter.object { writer in
                writer.member("storage_key", outcome.storageKey)
                writer.memberOrNull("user_id", users[outcome.storageKey])
                writer.member("outcome", outcome.kind.rawValue)
                writer.memberIfPresent("code", outcome.code)
                writer.memberIfPresent("detail", outcome.detail)
            })
    }

    func show() {
        guard !invocation.printsJSON, !all.isEmpty else { return }
        var table = TextTable("STORAGE KEY", "USER", "OUTCOME", "CODE", "DETAIL")
        for outcome in all {
            table.add(
                outcome.storageKey, users[outcome.storageKey] ?? "-", outcome.kind.rawValue, outcome.code ?? "-",
                outcome.detail ?? "-")
        }
        invocation.show(table)
    }

    /// What a batch that ends with an error leaves. Where no answer has come, or none that can be read, the broker may have done
    /// what it was asked for.
    /// - Parameters:
    ///   - asked: how many sessions were in the batch.
    ///   - next: the command as it is typed again.
    func interruption(_ error: CommandError, of count: Int, asked: Int, next: String) -> CommandError {
        let isLost = error.status == .unreachable || error.status == .failed
        let rest = count - all.count
        let left =
            !isLost
            ? "the rest is not"
            : asked < rest ? "\(asked) more may be put back, and the rest is not" : "the rest may be put back"
        return CommandError(
            restored == 0 ? error.status : .partly,
            "\(restored) of \(count) sessions are put back, and \(left): \(error.text)", next: error.next ?? next)
    }

    /// Nil where all are back, and those that were tried are accepted.
    func error(of count: Int, next: String) -> CommandError? {
        let failed = all.filter { $0.kind == .failed }
        let refused = all.count { $0.kind == .refused }
        if failed.isEmpty, refused == 0 { return nil }
        var text = "\(restored) of \(count) sessions are put back"
        if refused > 0 { text += ", and \(refused) refused by the provider again" }
        let isNothing = failed.count == count && failed.allSatisfy { $0.code == "not_found" }
        return CommandError(isNothing ? .notFound : restored > 0 ? .partly : .failed, text, next: next)
    }
}
