import BrokerCore
import CredentialStore
import Cryptography
import ExternalText
import OAuth

/// What a caller has sent to a process that may stand still.
///
/// Unchecked: everything of a world runs on one thread.
final class SentRequest: @unchecked Sendable {
    private var hasBegun = false
    private var isGivenUp = false

    /// Closes the connection after a while, where the process has not begun with the request by then.
    func giveUp(in world: World, then goOn: @escaping () -> Void) {
        world.executor.after(world.faults.chance.span(.seconds(1), .seconds(12))) { [self] in
            if hasBegun { return }
            isGivenUp = true
            goOn()
        }
    }

    /// Whether the process carries the request out: it does not where the connection that sent it is closed.
    func begins() -> Bool {
        hasBegun = !isGivenUp
        return hasBegun
    }
}

/// A person who logs in and out, and the services that use that person's token.
///
/// Unchecked: everything of a world runs on one thread.
final class User: @unchecked Sendable {
    /// What the user knows.
    enum Standing {
        case loggedOut(since: Int64, at: Int)
        case loggedIn(session: Int, since: Int64)
        /// The provider has ended the session.
        case lost(since: Int64)
        /// A login or a logout is under way.
        case unknown
    }

    let index: Int
    let id: CredentialsID
    private let world: World
    /// Whether the tokens are refused again and again by the API that they are for; they grow old otherwise.
    let isRefused: Bool
    /// Whether the tokens are asked for until they expire.
    let usesUp: Bool
    private(set) var observers: [Observer] = []
    var standing = Standing.unknown
    /// Where a login or a logout is under way.
    private var busy: SimulatedProcess?
    private var isLoggingIn = true
    /// Which session a login is about that is under way.
    private var pending: Int?
    /// The session that the user logs in to once more, whose answer has no refresh token.
    private var repeated: Int?
    private var logins = 0

    init(_ world: World, _ index: Int, _ id: CredentialsID, observers count: Int) {
        self.world = world
        self.index = index
        self.id = id
        isRefused = index % 4 > 1
        usesUp = index % 4 == 1
        observers = (0..<count).map { _ in Observer(world, self) }
    }

    /// Whether the user is to have that session.
    func wants(_ session: Int) -> Bool {
        if case .loggedIn(session, _) = standing { return true }
        return pending == session
    }

    /// Logs in, and has the token asked for, at any time from now on.
    func start() {
        for observer in observers { observer.callLater() }
        actLater(world.faults.chance.span(.zero, .seconds(1)))
    }

    /// The process has died.
    func processLeft(_ process: SimulatedProcess) {
        if busy === process {
            (busy, pending) = (nil, nil)
            actLater(world.faults.chance.span(.milliseconds(100), .seconds(1)))
        }
        for observer in observers { observer.processLeft(process) }
    }

    private func actLater(_ span: Int64) {
        world.executor.after(span) { [self] in act() }
    }

    private func act() {
        guard busy == nil else { return }
        let pause = world.users(leaveAfter: index)
        switch standing {
        case .loggedIn(let session, let since):
            if world.isQuiet || world.executor.now - since < pause { return actLater(1_000_000_000) }
            isLoggingIn = world.faults.chance.happens(0.3)
            repeated = isLoggingIn ? session : nil
        case .loggedOut(let since, _):
            if world.isQuiet || world.executor.now - since < 5_000_000_000 { return actLater(1_000_000_000) }
            (isLoggingIn, repeated) = (true, nil)
        case .lost(let since):
            // Until the replicas have seen what the provider did.
            if world.executor.now - since < 20_000_000_000 { return actLater(1_000_000_000) }
            (isLoggingIn, repeated) = (true, nil)
        case .unknown: break
        }
        guard let replica = world.anyServing(), let broker = replica.broker, let vault = replica.vault else {
            return actLater(500_000_000)
        }
        standing = .unknown
        busy = replica.process
        let process = replica.process
        let isLogin = isLoggingIn
        // Where a login fails, the next one is a new session's.
        let again = repeated.flatMap { world.provider.sessions[$0].isEnded ? nil : $0 }
        repeated = nil
        let session = isLogin ? again ?? world.provider.open(for: index, holder: process) : -1
        pending = isLogin ? session : nil
        world.note(index) {
            isLogin
                ? "the user logs in\(again == nil ? "" : " once more, without a refresh token,") at \(process.name)"
                : "the user logs out at \(process.name)"
        }
        let request = SentRequest()
        request.giveUp(in: world) { [self] in
            if busy !== process { return }
            world.note(index) { "the user gives up at \(process.name)" }
            (busy, pending) = (nil, nil)
            actLater(0)
        }
        world.executor.run(as: process) {
            Task { [self] in
                guard request.begins() else { return }
                let isDone =
                    isLogin ? await logIn(session, isRepeated: again != nil, broker, vault) : await logOut(broker)
                world.executor.after(0) { [self] in
                    guard busy === process else { return }
                    (busy, pending) = (nil, nil)
                    if isDone {
                        let now = world.executor.now
                        if !isLogin {
                            standing = .loggedOut(since: now, at: replica.index)
                        } else if world.provider.sessions[session].isEnded {
                            standing = .lost(since: now)
                        } else {
                            standing = .loggedIn(session: session, since: now)
                        }
                        world.note(index) { isLogin ? "the user is logged in" : "the user is logged out" }
                    }
                    actLater(isDone ? 1_000_000_000 : 500_000_000)
                }
            }
        }
    }

    private func logIn(_ session: Int, isRepeated: Bool, _ broker: CredentialsBroker, _ vault: Vault) async -> Bool {
        guard let tenant = try? await broker.tenants.tenant(id.tenant),
            let server = tenant.configuration.configuredServer
        else { return false }
        let held = HeldCredentials(
            level: .user, accessToken: SecretBytes(utf8: world.provider.accessToken(of: session)),
            refreshToken: isRepeated ? nil : SecretBytes(utf8: SimulatedProvider.refreshToken(session, 0)),
            expires: broker.time.now.advanced(by: .seconds(world.provider.lifetimeSeconds)),
            grantedScopes: tenant.configuration.client.scopes, userID: WireText(String(index)),
            obtainedWith: tenant.configuration.client.fingerprint, grantedBy: GrantingProvider(server))
        // As a login does it: its record goes in the commit of the credentials. A commit whose answer was lost is sent again, so
        // the record is missed only after a conflict that nothing could disprove.
        let timesBack = world.timesBack.count
        logins += 1
        let login = RecordID(.login, id.tenant, key: "s\(session).\(logins)")
        guard (try? await vault.commit([.insert(OpenRecord(id: login, version: 1, content: SecretBytes([])))])) != nil
        else { return false }
        var hasArrived = false
        let snapshot = try? await broker.writer.settle(login: held, by: .login, for: id) {
            _ async throws(StoreError) in
            if try await vault.version(of: login) != nil { return ([.remove(login, version: 1)], []) }
            hasArrived = true
            return nil
        }
        // A login that was under way in the commits that the database has lost is begun anew.
        return snapshot != nil || hasArrived && world.timesBack.count == timesBack
    }

    private func logOut(_ broker: CredentialsBroker) async -> Bool {
        do throws(BrokerError) {
            _ = try await broker.writer.purge(id)
            return true
        } catch {
            return false
        }
    }
}

/// A service that asks for a user's token again and again, one call after the other, now at this replica and now at that.
///
/// Unchecked: everything of a world runs on one thread.
final class Observer: @unchecked Sendable {
    unowned let user: User
    private let world: World
    /// The highest version that each replica has served it.
    var versions: [Int: Int64] = [:]
    private var busy: SimulatedProcess?
    /// When it was answered with a user's token last, after a renewal that it had asked for.
    private(set) var lastRenewal: Int64 = -1

    init(_ world: World, _ user: User) {
        self.world = world
        self.user = user
    }

    func processLeft(_ process: SimulatedProcess) {
        if busy === process {
            busy = nil
            callLater()
        }
    }

    func callLater() {
        world.executor.after(world.faults.chance.span(.milliseconds(50), world.pauseBetweenCalls * 2)) { [self] in
            call()
        }
    }

    private func call() {
        guard busy == nil else { return }
        guard let replica = world.anyServing(), let broker = replica.broker else { return callLater() }
        let process = replica.process
        busy = process
        var query = CredentialsQuery()
        let isForced = world.isQuiet || user.isRefused && world.faults.chance.happens(0.6)
        if !isForced, user.usesUp { query.minimumLifetime = .zero }
        if isForced {
            if world.faults.chance.happens(0.3) { query.refusedByAPI = true } else { query.policy = .localForceRefresh }
        }
        let patience: Duration? = world.faults.chance.happens(0.2) ? .seconds(2) : nil
        let (asked, start) = (query, world.executor.now)
        let request = SentRequest()
        request.giveUp(in: world) { [self] in
            if busy !== process { return }
            busy = nil
            callLater()
        }
        world.executor.run(as: process) {
            Task { [self] in
                guard request.begins() else { return }
                let result: Result<CredentialsProvider.Answer, BrokerError>
                do throws(BrokerError) {
                    guard let tenant = try await broker.tenants.tenant(user.id.tenant) else {
                        throw BrokerError(.notFound, "no such tenant")
                    }
                    result = .success(
                        try await broker.credentials.credentials(user.id, of: tenant, asked, patience: patience))
                } catch {
                    result = .failure(error)
                }
                world.executor.after(0) { [self] in
                    guard busy === process else { return }
                    busy = nil
                    note(result, isForced, replica, start)
                    callLater()
                }
            }
        }
    }

    private func note(
        _ result: Result<CredentialsProvider.Answer, BrokerError>, _ isForced: Bool, _ replica: Replica, _ start: Int64
    ) {
        world.calls += 1
        switch result {
        case .success(let answer):
            world.judge.served(answer, to: self, from: replica, since: start)
            if answer.level == .user, isForced { lastRenewal = start }
        case .failure(let error):
            world.failures[error.code.rawValue, default: 0] += 1
            world.note(user.index) { "\(replica.process.name) answers \(error.code.rawValue)" }
        }
    }
}
