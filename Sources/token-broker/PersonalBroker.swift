import CommandLineClient
import HTTPServer
import Reactor
import TokenBroker

/// What `token-broker up` sets for a broker of one person on this machine.
struct PersonalBroker {
    /// The variables of the process, and those that it sets where they are not.
    let environment: [String: String]
    private let directory: String
    /// Where commands look for the address and the key without being told.
    private let usualDirectory: String?

    /// Makes the directory for the data, for this user only, and those above it.
    /// - Throws: `usage` for a port that is none, and `configuration` where there is no place for the data.
    init(_ invocation: Invocation) throws(CommandError) {
        var environment = invocation.environment.filter { !$0.value.isEmpty }
        for name in ["TOKEN_BROKER_DATABASE_URL", "TOKEN_BROKER_DATABASE_URL_FILE"] where environment[name] != nil {
            throw CommandError(
                .configuration, "\(name) is set, and this command keeps its data in a directory",
                next: "token-broker serve")
        }
        if let port = try invocation.integer("port", in: 1...65_535) {
            environment["TOKEN_BROKER_LISTEN"] = "127.0.0.1:\(port)"
        }
        environment.merge(["TOKEN_BROKER_LOG_LEVEL": "warning"]) { given, _ in given }
        usualDirectory = UserDirectories.dataOfUser(environment)
        guard let directory = environment["TOKEN_BROKER_DATA_DIR"] ?? usualDirectory else {
            throw CommandError(
                .configuration, "set HOME, XDG_DATA_HOME or TOKEN_BROKER_DATA_DIR, so that data can be kept")
        }
        environment["TOKEN_BROKER_DATA_DIR"] = directory
        do throws(SystemError) {
            try SmallFile.makeDirectories(above: directory + "/admin.key")
        } catch {
            throw CommandError(.configuration, "\(directory) cannot be made: \(error)")
        }
        self.directory = directory
        self.environment = environment
    }

    /// Where it is, where its keys are, and what to run next. Without a line break at the end.
    func announcement(_ configuration: Configuration) -> String {
        let address = "\(configuration.certificate == nil ? "http" : "https")://\(configuration.server.address)"
        let adminKey =
            configuration.broker.adminKeys == nil ? "\(directory)/admin.key" : "as TOKEN_BROKER_ADMIN_KEY says"
        let masterKeys =
            configuration.leavesMasterKeysToStore
            ? "\(directory)/master.keys, without which the data cannot be read"
            : configuration.masterKeysFile ?? "as the variables say"
        var next: [String] = []
        if directory != usualDirectory {
            next.append("export TOKEN_BROKER_DATA_DIR=\(ShellWord.quoted(directory))")
        }
        // Commands would speak to another one.
        if environment["TOKEN_BROKER_URL"] != nil || (try? Contexts.read(environment))?.inUse != nil {
            let isTLS = configuration.certificate != nil
            next.append("export TOKEN_BROKER_URL=\(LocalBroker.url(of: configuration.server.address, isTLS: isTLS))")
        }
        next.append("token-broker tenants create --help")
        return """
            The broker runs at \(address) until Control-C.
              data         \(directory)
              admin key    \(adminKey)
              master keys  \(masterKeys)
            Next, in another terminal:
              \(next.joined(separator: "\n  "))
            """
    }
}
