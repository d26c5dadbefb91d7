internal import Reactor

extension UserCommands {
    static let run = CommandSpecification(
        "run", "run a program with a valid token in its environment",
        discussion:
            "The program takes this one's place, so that its exit status and its signals are its own. The token is in "
            + "\(variable), and in each variable that --env names. It is valid for a while only: a program that runs for "
            + "long asks for the next one by token-broker token. The broker's keys are not handed on.",
        options: choiceOptions + [.init("env", "NAME", "another variable for the token", repeats: true)],
        examples: [
            .init("token-broker run --tenant github --env GH_TOKEN -- gh repo list", "with the token in GH_TOKEN"),
            .init(
                #"token-broker run --tenant github -- sh -c 'curl -H "Authorization: Bearer $TOKEN_BROKER_TOKEN" https://api.example'"#,
                "call an API"),
        ],
        takesCommand: true,
        body: { invocation throws(CommandError) in
            guard let program = invocation.trailing.first, !program.isEmpty else {
                throw invocation.wrong("which program? It stands behind --")
            }
            let names = invocation.values("env")
            if let name = names.first(where: { !TokenFormats.isVariableName($0) }) {
                throw invocation.wrong("\(name) cannot be the name of a variable")
            }
            let user = try invocation.user()
            let (answer, _) = try await invocation.fetchToken(of: user)
            guard let token = answer.token else {
                throw user.notLoggedIn(
                    answer.ending ?? "no user is logged in\(user.place), and the tenant has no token of its own")
            }
            if token.utf8.contains(0) { throw CommandError(.refused, "the token has a zero byte") }
            invocation.say(about: answer, of: user)
            let environment = RunEnvironment.with(token, names: names, invocation.environment)
            let error = ProgramReplacement.execute(invocation.trailing, environment: environment)
            throw CommandError(
                error.isNoSuchFile ? .notFound : .failed, "\(TextTable.shown(program)) cannot be started: \(error)")
        })
}

/// The variables of a program that `token-broker run` starts.
package enum RunEnvironment {
    /// What only the broker and its client should have.
    private static let secrets = [
        "TOKEN_BROKER_API_KEY", "TOKEN_BROKER_ADMIN_KEY", "TOKEN_BROKER_MASTER_KEYS", "TOKEN_BROKER_DATABASE_URL",
        "TOKEN_BROKER_DATABASE_LISTEN_URL",
    ]

    package static func with(_ token: String, names: [String], _ environment: [String: String]) -> [String: String] {
        var environment = environment
        for name in secrets { environment[name] = nil }
        for name in [UserCommands.variable] + names { environment[name] = token }
        return environment
    }
}
