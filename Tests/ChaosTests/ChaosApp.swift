import BrokerTesting
import DevelopmentProvider
import ExternalText
import HTTPCodec
import JSON
import Reactor
import Synchronization

/// An app that a user has logged in to through the brokers, and its refresh token.
///
/// The app waits for an answer before it presents a refresh token again, and presents it again where there was none.
final class ChaosApp: Sendable {
    /// What an app holds.
    struct Session: Sendable {
        /// The refresh token of the newest answer.
        var token: String
        /// When it was first presented without an answer; nil where it has not been presented.
        var presented: Moment?
        /// The refresh token of an answer that is taken for lost, which the repeated request must bring again.
        var lost: String?
    }

    let user: Int
    /// Whether each refresh brings another refresh token.
    let rotates: Bool
    private let state = Mutex((isBusy: false, session: Session?.none))

    init(user: Int, rotates: Bool) {
        self.user = user
        self.rotates = rotates
    }

    var clientID: String { "app-\(user)" }
    static let redirectURI = "https://app.example/cb"

    /// What `PUT /tenants/{tenant}/clients/{client_id}` is given.
    var configuration: String {
        #"""
        {"redirect_uris": ["\#(Self.redirectURI)"], "storage_key": "\#(ChaosCluster.storageKey(user))",
         "refresh_token_rotation": \#(rotates)}
        """#
    }

    /// The session, which only the caller changes until `release`; nil where another task has the app, or there is no session.
    func take() -> Session? {
        state.withLock { state in
            guard !state.isBusy, let session = state.session else { return nil }
            state.isBusy = true
            return session
        }
    }

    /// Has the app for a login or a logout, once no other task has it, and takes its session away. Returns the refresh token.
    func takeForWrite() async throws -> String? {
        while true {
            let taken = state.withLock { state -> Session?? in
                if state.isBusy { return nil }
                state.isBusy = true
                defer { state.session = nil }
                return .some(state.session)
            }
            if let taken { return taken?.token }
            try await Task.sleep(for: .milliseconds(20))
        }
    }

    func release(_ session: Session?) { state.withLock { $0 = (false, session) } }
}

/// One answer of `/oauth2/token` to a refresh, or that there was none.
struct AppUse: Sendable {
    enum Outcome: Hashable, Sendable {
        case granted
        /// A refusal that another request may not get.
        case later(Int, String)
        case refused(Int, String)
        case unreachable
    }

    let user: Int
    let replica: Int
    let begun: Moment
    let ended: Moment
    let outcome: Outcome
    /// When the refresh token was first presented.
    let presented: Moment
    /// What is wrong with a granted answer; nil for nothing.
    var fault: String?
    /// Whether a request that was repeated in time got another answer than before.
    var isOther = false

    var isRepeated: Bool { presented < begun }
}

// MARK: - Logins

extension ChaosCluster {
    /// The app that the user has logged in to; nil for a user whose credentials are stored by a caller.
    func app(of user: Int) -> ChaosApp? { apps[user] }

    /// Registers every app.
    func putClients(until deadline: MonotonicInstant) async throws {
        for app in apps.values {
            try await retry(first: 0, until: deadline, what: "registration of \(app.clientID)") { replica in
                try await replicas[replica].client.call(
                    .put, "/tenants/\(tenant(of: app.user))/clients/\(app.clientID)", body: app.configuration)
            }
        }
    }

    /// Logs the user in through the app, with as many new logins as it takes until the app has a session.
    func logIn(to app: ChaosApp, first: Int, until deadline: MonotonicInstant) async throws {
        let old = try await app.takeForWrite()
        var session: ChaosApp.Session?
        defer { app.release(session) }
        let place = records.begin(Write(user: app.user, kind: .login, begun: rightNow()))
        var replica = first
        var last = ""
        while MonotonicInstant.now < deadline {
            do {
                let (token, family) = try await attemptLogin(to: app, first: replica)
                session = ChaosApp.Session(token: token)
                records.change(place) { write in
                    write.families.append(family)
                    write.done = rightNow()
                    write.replica = replica
                }
                // The session before is not needed any more; some apps say so.
                if let old, app.user % 3 == 0 {
                    _ = try? await replicas[replica].client.app(
                        "/oauth2/revoke", [("client_id", app.clientID), ("token", old)])
                }
                return
            } catch {
                last = "\(error)"
                try await Task.sleep(for: .milliseconds(500))
                replica = (replica + 1) % replicas.count
            }
        }
        throw Failure(description: "login of user \(app.user) to \(app.clientID) does not succeed: \(last)")
    }

    /// A browser's way through one login, each step at another replica, and the exchange of the code.
    private func attemptLogin(to app: ChaosApp, first: Int) async throws -> (token: String, family: Int) {
        var browser = AppBrowser(replicas.map(\.client), first: first, at: provider)
        let code = try await browser.logIn(
            to: app.clientID, redirectURI: ChaosApp.redirectURI, as: Self.userName(app.user))
        let answer = try await replicas[browser.replica].client.exchange(
            code, of: app.clientID, redirectURI: ChaosApp.redirectURI)
        guard answer.status == 200, let token = answer.json["refresh_token"]?.text,
            let family = (answer.json["access_token"]?.text).flatMap({
                provider.provider.record(ofAccessToken: $0)?.family
            })
        else { throw Failure(description: "no session: \(answer.status) \(answer.text)") }
        return (token, family)
    }

    // MARK: Refreshes

    /// Refreshes the app's token at that replica once, where no other task has the app and it has a session.
    /// - Parameter isLost: whether the app takes the answer for lost, and repeats the request next time.
    /// - Returns: whether the app has to log in again, or an answer must be asked for again soon.
    func refresh(_ app: ChaosApp, at replica: Int, isLost: Bool) async -> AppUse? {
        guard var session = app.take() else { return nil }
        let begun = rightNow()
        let presented = session.presented ?? begun
        var read = Read(user: app.user, replica: replica, begun: begun)
        read.presented = presented
        read.isByApp = true
        var outcome = AppUse.Outcome.unreachable
        var fault: String?
        var isOther = false
        var next: ChaosApp.Session? = session
        do {
            let answer = try await replicas[replica].client.refresh(session.token, of: app.clientID)
            read.ended = rightNow()
            if answer.status == 200 {
                outcome = .granted
                fillRead(&read, answer)
                records.add(read)
                let given = answer.json["refresh_token"]?.text
                // A token at hand that lives for less than five minutes is given without rotation.
                if app.rotates, given == nil, (read.expiresIn ?? 300) >= 300 {
                    fault = "a refresh brought no refresh token"
                }
                if !app.rotates, given != nil { fault = "a refresh without rotation brought a refresh token" }
                if let lost = session.lost, lost != given, read.begun - presented < Self.repetition {
                    isOther = true
                }
                if isLost, session.lost == nil, app.rotates {
                    session.presented = presented
                    session.lost = given
                    next = session
                } else {
                    next = ChaosApp.Session(token: given ?? session.token)
                }
            } else {
                let error = answer.json["error"]?.text ?? ""
                outcome =
                    answer.status >= 500 || answer.status == 429
                    ? .later(answer.status, error) : .refused(answer.status, error)
                session.presented = presented
                next = session
                if case .refused = outcome { next = nil }
            }
        } catch {
            session.presented = presented
            next = session
        }
        app.release(next)
        let use = AppUse(
            user: app.user, replica: replica, begun: begun, ended: rightNow(), outcome: outcome, presented: presented,
            fault: fault, isOther: isOther)
        records.add(use)
        return use
    }

    /// For how long a repeated request gets the same answer, less what two clocks and a call may differ by, in milliseconds.
    private static let repetition: Moment = 9000

    private func fillRead(_ read: inout Read, _ answer: BrokerHarness.Answer) {
        let json = answer.json
        guard let token = json["access_token"]?.text else { return }
        read.outcome = .user
        read.expiresIn = json["expires_in"]?.integer
        // It says itself where it lives for less than a minute, as it may while the provider is away.
        read.isDegraded = (read.expiresIn ?? 60) < 60
        look(&read, token)
    }
}
