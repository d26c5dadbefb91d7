import CommandLineClient
import CredentialStore
import Cryptography
import HTTPCodec
import HTTPSClient
import HTTPServer
import JSON
import OAuth
import Reactor
import TokenBroker

StandardStreams.fillClosed()
TerminationSignal.ignoreBrokenPipes()
let terminal = SystemTerminal()
let words = givenWords()
switch CommandProgram.step(
    words.isEmpty ? ["serve"] : words, terminal: terminal, environment: ProcessEnvironment.variables)
{
case .end(let status): Console.exit(status.rawValue)
case .run(let invocation): runClient(invocation)
case .service(let name, let invocation):
    do throws(CommandError) {
        let command = try Command(name, invocation)
        run(command, name == .up ? try PersonalBroker(invocation) : nil)
    } catch {
        Console.exit(CommandProgram.report(error, terminal).ofService.rawValue)
    }
}

/// The words of the command line. Where one of them is no text, the program ends.
func givenWords() -> [String] {
    do throws(ProcessArguments.Fault) {
        return try ProcessArguments.words()
    } catch {
        let text = "word \(error.position) of the command line is no text in UTF-8"
        Console.exit(CommandProgram.report(CommandError(.usage, text), SystemTerminal()).rawValue)
    }
}

/// Runs a command that speaks to a broker, and exits. SIGTERM, SIGINT, and what a terminal sends, end it at once, unless nohup(1) has
/// started it; Control-Z stops it.
func runClient(_ invocation: Invocation) -> Never {
    TerminationSignal.blockForCommand()
    harden(isForGood: false)
    Task { Console.exit(await CommandProgram.run(invocation).rawValue) }
    let status = TerminationSignal.waitForCommand()
    TerminalDevice.restore()
    Console.exit(status ?? ExitStatus.interrupted.rawValue)
}

/// Runs a command of the service, and exits.
/// - Parameter personal: what `token-broker up` sets; nil for all other commands.
func run(_ command: Command, _ personal: PersonalBroker?) -> Never {
    switch command {
    case .variables: Console.print(Variable.help)
    case .version(let isJSON): printVersion(isJSON: isJSON)
    case .checkConfiguration:
        for variable in loadConfiguration(for: command).exposedFiles {
            Console.printError("token-broker: warning: \(variable) names a file that other users can read")
        }
        Console.print("The configuration is valid.")
    case .generateKey(let id):
        do throws(CryptographyError) {
            Console.print(try Keyring.generate(id: id))
        } catch {
            let isName = error == .invalidLength
            Console.printError(
                "token-broker: " + (isName ? "the name of a key has 1 to 32 letters, digits, - and _" : "\(error)"))
            Console.exit((isName ? ExitStatus.serviceUsage : .failed).rawValue)
        }
    case .keyStatus, .reseal, .retireKey: runKeyCommand(command)
    case .healthCheck: runHealthCheck()
    case .pins(let origin): showPins(of: origin)
    case .migrate: runMigration()
    case .serve: runService(personal)
    case .examineInstallation: examineInstallation()
    case .forgetJournal(let id): forgetJournal(id)
    case .examineStore(let target): examineStore(repair: target)
    case .audit(let audit): runAudit(audit)
    }
    endCommand(0)
}

func printVersion(isJSON: Bool) {
    guard isJSON else { return Console.print("token-broker \(Command.versionText) (commit \(BuildCommit.text))") }
    let json = JSONWriter.object { json in
        json.member("version", Command.versionText)
        json.member("commit", BuildCommit.text)
    }
    Console.print(String(decoding: json, as: UTF8.self))
}

/// Reads the configuration, once nothing writes the secrets in it to a disk. If it has faults, prints all of them and exits.
/// - Parameter personal: what `token-broker up` sets beside the environment.
func loadConfiguration(for command: Command, _ personal: PersonalBroker? = nil) -> Configuration {
    harden()
    do throws(Configuration.Faults) {
        if let personal { return try Configuration(environment: personal.environment, for: command) }
        let implied = try ImpliedDirectory(ProcessEnvironment.variables, for: command)
        if let note = implied.note { Console.printError("token-broker: \(note)") }
        return try Configuration(environment: implied.environment, for: command)
    } catch {
        for line in error.lines { Console.printError("token-broker: \(line)") }
        Console.exit(ExitStatus.serviceConfiguration.rawValue)
    }
}

/// Serves until the first SIGTERM or SIGINT and the grace period after it. A second signal ends the process at once. At SIGHUP
/// the master keys are read again.
func runService(_ personal: PersonalBroker?) -> Never {
    TerminationSignal.deferHangUp()
    reserveDescriptors()
    prepareCryptography()
    let configuration = loadConfiguration(for: .serve, personal)
    TerminationSignal.blockWithHangUp()
    if configuration.locksMemory { lockMemory() }
    let service = Task {
        do throws(CommandFailure) {
            let service = try await RunningService.start(configuration)
            if let personal { Console.printError(personal.announcement(configuration)) }
            return service
        } catch {
            Console.printError("token-broker: \(error.text)")
            if personal != nil, error.isAddressTaken {
                let taken = configuration.server.address.port
                let port = taken == 65_535 ? 8080 : taken + 1
                Console.printError("Try: token-broker up --port \(port)")
            }
            Console.exit(1)
        }
    }
    // One reading at a time, and one that waits: it reads what is there by then.
    let (hangUps, hangUp) = AsyncStream.makeStream(of: Void.self, bufferingPolicy: .bufferingNewest(1))
    let reading = Task {
        for await _ in hangUps { await service.value.readKeysAgain() }
    }
    while TerminationSignal.waitForHangUp() { hangUp.yield() }
    hangUp.finish()
    Task {
        // A start that waits for its database stops waiting.
        service.cancel()
        reading.cancel()
        await reading.value
        await service.value.close()
        Console.exit(0)
    }
    TerminationSignal.wait()
    Console.exit(ExitStatus.interrupted.rawValue)
}

/// Reserves descriptors before the first thread starts. The configuration has not been read yet, so this assumes its
/// default number of connections.
func reserveDescriptors() {
    // If the limit cannot be raised, the start fails later with an error.
    let limit = (try? DescriptorLimit.raise()) ?? 0
    DescriptorLimit.reserve(min(16_384, limit))
}

/// Makes OpenSSL load its algorithms while the configuration is read. The first use of an algorithm makes OpenSSL
/// search all of them, which takes a large part of the start.
func prepareCryptography() {
    // Without a thread, the first use of an algorithm takes longer.
    let thread = try? Thread.start(name: "openssl") {
        AES256GCM.prepare()
        HTTPSClient.prepare()
    }
    thread?.detach()
}

/// Migrates and exits. The first signal ends the process, and the database then rolls back the running step.
func runMigration() -> Never {
    let configuration = loadConfiguration(for: .migrate)
    runCommand { () async throws(CommandFailure) in
        try await RunningService.migrate(configuration)
        return 0
    }
}

/// Protects the secrets that the process will hold.
/// - Parameter isForGood: false where another program may take the place of this one.
func harden(isForGood: Bool = true) {
    do throws(SystemError) {
        try ProcessHardening.forbidCoreDumps(isForGood: isForGood)
    } catch {
        Console.printError("token-broker: \(error)")
        Console.exit(ExitStatus.unprotected.rawValue)
    }
}

/// Keeps the memory of the process out of swap, as TOKEN_BROKER_LOCK_MEMORY asks for.
func lockMemory() {
    do throws(SystemError) {
        try ProcessHardening.lockMemory()
    } catch {
        Console.printError(
            "token-broker: TOKEN_BROKER_LOCK_MEMORY is true, and memory cannot be locked: give the process CAP_IPC_LOCK or an "
                + "unlimited RLIMIT_MEMLOCK (\(error))")
        Console.exit(ExitStatus.unprotected.rawValue)
    }
}

/// Requests /livez at the configured address, over loopback if the address means all addresses of the host.
func runHealthCheck() -> Never {
    let configuration = loadConfiguration(for: .healthCheck)
    if configuration.certificate != nil, configuration.operationsListen == nil {
        Console.printError(
            "token-broker: with TOKEN_BROKER_TLS_CERTIFICATE a health check requires TOKEN_BROKER_OPERATIONS_LISTEN, which is "
                + "served without TLS")
        Console.exit(ExitStatus.serviceConfiguration.rawValue)
    }
    let listen = configuration.operationsListen ?? configuration.server.address
    let host: String
    switch listen.ip {
    case .v4(let bytes): host = bytes == [0, 0, 0, 0] ? "127.0.0.1" : listen.host
    case .v6(let bytes, _): host = bytes.allSatisfy { $0 == 0 } ? "[::1]" : "[\(listen.host)]"
    }
    TerminationSignal.block()
    Task {
        do {
            var configuration = HTTPSClientConfiguration()
            configuration.targets = .everything
            configuration.exchangeTimeout = .seconds(3)
            let client = try HTTPSClient(
                configuration: configuration, loop: try EventLoop(name: "health"), resolver: try NameResolver())
            let url = URLTarget("http://\(host):\(listen.port)/livez")!
            let response = try await client.send(ClientRequest(method: .get, url: url))
            Console.exit(response.status == .ok ? 0 : 1)
        } catch {
            let reason =
                (error as? TransportError)?.clause(roots: "TOKEN_BROKER_TRUSTED_CA_FILE") ?? "\(error)"
            Console.printError("token-broker: the service at \(host):\(listen.port) does not answer: \(reason)")
            Console.exit(1)
        }
    }
    TerminationSignal.wait()
    Console.exit(ExitStatus.interrupted.rawValue)
}
