import Reactor

extension UserCommands {
    static let run = CommandSpecification(
        "run", "run a program with a valid token in its environment",
        discussion:
            "The program takes this one's place, so that its exit status and its signals are its own. The token is in "
            + "\(variable), and in each variable that --env names. No other variable that begins with TOKEN_BROKER_ is handed "
            + "on, but for TOKEN_BROKER_URL: they hold keys.\n\n"
            + "The token is valid for a while only, and stays as it is in the environment: what the program calls refuses it "
            + "then. A program that runs for longer gets the next one itself, from token-broker token with a --context that has "
            + "a key, or is run again. --min-ttl says for how long the token must be valid at least.\n\n"
            + "The exit status is 127 where there is no such program, and 126 where it cannot be started.",
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
            var environment = ChildEnvironment.variables(of: invocation.environment)
            for name in [variable] + names { environment[name] = token }
            let error = ProgramReplacement.execute(invocation.trailing, environment: environment)
            let name = TextTable.shown(program)
            throw error.isNoSuchFile
                ? CommandError(.noSuchProgram, "there is no program \(name)")
                : CommandError(.programNotStarted, "\(name) cannot be started: \(error)")
        })
}
