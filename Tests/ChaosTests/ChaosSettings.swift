import BrokerTesting
import FoundationEssentials

/// What can go wrong in a run, as `CHAOS_FAULTS` names it.
enum FaultKind: String, CaseIterable, Hashable {
    /// SIGKILL of a replica, which is then started again with the same port and directories.
    case kill
    /// SIGTERM of a replica, then as above.
    case term
    /// SIGSTOP of a replica for longer than a lease, then SIGCONT.
    case stop
    /// PostgreSQL is told to end, or ended as in a crash, and started again.
    case postgres
    /// PostgreSQL is away for longer than the provider's grace period, beginning while refreshes are under way: what
    /// they bring is in journals then.
    case outage
    /// All connections of a replica to the database are cut.
    case cut
    /// A replica's connection for notifications is cut, or loses what goes over it for a while.
    case listen
    /// The provider answers with 5xx for a while, or slower than its callers wait.
    case provider
    /// All through the run: single answers of the provider fail, are lost after the work was done, or come late.
    case answers
    /// All through the run: one replica's clock is minutes off.
    case clock
    /// All through the run: users log out, and log in again or anew.
    case logins

    /// Those that happen at a moment and are over after a while.
    static let momentary: [FaultKind] = [.kill, .term, .stop, .postgres, .outage, .cut, .listen, .provider]
}

/// How a run is made. Everything that is drawn in it follows from the seed, though not what two processes make of it.
struct ChaosSettings {
    var seed: UInt64 = 20_261_121
    var seconds = 60
    var users = 60
    var readersPerReplica = 4
    var faults: Set<FaultKind> = Set(FaultKind.allCases)

    /// The broker: the one of this build, or `CHAOS_BROKER`, the path of another.
    static let program =
        ProcessInfo.processInfo.environment["CHAOS_BROKER"] ?? BrokerProcess.program("token-broker")

    static let replicas = 3
    static let tenants = 3

    struct Mistake: Error, CustomStringConvertible {
        let description: String
    }

    /// The defaults, changed by `CHAOS_SEED`, `CHAOS_SECONDS`, `CHAOS_USERS`, `CHAOS_READERS` (of each replica) and
    /// `CHAOS_FAULTS` (`all`, `none` or names with commas between them; a name after a minus is left out of all).
    init(environment: [String: String] = ProcessInfo.processInfo.environment) throws {
        func number<Number: FixedWidthInteger>(_ name: String, _ range: ClosedRange<Number>) throws -> Number? {
            guard let text = environment[name] else { return nil }
            guard let number = Number(text), range.contains(number) else {
                throw Mistake(description: "\(name) is not a number from \(range.lowerBound) to \(range.upperBound)")
            }
            return number
        }
        seed = try number("CHAOS_SEED", 0...UInt64.max) ?? seed
        seconds = try number("CHAOS_SECONDS", 5...86_400) ?? seconds
        users = try number("CHAOS_USERS", 3...100_000) ?? users
        readersPerReplica = try number("CHAOS_READERS", 1...100) ?? readersPerReplica
        let names = (environment["CHAOS_FAULTS"] ?? "all").split(separator: ",").map(String.init)
        faults = names.allSatisfy { $0 == "all" || $0.hasPrefix("-") } ? Set(FaultKind.allCases) : []
        for name in names where name != "all" && name != "none" {
            guard let kind = FaultKind(rawValue: name.hasPrefix("-") ? String(name.dropFirst()) : name) else {
                throw Mistake(description: "CHAOS_FAULTS knows no \(name)")
            }
            if name.hasPrefix("-") { faults.remove(kind) } else { faults.insert(kind) }
        }
    }

    /// Nothing goes wrong and nobody logs out.
    static func peaceful(seconds: Int, users: Int) throws -> ChaosSettings {
        var settings = try ChaosSettings(environment: [:])
        settings.seconds = seconds
        settings.users = users
        settings.faults = []
        return settings
    }
}
