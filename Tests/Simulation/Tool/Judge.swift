import BrokerCore
import CredentialStore
import Cryptography
import ExternalText
import JSON
import OAuth
import Reactor

/// Holds what happens in a world against what is promised.
///
/// Unchecked: everything of a world runs on one thread.
final class Judge: @unchecked Sendable {
    /// What is promised, by the name of what breaks it.
    enum Kind: String, CaseIterable {
        /// A session was lost that could have been kept.
        case lost
        /// In the end not the last refresh token is stored.
        case notStored = "not-stored"
        /// A version was served after a higher one.
        case wentBack = "version-back"
        case storedTwice = "version-twice"
        /// A version does not have its event exactly once.
        case event
        case expired
        case foreign
        /// A user's token was served, or stored in the end, after a logout.
        case logout
        /// A user who is logged in was taken for logged out.
        case takenForLoggedOut = "taken-for-logged-out"
        case notRecovered = "not-recovered"
    }

    /// A promise that was broken.
    struct Violation {
        let time: Int64
        let user: Int?
        let kind: Kind
        let text: String
    }

    /// By how much later than due a token may be served: what an answer takes.
    private static let tolerance: Duration = .seconds(1)
    /// For how long a replica may not know of another one's change.
    static let staleness: Duration = .seconds(12)
    /// What a replica needs to ask the provider again: the lease of a holder that has just died has to run out
    /// (`RenewalRules.leaseSpan`), which is found at the next look.
    private static func needed(at grace: Int64) -> Int64 {
        min(5_000_000_000, max(2_000_000_000, grace / 3)) + 700_000_000
    }
    /// For how long the holder of a successor is waited for beyond the grace (`RenewalRules.usualPatience`).
    private static let patience: Duration = .seconds(30)
    /// What a holder needs to store a successor: its statement may just hang for five seconds.
    private static let neededToStore: Duration = .seconds(7)
    /// Where the database has gone back: a replica notices within a second and a half.
    private static let neededToStoreAgain: Duration = .seconds(2)
    /// What a statement takes that nothing disturbs.
    private static let statement: Duration = .milliseconds(50)
    /// What a call may take to arrive (`RenewalRules.usualTransit`).
    private static let transit: Duration = .seconds(1)

    private unowned let world: World
    private(set) var violations: [Violation] = []
    /// How often each promise was broken, those included that are broken.
    private(set) var broken: [Kind: Int] = [:]
    /// Sessions that were lost and could not have been kept, each with the proof.
    private(set) var excused: [String] = []
    /// The versions of credentials that were committed, and whether an event was with them.
    private var versions: [RecordID: [Int64: Bool]] = [:]
    private(set) var commits = 0
    /// How many answers had a refresh token only, by user: each is stored beneath the set that callers have, as a version of which no
    /// event tells.
    private var untold: [Int: Int] = [:]
    private let vault: (SimulatedDatabase) -> Vault

    init(_ world: World) {
        self.world = world
        vault = { database in
            guard let keyring = try? Keyring(parsing: Replica.masterKeys) else { preconditionFailure("no key") }
            return Vault(store: database.records, keyring: keyring)
        }
    }

    func violated(_ kind: Kind, _ user: Int?, _ text: String) {
        world.note(user) { "VIOLATION (\(kind.rawValue)): \(text)" }
        broken[kind, default: 0] += 1
        if world.options.overlooks.contains(kind) { return }
        violations.append(Violation(time: world.executor.now, user: user, kind: kind, text: text))
    }

    /// A statement of the process hangs: one about the user, or one that is about all where nil.
    func disturb(_ process: SimulatedProcess, _ user: Int?, until end: Int64) {
        world.replicas.first { $0.process === process }?.disturb(user, until: end)
    }

    /// An answer to a refresh had a refresh token only.
    func answeredWithoutAccessToken(_ user: Int) { untold[user, default: 0] += 1 }

    /// Lets go of what was noted about versions.
    func clear() { versions = [:] }

    // MARK: The store

    func committed(_ changes: [RecordChange], by process: SimulatedProcess) {
        commits += 1
        let isTold = changes.contains { if case .append = $0 { true } else { false } }
        for change in changes {
            let (record, base): (StoredRecord, Int64)
            switch change {
            case .insert(let inserted): (record, base) = (inserted, 0)
            case .replace(let replaced, let version, _): (record, base) = (replaced, version)
            case .claim(let id, let version, let claim):
                world.note(renewal: claim.holder.split(separator: ".").last.map(String.init) ?? claim.holder, of: id)
                world.note(id) {
                    "\(process.name) claims \(version) as \(claim.holder) over \(claim.replacing ?? "none") for "
                        + "\(claim.duration)"
                }
                continue
            case .release(let id, let version, let holder, let release):
                world.note(id) { "\(process.name) releases \(version) as \(holder), \(release.outcome)" }
                continue
            default: continue
            }
            if record.id.kind != .credentials { continue }
            world.note(record.id) { "\(process.name) stores version \(record.version) over \(base)" }
            if versions[record.id]?[record.version] != nil {
                violated(.storedTwice, world.user(record.id), "version \(record.version) was stored twice")
            }
            versions[record.id, default: [:]][record.version] = isTold
        }
    }

    /// The database has gone back to that time: what was committed since is judged no more.
    func wentBack(_ versionsLeft: [RecordID: Int64]) {
        for (id, known) in versions {
            let last = versionsLeft[id] ?? 0
            versions[id] = known.filter { $0.key <= last }
            guard let user = world.user(id) else { continue }
            for observer in world.users[user].observers {
                observer.versions = observer.versions.mapValues { min($0, last) }
            }
        }
    }

    // MARK: Answers

    /// An answer has reached a caller.
    func served(
        _ answer: CredentialsProvider.Answer, to observer: Observer, from replica: Replica, since start: Int64
    ) {
        let (now, user) = (world.executor.now, observer.user)
        // What is not stored yet has no entity tag.
        let version = answer.snapshot.isStored ? answer.snapshot.version : 0
        let token = answer.level == .user ? answer.snapshot.record.held?.accessToken.revealedText : nil
        world.executor.note(version)
        world.note(user.index) {
            "\(replica.process.name) serves version \(version)\(token.map { ", \($0)" } ?? " without a user's token")"
        }
        if version > 0 {
            let before = observer.versions[replica.index] ?? 0
            if version < before { violated(.wentBack, user.index, "version \(version) was served after \(before)") }
            // One that the database has lost ends with the processes that know of it.
            let record = RecordID(.credentials, user.id.tenant, key: user.id.storageKey.description)
            let isLost = !world.timesBack.isEmpty && versions[record]?[version] == nil
            observer.versions[replica.index] = isLost ? before : max(before, version)
        }
        guard let token else { return servedNoUser(user, replica, since: start) }
        let numbers = SimulatedProvider.numbers(token)
        guard numbers.count == 4, numbers[0] == user.index else {
            return violated(.foreign, user.index, "a foreign token was served: \(token)")
        }
        let late = SimulatedTime.time(at: now).milliseconds - Int64(numbers[3])
        if late > Self.tolerance.milliseconds, replica.lastResumption < start {
            violated(.expired, user.index, "an expired token was served, \(late) ms late")
        }
        if case .loggedOut(let since, let place) = user.standing {
            let isKnown = place == replica.index || start > since + 60_000_000_000 + Self.staleness.nanoseconds
            if start > since, isKnown { violated(.logout, user.index, "a user's token was served after a logout") }
        }
    }

    private func servedNoUser(_ user: User, _ replica: Replica, since start: Int64) {
        guard case .loggedIn(let session, let since) = user.standing, !world.provider.sessions[session].isEnded,
            start > since + Self.staleness.nanoseconds
        else { return }
        let text = "\(replica.process.name) took a user for logged out who is not"
        guard
            let back = world.timesBack.last(where: {
                $0.from <= since && since - Self.transit.nanoseconds <= $0.to
            })
        else { return violated(.takenForLoggedOut, user.index, text) }
        // The database has lost the login. What knows of it stores it again, once it can.
        let haveAllReached = world.replicas.allSatisfy { replica in
            let span = replica.longestReach(from: back.to, to: world.executor.now)
            return span.to - span.from >= Self.neededToStoreAgain.nanoseconds
        }
        guard haveAllReached else { return }
        let tokens = world.provider.sessions[session].tokens
        if tokens.contains(where: { $0.holders.contains { !$0.isDead } }) {
            return violated(.takenForLoggedOut, user.index, text)
        }
        user.standing = .lost(since: world.executor.now)
        world.executor.run(as: world.executor.world) {
            Task { [self] in
                let refreshTokens = tokens.indices.map { SimulatedProvider.refreshToken(session, $0) }
                for replica in world.replicas where await replica.journalHolds(refreshTokens, of: user.id) {
                    return violated(.takenForLoggedOut, user.index, text + ", and a journal has the session")
                }
                excuse(
                    user,
                    "the database went back from \(Self.text(back.to)) to \(Self.text(back.from)), before the login to "
                        + "session \(session), and nobody lives who knew of that")
            }
        }
    }

    // MARK: The provider

    /// The provider has ended a session, because `process` presented the token too late.
    /// - Parameter sent: when it presented it.
    func sessionEnded(_ session: Int, _ token: Int, by process: SimulatedProcess, sent: Int64) {
        let user = world.users[world.provider.sessions[session].user]
        let time = world.executor.now
        world.note(user.index) { "the provider ends session \(session): \(session).\(token) was spent" }
        guard user.wants(session) else { return }
        if case .loggedIn = user.standing { user.standing = .lost(since: time) }
        let presented = world.provider.sessions[session].tokens[token]
        let firstUse = presented.firstUse ?? time
        let later = world.provider.sessions[session].tokens.indices.filter {
            descends($0, from: token, in: session)
        }
        // Of a database that went back, only the last ones are any good.
        let wentBack = world.timesBack.contains { $0.to >= firstUse }
        let good = later.filter { !wentBack || world.provider.sessions[session].tokens[$0].firstUse == nil }
        let holders = good.flatMap { world.provider.sessions[session].tokens[$0].holders }.filter { !$0.isDead }
        let life = Self.text(time - firstUse)
        // No rule calls a request back that is on its way. The process that sent it could not know of a successor that had reached no
        // process, or only processes that have not reached the database since.
        let isUnknown =
            presented.firstDelivery.map { delivered in
                sent < delivered
                    || holders.allSatisfy { holder in
                        let span = index(of: holder).map {
                            world.replicas[$0].longestReach(from: delivered, to: sent)
                        }
                        return span.map { $0.to - $0.from < Self.statement.nanoseconds } ?? false
                    }
            } ?? true
        if time - sent > Self.transit.nanoseconds, isUnknown,
            sent - firstUse < world.provider.grace || sent <= firstUse
        {
            return excuse(
                user,
                "\(session).\(token) was presented at \(Self.text(sent)), before a successor had reached a process that "
                    + "could store it, and took \(Self.text(time - sent)) to arrive")
        }
        // Nothing tells of a claim that the database has lost, but the process that made it, once it has the answer.
        let isForgotten = world.timesBack.contains {
            $0.from <= firstUse && firstUse - Self.transit.nanoseconds <= $0.to && $0.to <= sent
        }
        if isForgotten, presented.firstDelivery.map({ sent < $0 }) ?? true {
            return excuse(
                user,
                "the database went back over the claim of \(session).\(token), which was presented once more at "
                    + "\(Self.text(sent)), before a successor had reached any process")
        }
        world.executor.run(as: world.executor.world) {
            Task { [self] in
                let id = user.id
                let stored = await standing(id)?.refreshToken?.revealedText
                if let stored, later.contains(where: { stored == SimulatedProvider.refreshToken(session, $0) }) {
                    return violated(
                        .lost, user.index,
                        "a session was lost: \(process.name) presented a spent refresh token after \(life), "
                            + "and its successor was stored")
                }
                for holder in holders {
                    let replica = index(of: holder)
                    if let proof = cutOff(holder.name, replica, since: presented.firstSent ?? firstUse)
                        ?? awayAfterGoingBack(holder.name, replica, user, since: firstUse)
                    {
                        excuse(user, proof)
                        return
                    }
                    return violated(
                        .lost, user.index,
                        "a session was lost: \(process.name) presented a spent refresh token after \(life), "
                            + "and \(holder.name), which lives, had been given its successor")
                }
                let successors = good.map { SimulatedProvider.refreshToken(session, $0) }
                for replica in world.replicas where await replica.journalHolds(successors, of: id) {
                    let name = "the journal of replica \(replica.index + 1)"
                    if let proof = cutOff(name, replica.index, since: presented.firstSent ?? firstUse)
                        ?? awayAfterGoingBack(name, replica.index, user, since: firstUse)
                    {
                        excuse(user, proof)
                        return
                    }
                    return violated(
                        .lost, user.index,
                        "a session was lost: \(process.name) presented a spent refresh token after \(life), "
                            + "and the journal of replica \(replica.index + 1) had its successor")
                }
                await decide(user, session, token, firstUse)
            }
        }
    }

    private func index(of process: SimulatedProcess) -> Int? {
        world.replicas.firstIndex { $0.process === process }
    }

    /// Whether what has the successor was away from the database for so long that it is taken for dead.
    /// - Parameter firstUse: when the refresh token was sent first. Replicas count from then: they do not know how long the
    ///   call took to arrive.
    /// - Returns: the proof; nil where it was not.
    private func cutOff(_ name: String, _ replica: Int?, since firstUse: Int64) -> String? {
        let now = world.executor.now
        guard now - firstUse >= Self.patience.nanoseconds else { return nil }
        let span =
            replica.map { world.replicas[$0].longestReach(from: firstUse, to: now) } ?? (from: firstUse, to: firstUse)
        guard span.to - span.from < Self.neededToStore.nanoseconds else { return nil }
        return
            "\(name) had a successor, and reached the database for no more than \(Self.text(span.to - span.from)) in the "
            + "\(Self.text(now - firstUse)) since the refresh token was used"
    }

    /// Whether what has the successor did not reach the database for long enough to store it again after that had gone back.
    /// - Returns: the proof; nil where it did, and where the database has not gone back since.
    private func awayAfterGoingBack(
        _ name: String, _ replica: Int?, _ user: User, since firstUse: Int64
    ) -> String? {
        let now = world.executor.now
        guard let back = world.timesBack.last(where: { $0.to >= firstUse }) else { return nil }
        let span =
            replica.map { world.replicas[$0].longestReach(for: user.index, from: back.to, to: now) }
            ?? (from: back.to, to: back.to)
        guard span.to - span.from < Self.neededToStoreAgain.nanoseconds else { return nil }
        return
            "\(name) had a successor, and reached the database for no more than \(Self.text(span.to - span.from)) in the "
            + "\(Self.text(now - back.to)) since that had gone back"
    }

    private func descends(_ token: Int, from ancestor: Int, in session: Int) -> Bool {
        var token = token
        while let parent = world.provider.sessions[session].tokens[token].parent {
            if parent == ancestor { return true }
            token = parent
        }
        return false
    }

    /// No living process had the successor of the refresh token. Whether a try within the grace was possible shows
    /// whether it could have been had.
    private func decide(_ user: User, _ session: Int, _ token: Int, _ firstUse: Int64) async {
        let grace = world.provider.grace
        // Stored, and forgotten by the database; and who had stored it is dead.
        if let back = world.timesBack.last(where: { $0.from <= firstUse + grace && firstUse <= $0.to }) {
            return excuse(
                user,
                "the database went back from \(Self.text(back.to)) to \(Self.text(back.from)), to where "
                    + "\(session).\(token) was stored, and nobody lives who had its successor")
        }
        // The replicas count the grace from the first call that may have used the token, by what the row tells of it.
        let row = RecordID(.credentials, user.id.tenant, key: user.id.storageKey.description)
        let age = (try? await world.database.records.read(row))?.lease?.sinceFirstUse
        let known = min(firstUse, age.map { world.executor.now - $0.nanoseconds } ?? firstUse)
        let from = firstUse + grace / 3
        let to = known + grace - 500_000_000
        let vain = world.provider.sessions[session].tokens[token].vainCalls
        let able = world.replicas.map {
            ($0, $0.longestAbility(for: user.index, from: from, to: max(from, to), without: vain))
        }
        if grace > 0, let (replica, span) = able.first(where: { $0.1.to - $0.1.from >= Self.needed(at: grace) }) {
            return violated(
                .lost, user.index,
                "a session was lost: nobody who lives had the successor of \(session).\(token), first used at "
                    + "\(Self.text(firstUse)), and replica \(replica.index + 1) could have asked for it from "
                    + "\(Self.text(span.from)) to \(Self.text(span.to))")
        }
        let longest = able.map { Self.text($0.1.to - $0.1.from) }.joined(separator: ", ")
        excuse(
            user,
            "the answer to \(session).\(token), first used at \(Self.text(firstUse)) and claimed at "
                + "\(Self.text(known)), reached nobody who lives, and within the grace of \(Self.text(grace)) the replicas were able for \(longest)"
        )
    }

    private func excuse(_ user: User, _ proof: String) {
        excused.append("seed \(world.seed), user \(user.index): \(proof)")
        world.note(user.index) { "the session could not be kept: \(proof)" }
    }

    // MARK: The end

    /// What is stored under a storage key.
    func standing(_ id: CredentialsID) async -> HeldCredentials? {
        let record = RecordID(.credentials, id.tenant, key: id.storageKey.description)
        guard let open = try? await vault(world.database).read(record) else { return nil }
        return CredentialRecord(decoding: open.content.revealedBytes)?.held
    }

    /// When all faults are over and everything has had its time.
    func end() async {
        for user in world.users {
            let held = await standing(user.id)
            switch user.standing {
            case .loggedIn(let session, _):
                guard let held, held.level == .user, let stored = held.refreshToken?.revealedText else {
                    violated(.notStored, user.index, "in the end nothing is stored of session \(session)")
                    continue
                }
                let numbers = SimulatedProvider.numbers(stored)
                let isCurrent =
                    numbers.first == session && numbers.count == 2
                    && world.provider.sessions[session].tokens[numbers[1]].firstUse == nil
                if !isCurrent {
                    violated(
                        .notStored, user.index, "in the end \(stored) is stored, which is not session \(session)'s last"
                    )
                }
            case .loggedOut:
                if held?.level == .user {
                    violated(.logout, user.index, "in the end a user is logged in who has logged out")
                }
            case .lost, .unknown: break
            }
        }
        await judgeEvents()
    }

    private func judgeEvents() async {
        var told: [RecordID: [Int64: Int]] = [:]
        var last: Int64 = 0
        let vault = vault(world.database)
        while let page = try? await vault.entries(after: last, limit: 1000), let end = page.last {
            last = end.sequence
            for entry in page {
                let id = RecordID(.credentials, entry.tenant, key: entry.key)
                guard let content = entry.content else {
                    violated(.event, nil, "an entry of the log does not open")
                    continue
                }
                for event in BrokerEvent.events(in: content.revealedBytes) {
                    guard let event, event.kind == .credentialsUpdated || event.kind == .credentialsDeauthorized,
                        let version = (try? JSONValue(parsing: event.data))?["version"]?.integer
                    else { continue }
                    told[id, default: [:]][version, default: 0] += 1
                }
            }
        }
        for (id, known) in versions.sorted(by: { $0.key < $1.key }) {
            for (version, isTold) in known.sorted(by: { $0.key < $1.key }) {
                let count = told[id]?[version] ?? 0
                // Where a tombstone is purged once more, there is nothing to tell.
                let user = world.user(id) ?? World.nobody
                if count == 0, isTold, untold[user, default: 0] > 0 {
                    untold[user, default: 0] -= 1
                    continue
                }
                if count > 1 || count == 0 && isTold {
                    violated(.event, world.user(id), "version \(version) has \(count) events")
                }
            }
        }
    }

    static func text(_ nanoseconds: Int64) -> String {
        let milliseconds = nanoseconds / 1_000_000
        return "\(milliseconds / 1000).\(String(1000 + abs(milliseconds % 1000)).dropFirst()) s"
    }
}
