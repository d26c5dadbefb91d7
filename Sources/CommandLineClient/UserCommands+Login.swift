import ExternalText
import HTTPCodec
import JSON
import Reactor

extension UserCommands {
    private static let loginOptions: [CommandSpecification.Option] = [
        .init("storage-key", "KEY", "where the credentials are kept; default: default"),
        .init("scope", "SCOPE", "ask for this scope of the tenant's only; may stand several times", repeats: true),
        .init("upgrade", nil, "with --scope: also ask for what the session has already"),
        .init("no-wait", nil, "do not wait for the end of the login"),
    ]

    static let login = CommandSpecification(
        "login", "log a user in, in a browser",
        discussion:
            "Opens the browser, or prints the address and its QR code where there is none, and waits until the login has "
            + "ended. It goes on at the broker when this command is ended. With --json a line of JSON at the beginning, with "
            + "the addresses, and one at the end.",
        arguments: [tenantArgument],
        options: loginOptions + [.init("no-browser", nil, "print the address, and open no browser")],
        examples: [
            .init("token-broker login github", "log in, and keep the credentials under the storage key default"),
            .init("token-broker login github --storage-key user-42 --no-browser", "on a machine without a browser"),
            .init("token-broker login github --scope repo --upgrade", "for one scope more than the session has"),
        ],
        body: { invocation throws(CommandError) in
            let user = try invocation.user()
            let answer = try await user.send(
                .init(.post, "/login/initialize", json: loginBody(invocation, user), form: .created))
            let begun = try answer.json()
            guard let id = begun["login_id"]?.string?.text, let address = begun["start_uri"]?.string?.text else {
                throw CommandError(.failed, "the answer has no login_id and no start_uri")
            }
            if invocation.printsJSON { invocation.printLine(answer.body) }
            if !invocation.has("no-browser"), Browser.open(address, invocation) {
                invocation.terminal.note("The browser opens this address:\n\n  \(TextTable.shown(address))\n")
            } else {
                invocation.terminal.note("Open this address in a browser:\n\n  \(TextTable.shown(address))\n")
                invocation.showCode(of: address)
            }
            if invocation.has("no-wait") { return }
            let time = begun["expires_in"]?.integer ?? 600
            try await waitForEnd("/login/" + BrokerAPI.segment(id), "login", seconds: time, invocation, user)
        })

    static let device = CommandSpecification(
        "device", "log a user in on another device, by a code",
        discussion:
            "Prints a code and the address where the user types it, and waits until the login has ended. It goes on at the "
            + "broker when this command is ended. With --json a line of JSON at the beginning, with the code, and one at the end.",
        arguments: [tenantArgument], options: loginOptions,
        examples: [
            .init("token-broker device github", "log in with a phone"),
            .init("token-broker device github --storage-key user-42 --no-wait", "only begin the login"),
        ],
        body: { invocation throws(CommandError) in
            let user = try invocation.user()
            let answer = try await user.send(.init(.post, "/device", json: loginBody(invocation, user), form: .created))
            let begun = try answer.json()
            guard let handle = begun["device_code"]?.string?.text, let code = begun["user_code"]?.string?.text,
                let address = begun["verification_uri"]?.string?.text
            else { throw CommandError(.failed, "the answer has no device_code, user_code or verification_uri") }
            if invocation.printsJSON { invocation.printLine(answer.body) }
            invocation.terminal.note(
                "Open \(TextTable.shown(address)) and type this code:\n\n  \(TextTable.shown(code))\n")
            invocation.showCode(of: begun["verification_uri_complete"]?.string?.text ?? address)
            if invocation.has("no-wait") { return }
            let time = begun["expires_in"]?.integer ?? 600
            try await waitForEnd("/device/" + BrokerAPI.segment(handle), "device", seconds: time, invocation, user)
        })

    private static func loginBody(_ invocation: Invocation, _ user: CommandUser) throws(CommandError) -> [UInt8] {
        let scopes = invocation.values("scope")
        if invocation.has("upgrade"), scopes.isEmpty { throw invocation.wrong("--upgrade needs --scope") }
        return JSONWriter.object { writer in
            writer.member("storage_key", user.storageKey)
            if !scopes.isEmpty { writer.member("scopes", scopes) }
            if invocation.has("upgrade") { writer.member("upgrade", true) }
        }
    }

    /// Waits for a login's end, also over a restart of the broker, and says who is logged in.
    private static func waitForEnd(
        _ path: String, _ command: String, seconds: Int64, _ invocation: Invocation, _ user: CommandUser
    ) async throws(CommandError) {
        let end = try await LoginWait(path, seconds: seconds, user, invocation.terminal).end()
        switch end["status"]?.string?.text {
        case "completed":
            let name = await userID(user)
            if invocation.printsJSON {
                invocation.printLine(
                    JSONWriter.object { writer in
                        writer.member("status", "completed")
                        writer.member("storage_key", user.storageKey)
                        writer.memberOrNull("user_id", name)
                    })
            }
            invocation.terminal.note(
                "Logged in\(name.map { " as " + TextTable.shown($0) } ?? "")\(user.place).\nNext: \(user.command("token"))"
            )
        case "expired":
            if invocation.printsJSON { invocation.printLine(end) }
            throw CommandError(.notLoggedIn, "the time for the login is over", next: user.command(command))
        default:
            if invocation.printsJSON { invocation.printLine(end) }
            let code = end["error_code"]?.string?.text ?? end["error"]?.string?.text ?? "unknown error"
            let detail = end["detail"]?.string.map { ": " + $0.text } ?? ""
            throw CommandError(
                .notLoggedIn, TextTable.shownLines("the login has failed (\(code))\(detail)"),
                next: user.command(command))
        }
    }

    /// Who is logged in; nil where the provider has not said it, and for a key that may not read it.
    private static func userID(_ user: CommandUser) async -> String? {
        let request = BrokerAPI.Request(
            .get, "/credentials", query: [("storage_key", user.storageKey), ("policy", "local")])
        return try? await user.send(request).json()["user_id"]?.string?.text
    }
}

/// Waits for the end of a login, however often the broker goes away meanwhile.
struct LoginWait: Sendable {
    private let path: String
    private let user: CommandUser
    private let terminal: any Terminal
    private let deadline: MonotonicInstant
    /// Between two questions where the broker has not held the first one.
    private static let pause = Duration.seconds(1)

    /// - Parameters:
    ///   - path: where the broker tells of the login.
    ///   - seconds: how long the login can be completed. The broker is given half a minute more to say that it is over.
    init(_ path: String, seconds: Int64, _ user: CommandUser, _ terminal: any Terminal) {
        self.path = path
        self.user = user
        self.terminal = terminal
        deadline = .after(.seconds(min(max(seconds, 0), 86_400) + 30))
    }

    /// The broker's last answer: its `status` is another one than `pending`, unless the time is over.
    /// - Throws: what the broker refuses; where it does not answer, only at the end of the time.
    func end() async throws(CommandError) -> JSONValue {
        var hasComplained = false
        while true {
            let asked = MonotonicInstant.now
            do throws(CommandError) {
                let value = try await user.send(
                    .init(.get, path, query: [("wait", "60")], limit: .seconds(75))
                ).json()
                if value["status"]?.string?.text != "pending" { return value }
                if MonotonicInstant.now > deadline { return JSONValue.object(["status": .string("expired")]) }
            } catch {
                guard [.unreachable, .tryLater].contains(error.status), MonotonicInstant.now < deadline else {
                    throw error
                }
                if !hasComplained { terminal.note("\(error.text)\nThe login goes on; waiting for the broker.") }
                hasComplained = true
            }
            if asked.duration(to: .now) < Self.pause { try? await Task.sleep(for: Self.pause, clock: .continuous) }
        }
    }
}

extension Invocation {
    /// Shows the QR code of an address to a person, where the terminal is wide enough for it.
    fileprivate func showCode(of address: String) {
        guard terminal.isErrorTerminal, let code = QRCode(Array(address.utf8)),
            code.width <= terminal.width
        else { return }
        let hasColours = environment.text("NO_COLOR") == nil && environment["TERM"] != "dumb"
        terminal.writeError(code.text(hasColours: hasColours) + "\n")
    }
}
