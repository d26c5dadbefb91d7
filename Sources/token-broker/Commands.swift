import CommandLineClient
import HTTPSClient

/// A command of the command line.
enum Command: Equatable {
    case serve
    /// Brings the database's schema up to date and exits.
    case migrate
    /// Prints what the environment's variables mean.
    case variables
    case version(isJSON: Bool)
    case checkConfiguration
    case generateKey(id: String)
    /// Prints how much is sealed under each key.
    case keyStatus
    /// Seals everything under the first key.
    case reseal(perSecond: Int)
    /// Has the store open without a key.
    case retireKey(id: String)
    /// Requests /livez from the broker on this machine, for the health check of a container.
    case healthCheck
    /// Connects to a server and prints the pins of its certificates.
    case pins(URLTarget.Origin)
    /// Examines the files of a data directory or a journal directory.
    /// - Parameter repair: the directory to which the intact records are written; nil only reports.
    case examineStore(repair: String?)
    /// Checks the configuration and what is in the store.
    case examineInstallation
    /// Has replicas wait no longer for the journal of a replica that will not come back.
    case forgetJournal(id: String)
    case audit(AuditCommand)

    /// Reads what the words of a command line ask for.
    /// - Throws: `usage`, and says which value is wrong.
    init(_ command: ServiceCommand, _ invocation: Invocation) throws(CommandError) {
        switch command {
        case .serve, .up: self = .serve
        case .migrate: self = .migrate
        case .checkConfiguration: self = .checkConfiguration
        case .generateKey: self = .generateKey(id: invocation.arguments.first ?? "k1")
        case .keyStatus: self = .keyStatus
        case .reseal:
            self = .reseal(perSecond: try invocation.integer("rate", in: Self.resealRates) ?? Self.usualResealRate)
        case .retireKey: self = .retireKey(id: invocation.arguments[0])
        case .healthCheck: self = .healthCheck
        case .pins: self = .pins(try Self.origin(invocation))
        case .examineInstallation: self = .examineInstallation
        case .examineStore:
            if invocation["repair"] == "" { throw invocation.wrong("--repair needs the name of a directory") }
            self = .examineStore(repair: invocation["repair"])
        case .forgetJournal:
            if invocation.arguments[0].isEmpty { throw invocation.wrong("ID is empty") }
            self = .forgetJournal(id: invocation.arguments[0])
        case .verifyAudit: self = .audit(.verify(isJSON: invocation.has("json")))
        case .exportAudit: self = .audit(try .export(invocation))
        case .removeAudit: self = .audit(try .remove(invocation))
        case .variables: self = .variables
        case .version: self = .version(isJSON: invocation.has("json"))
        }
    }

    private static func origin(_ invocation: Invocation) throws(CommandError) -> URLTarget.Origin {
        // A host, or a host and a port: what else a URL may have makes the path another one.
        guard let url = URLTarget("https://\(invocation.arguments[0])/"), url.pathAndQuery == "/" else {
            throw invocation.wrong("\(invocation.arguments[0]) is no host, and no host with a port")
        }
        return url.origin
    }

    /// How many records and events are sealed again in a second.
    private static let resealRates = 1...100_000
    private static let usualResealRate = 500

    /// Whether it is about the whole configuration of the service.
    var concernsService: Bool { [.serve, .checkConfiguration, .examineInstallation].contains(self) }

    /// Whether it needs the master keys of a database.
    var needsMasterKeys: Bool {
        switch self {
        case .migrate, .audit(.export), .pins: false
        default: true
        }
    }

    /// Whether it needs the operator's key for a service with a database.
    var needsAdminKey: Bool {
        switch self {
        case .migrate, .audit, .keyStatus, .reseal, .retireKey, .forgetJournal, .pins: false
        default: true
        }
    }

    /// Whether it works on what is stored, beside the service or in its place.
    var usesStore: Bool {
        switch self {
        case .keyStatus, .reseal, .retireKey, .examineInstallation, .examineStore, .audit: true
        default: false
        }
    }

    static let versionText = "0.2.0"
}
