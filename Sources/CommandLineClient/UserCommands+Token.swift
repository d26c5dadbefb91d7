import ExternalText
import HTTPCodec
import JSON

extension UserCommands {
    /// How the broker is to choose the token.
    static let choiceOptions: [CommandSpecification.Option] = [
        storageKeyOption,
        .init("level", "LEVEL", "the lowest level to accept, else the best there is", choices: ["client", "user"]),
        .init("min-ttl", "SECONDS", "for how long the token must be valid at least; default: 60"),
        .init("force-refresh", nil, "renew the token, whatever its age"),
    ]

    /// The variable that has the token in any case.
    static let variable = "TOKEN_BROKER_TOKEN"

    static let token = CommandSpecification(
        "token", "print a valid access token",
        discussion: """
            The token is alone on standard output; what else there is to say is on standard error. Nothing is written to a \
            disk. Where there is no token, standard error says why, and the exit status is 3 for a user who is not logged in.

            A client that has a token of its own, without a user, is given that where no user is logged in, and standard error \
            says so; --level user takes a user's token only. The token of a session that has ended is given while it lives; \
            --force-refresh refuses it with the exit status 3.

            The other formats are what these tools read: env is lines for a shell; exec-credential is for kubectl and \
            other clients of Kubernetes; git is a credential helper of Git and docker one of Docker, to which the tool adds \
            get, store, erase or list; aws-process is for credential_process of AWS; google-executable is for \
            executable-sourced credentials of Google, whose failures are told on standard output with exit status 0, as its \
            libraries read them.

            Git and Docker are given the token for any host that they ask about, unless --host names some, but only over \
            https or on this machine. When Git says that a host has refused the token, the broker renews it.

            aws-process needs a token that has AWS's keys, or one of IAM Identity Center with --account, --role and --region.
            """,
        arguments: [tenantArgument, .init("ACTION", "for git and docker: get, store, erase, list", isRequired: false)],
        options: choiceOptions + [
            .init(
                "format", "FORMAT", "how it is written, else bearer", choices: TokenFormat.allCases.map(\.rawValue)),
            .init("env", "NAME", "for env: another variable beside \(variable)", repeats: true),
            .init("username", "NAME", "for git and docker; default: oauth2"),
            .init("host", "HOST", "for git and docker: the hosts to answer for", repeats: true),
            .init("account", "ID", "for aws-process: the account"),
            .init("role", "NAME", "for aws-process: the role"),
            .init("region", "REGION", "for aws-process: the region of IAM Identity Center; default: AWS_REGION"),
        ],
        examples: [
            .init(
                #"curl -H "Authorization: Bearer $(token-broker token github)" https://api.github.com/user"#,
                "call an API"),
            .init("token-broker token github --level user", "a user's token, or the exit status 3"),
            .init(#"eval "$(token-broker token github --format env --env GH_TOKEN)""#, "for what reads a variable"),
            .init(
                "git config --global credential.https://github.com.helper '!token-broker token github --format git'",
                "have Git ask for it"),
            .init("token-broker token cluster --format exec-credential", "for the users of a kubeconfig"),
        ],
        body: { invocation throws(CommandError) in
            let request = try TokenCall(invocation)
            switch request.format {
            case .git: try await request.answerGit()
            case .docker: try await request.answerDocker()
            case .googleExecutable: await request.answerGoogle()
            default: try await request.print()
            }
        })
}

/// A run of `token-broker token`.
struct TokenCall: Sendable {
    let invocation: Invocation
    let user: CommandUser
    let format: TokenFormat
    /// What Git or Docker wants.
    private let action: String?
    private static let inputLimit = 64 << 10
    /// Options that other formats have no use for.
    private static let formatsOfOptions: [(option: String, formats: [TokenFormat])] = [
        ("env", [.env]), ("username", [.git, .docker]), ("host", [.git, .docker]), ("account", [.awsProcess]),
        ("role", [.awsProcess]), ("region", [.awsProcess]),
    ]

    init(_ invocation: Invocation) throws(CommandError) {
        self.invocation = invocation
        let named = invocation["format"]
        if invocation.printsJSON, let named, named != "json" {
            throw invocation.wrong("--json and --format \(named) are two formats")
        }
        // The choices of the option are those of the type.
        format = invocation.printsJSON ? .json : named.flatMap(TokenFormat.init) ?? .bearer
        var words = invocation.arguments
        let actions: Set = format == .git ? ["get", "store", "erase"] : ["get", "store", "erase", "list"]
        if format.hasActions {
            guard let last = words.popLast(), actions.contains(last) else {
                throw invocation.wrong(
                    "--format \(format.rawValue) needs \(actions.sorted().joined(separator: ", ")) at the end")
            }
            action = last
        } else {
            action = nil
        }
        if words.count > 1 { throw invocation.wrong("\(words[1]) is one word too many") }
        for (option, formats) in Self.formatsOfOptions where invocation.has(option) && !formats.contains(format) {
            throw invocation.wrong(
                "--\(option) is for " + formats.map { "--format \($0.rawValue)" }.joined(separator: " and ") + " only")
        }
        for name in invocation.values("env") where !TokenFormats.isVariableName(name) {
            throw invocation.wrong("\(name) cannot be the name of a variable")
        }
        user = try invocation.user(tenant: words.first)
    }

    // MARK: Formats

    func print() async throws(CommandError) {
        let (answer, body) = try await fetch()
        try check(answer)
        if format != .json { say(about: answer) }
        guard let token = answer.token else { throw missing(answer) }
        let terminal = invocation.terminal
        switch format {
        case .json: invocation.printLine(body)
        case .env:
            let names = [UserCommands.variable] + invocation.values("env")
            terminal.write(Array(TokenFormats.env(token, names: names).utf8))
        case .execCredential:
            invocation.printLine(
                try TokenFormats.execCredential(
                    token, expires: answer.expires, information: invocation.environment.text("KUBERNETES_EXEC_INFO")))
        case .awsProcess: invocation.printLine(try await keys(answer).document)
        default: terminal.print(token)
        }
    }

    /// The libraries read standard error together with standard output, so there is nothing but the answer.
    func answerGoogle() async {
        let asked = invocation.environment.text("GOOGLE_EXTERNAL_ACCOUNT_TOKEN_TYPE")
        do throws(CommandError) {
            let (answer, _) = try await fetch()
            try check(answer)
            if answer.token == nil { throw missing(answer) }
            invocation.printLine(try TokenFormats.googleExecutable(answer, asked: asked))
        } catch {
            invocation.printLine(TokenFormats.googleFailure(error))
        }
    }

    func answerGit() async throws(CommandError) {
        guard let input = invocation.terminal.input(limit: Self.inputLimit) else {
            throw CommandError(.refused, "standard input is too long for what Git writes")
        }
        let asked = GitCredential(input)
        guard isFor(asked.host ?? "") else { return }
        switch action {
        case "get":
            if asked.isExposed {
                let host = TextTable.shown(asked.host ?? "a host without a name")
                invocation.terminal.note(
                    "token-broker: \(host) is not asked over https, so that others could read the token")
                return
            }
            let (answer, _) = try await fetch()
            try check(answer)
            guard let token = answer.token else { throw missing(answer) }
            say(about: answer)
            let text = asked.answer(token, username: username, expiry: answer.expiry)
            invocation.terminal.write(Array(text.utf8))
        case "erase": await renew(refused: asked.attributes["password"])
        default: return
        }
    }

    func answerDocker() async throws(CommandError) {
        if action == "list" {
            invocation.terminal.print("{}")
            return
        }
        guard let input = invocation.terminal.input(limit: Self.inputLimit) else {
            throw CommandError(.refused, "standard input is too long for what Docker writes")
        }
        if action != "get" { return }
        let server = String(decoding: input.prefix { $0 != 0x0a && $0 != 0x0d }, as: UTF8.self)
        do throws(CommandError) {
            let host = TokenFormats.host(ofServer: server)
            if let mark = server.firstRange(of: "://"),
                GitCredential.isExposed(scheme: String(server[..<mark.lowerBound]), host: host)
            {
                throw CommandError(
                    .refused, "\(TextTable.shown(host)) is not asked over https, so that others could read the token")
            }
            if !isFor(host) {
                // Docker knows these words, and goes on without a login.
                invocation.terminal.print("credentials not found in native keychain")
                throw CommandError(.notFound, "")
            }
            let (answer, _) = try await fetch()
            try check(answer)
            guard let token = answer.token else { throw missing(answer) }
            say(about: answer)
            invocation.printLine(TokenFormats.docker(token, server: server, username: username))
        } catch {
            // Docker shows its user what the helper has written to standard output.
            if !error.text.isEmpty { invocation.terminal.print(TextTable.shownLines(error.text)) }
            throw error
        }
    }

    private var username: String { invocation["username"] ?? "oauth2" }

    private func isFor(_ host: String) -> Bool {
        let hosts = invocation.values("host")
        return hosts.isEmpty || hosts.contains { $0.lowercased() == host }
    }

    // MARK: The broker

    /// Gets the token as the options say.
    func fetch() async throws(CommandError) -> (answer: TokenAnswer, body: [UInt8]) {
        try await invocation.fetchToken(of: user)
    }

    /// Renews the token after a host has refused it. Another token than the stored one is nothing to renew, and without a
    /// refresh token the user stays logged in.
    private func renew(refused: String?) async {
        guard let refused, !refused.isEmpty else { return }
        let key = (name: "storage_key", value: user.storageKey)
        do throws(CommandError) {
            let stored = try await user.send(.init(.get, "/credentials", query: [key, ("policy", "local")])).json()
            guard stored["token"]?.string?.text == refused else { return }
            _ = try await user.send(.init(.get, "/credentials", query: [key, ("policy", "local_force_refresh")]))
        } catch {
            invocation.terminal.note("token-broker: the refused token could not be renewed: \(error.text)")
        }
    }

    /// - Throws: `refused` for a token that the tool cannot use.
    private func check(_ answer: TokenAnswer) throws(CommandError) {
        if answer.isBound, !format.allowsBound {
            throw CommandError(
                .refused, "the token is bound to a key (DPoP), and what reads \(format.rawValue) sends no proofs")
        }
        // A control character would be a line of its own for the tool that reads it.
        if answer.token?.utf8.contains(where: { $0 < 0x20 || $0 == 0x7f }) == true, format != .json,
            format != .awsProcess
        {
            throw CommandError(.refused, "the token has control characters; --format json prints it")
        }
    }

    private func missing(_ answer: TokenAnswer) -> CommandError {
        user.notLoggedIn(answer.ending ?? "no user is logged in\(user.place), and the tenant has no token of its own")
    }

    private func say(about answer: TokenAnswer) { invocation.say(about: answer, of: user) }

    /// AWS's keys, by the token or in it.
    private func keys(_ answer: TokenAnswer) async throws(CommandError) -> AWSCredentials {
        let (account, role) = (invocation["account"], invocation["role"])
        guard account != nil || role != nil else { return try AWSCredentials(answer) }
        guard let account, let role else { throw invocation.wrong("--account and --role stand together") }
        let environment = invocation.environment
        guard
            let region = invocation["region"] ?? environment.text("AWS_REGION")
                ?? environment.text("AWS_DEFAULT_REGION")
        else { throw invocation.wrong("--region is missing: that of IAM Identity Center") }
        guard let token = answer.token else { throw missing(answer) }
        let portal = try AWSPortal(region: region, environment: environment)
        do throws(CommandError) {
            return try await portal.keys(token: token, account: account, role: role)
        } catch {
            throw error.status == .notLoggedIn ? user.notLoggedIn(error.text) : error
        }
    }
}

extension Invocation {
    /// Gets a token by the options of `UserCommands.choiceOptions`.
    func fetchToken(of user: CommandUser) async throws(CommandError) -> (answer: TokenAnswer, body: [UInt8]) {
        var query = [(name: "storage_key", value: user.storageKey)]
        if let level = self["level"] { query.append(("level", level)) }
        if let time = try integer("min-ttl", in: 0...86_400) { query.append(("min_ttl", String(time))) }
        if has("force-refresh") { query.append(("policy", "local_force_refresh")) }
        do throws(CommandError) {
            let sent = try await user.send(.init(.get, "/credentials", query: query, limit: .seconds(120)))
            let answer = TokenAnswer(try sent.json())
            // What was to be renewed is over; a client's own token is another one.
            if let ending = answer.ending, has("force-refresh"), self["level"] != "client" {
                throw user.notLoggedIn(ending)
            }
            return (answer, sent.body)
        } catch {
            // Nothing is stored, or nothing that can be renewed.
            if error.status == .notFound, has("force-refresh") {
                throw CommandError(.notLoggedIn, error.text, next: user.command("status"))
            }
            throw error
        }
    }

    /// What a person should know about a token that is given all the same.
    func say(about answer: TokenAnswer, of user: CommandUser) {
        if let text = standing(of: answer, user) { terminal.note("token-broker: \(text)") }
        if answer.isBound {
            terminal.note(
                "token-broker: the token is bound to a key (DPoP): each request needs a proof of the broker's beside it"
            )
        }
        if let seconds = answer.degradedFor {
            terminal.note("token-broker: the token could not be renewed; it is valid for \(seconds) s more")
        }
    }

    /// Whose token it is, where that is not the one of a user who is logged in. Nil where there is no token: why is told then.
    private func standing(of answer: TokenAnswer, _ user: CommandUser) -> String? {
        guard answer.token != nil else { return nil }
        if answer.level == "user" {
            let end = answer.expires.map { ", valid until \(TextTable.shown($0))" } ?? ""
            return answer.ending.map { "\($0). The token is the last one of the session\(end)" }
        }
        if self["level"] == "client" { return nil }
        return
            "\(answer.ending ?? "no user is logged in\(user.place)"). The token is the client's own; --level user refuses it"
    }
}
