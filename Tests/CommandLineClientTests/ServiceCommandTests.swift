import CommandLineClient
import Testing

@Suite struct `A command of the service` {
    private func service(_ words: [String]) -> (ServiceCommand, Invocation)? {
        guard
            case .service(let command, let invocation) = CommandProgram.step(
                words, terminal: RecordedTerminal(), environment: [:])
        else { return nil }
        return (command, invocation)
    }

    @Test func `has a row in the catalog without a body, and each such row is one`() {
        let rows = CommandCatalog.all.filter { $0.body == nil }.map(\.name)
        #expect(Set(rows) == Set(ServiceCommand.allCases.map(\.rawValue)))
    }

    @Test(
        arguments: [
            (["serve"], .serve, [], [:]), (["up"], .up, [], [:]),
            (["up", "--port", "9080"], .up, [], ["port": "9080"]),
            (["migrate"], .migrate, [], [:]), (["config", "check"], .checkConfiguration, [], [:]),
            (["keys", "status"], .keyStatus, [], [:]), (["keys", "reseal"], .reseal, [], [:]),
            (["keys", "reseal", "--rate", "50"], .reseal, [], ["rate": "50"]),
            (["keys", "reseal", "--rate=50"], .reseal, [], ["rate": "50"]),
            (["keys", "generate"], .generateKey, [], [:]), (["keys", "generate", "k2"], .generateKey, ["k2"], [:]),
            (["keys", "retire", "k1"], .retireKey, ["k1"], [:]), (["healthcheck"], .healthCheck, [], [:]),
            (["pins", "a.example:8443"], .pins, ["a.example:8443"], [:]), (["doctor"], .examineInstallation, [], [:]),
            (["doctor", "store"], .examineStore, [], [:]),
            (["doctor", "store", "--repair", "/a"], .examineStore, [], ["repair": "/a"]),
            (["journal", "forget", "5f"], .forgetJournal, ["5f"], [:]),
            (["audit", "verify"], .verifyAudit, [], [:]),
            (["audit", "verify", "--json"], .verifyAudit, [], ["json": ""]),
            (["audit", "export"], .exportAudit, [], [:]),
            (
                ["audit", "export", "--to", "2", "--tenant", "t", "--from=1"], .exportAudit, [],
                ["to": "2", "tenant": "t", "from": "1"]
            ),
            (["audit", "remove", "--before", "1"], .removeAudit, [], ["before": "1"]),
            (["help", "variables"], .variables, [], [:]), (["version"], .version, [], [:]),
            (["--version"], .version, [], [:]), (["version", "--json"], .version, [], ["json": ""]),
        ] as [([String], ServiceCommand, [String], [String: String])])
    func `is read with its arguments, and with its options in any order`(
        words: [String], command: ServiceCommand, arguments: [String], options: [String: String]
    ) throws {
        let (found, invocation) = try #require(service(words))
        #expect(found == command)
        #expect(invocation.arguments == arguments)
        #expect(invocation.options == options.mapValues { [$0] })
    }

    @Test(
        arguments: [
            (["serv"], "did you mean serve?"), (["serve", "x"], "x is one word too many"),
            (["serve", "--listen", "x"], "unknown option --listen"), (["serve", "--tenant", "x"], "unknown option"),
            (["config"], "config needs another word: check"), (["config", "chek"], "did you mean check?"),
            (["keys", "genrate"], "did you mean generate?"),
            (["keys", "generate", "a", "b"], "b is one word too many"),
            (["keys", "retire"], "ID is missing"), (["keys", "reseal", "--rate"], "--rate needs a value: N"),
            (["keys", "reseal", "--rate", "1", "--rate", "2"], "--rate may stand once only"),
            (["doctor", "x"], "unknown command x"), (["doctor", "stor"], "did you mean store?"),
            (["doctor", "store", "x"], "x is one word too many"), (["doctor", "store", "--repair"], "needs a value"),
            (["pins"], "HOST[:PORT] is missing"), (["pins", "a", "b"], "b is one word too many"),
            (["journal", "forget"], "ID is missing"), (["journal"], "journal needs another word: forget"),
            (["audit", "verify", "--tenant", "t"], "unknown option --tenant"),
            (["audit", "verify", "--json", "--json"], "--json may stand once only"),
            (["audit", "export", "--json"], "unknown option --json"), (["audit", "export", "--from"], "needs a value"),
            (["audit", "look"], "unknown command look"), (["up", "--prt", "1"], "did you mean --port?"),
            (["completions", "basj"], "unknown SHELL basj; did you mean bash?"),
            (["completions"], "SHELL is missing"), (["help", "audit", "exprot"], "did you mean export?"),
            (["help", "servee"], "did you mean serve?"), (["--verison"], "unknown command --verison"),
        ] as [([String], String)])
    func `is refused with what is wrong in it`(words: [String], complaint: String) async {
        let (status, terminal) = await CommandLines.run(words)
        // Words that a client's command could have are a client's; what is the service's alone ends as the service does.
        let isClients = ["serv", "completions", "--verison"].contains(words[0]) || words.starts(with: ["help"])
        let isShared = words == ["keys", "genrate"]
        #expect(status == (isClients || isShared ? .usage : .serviceUsage))
        #expect(terminal.errors.contains(complaint), "\(terminal.errors)")
        #expect(terminal.errors.contains("\nTry: token-broker "))
        #expect(terminal.output.isEmpty)
    }

    @Test func `is explained by help as by its own option`() async {
        for words in [["audit", "export"], ["keys"], ["help"], ["up"]] {
            let own = await CommandLines.run(words + ["--help"])
            let asked = await CommandLines.run(["help"] + words)
            #expect(own.status == .done && asked.status == .done, "\(words)")
            // help alone lists all commands.
            if words != ["help"] { #expect(own.terminal.output == asked.terminal.output) }
        }
        let (none, help) = (await CommandLines.run(["help"]), await CommandLines.run(["--help"]))
        #expect(none.terminal.output == help.terminal.output)
    }
}
