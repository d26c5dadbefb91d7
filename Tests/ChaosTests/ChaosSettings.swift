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
    /// The provider loses answers after the work was done, and the replica that waited for them is killed.
    case holder
    /// PostgreSQL is told to end, or ended as in a crash, and started again.
    case postgres
    /// PostgreSQL is away for longer than ten seconds, beginning while refreshes are under way: what they bring is in
    /// journals then.
    case outage
    /// All processes of PostgreSQL are stopped for a while (SIGSTOP) and go on: connections stand, nothing is answered.
    case pause
    /// PostgreSQL fails over to an asynchronous standby that lacks the commits of up to the last two seconds, some of
    /// them refreshes made on purpose. All that replicas reach the database by leads to the promoted server then.
    case failover
    /// No replica can write to its journal's directory, and PostgreSQL is away while refreshes are under way.
    case journal
    /// All connections of a replica to the database are cut.
    case cut
    /// What a replica tells the database arrives, and no answer comes back; or the other way round.
    case oneway
    /// What a replica tells the database arrives after the replica has given up waiting.
    case late
    /// A replica's connection for notifications is cut, or loses what goes over it for a while.
    case listen
    /// The provider answers with 5xx for a while, or slower than its callers wait.
    case provider
    /// The way to the provider is cut, lets nothing through in one direction or both, or ends within answers.
    case link
    /// One replica's clock steps, and steps back after a while.
    case step
    /// A tenant's scopes change, which makes an upgrade of each of its users due.
    case scopes
    /// The client secret changes at the provider and then at the tenants.
    case secrets
    /// A new master key is added, and put in front, at one replica after the other.
    case masterkeys
    /// All through the run: single answers of the provider fail, are malformed, are lost after the work was done, or
    /// come late.
    case answers
    /// All through the run: one replica's clock is minutes off.
    case clock
    /// All through the run: users log out, and log in again or anew.
    case logins

    /// Those that happen at a moment and are over after a while.
    static let momentary: [FaultKind] = allCases.filter { ![.answers, .clock, .logins].contains($0) }

    /// Whether no replica can use the database meanwhile.
    var takesDatabase: Bool { [.postgres, .outage, .pause, .journal, .failover].contains(self) }

    /// Whether what it makes the provider do would end what another of these made it do.
    var scriptsProvider: Bool { [.holder, .outage, .journal, .provider, .link].contains(self) }

    /// Whether it writes what an operator has to write again after a failover that lost it.
    var changesConfiguration: Bool { [.scopes, .secrets].contains(self) }

    /// Whether it is about one replica, which another one of these must not be about at the same time.
    var restarts: Bool { [.kill, .term, .stop, .holder, .masterkeys].contains(self) }

    /// How long after its end every user must be given a token again, in milliseconds. After a failover no refresh token is
    /// presented for the three seconds of the hold, which begins when a replica notices.
    var recoveryLimit: Moment { [.pause, .failover].contains(self) ? 6000 : 2000 }

    /// How long after its end no replica can be expected to present a refresh token, in milliseconds: the hold after a
    /// failover, and a second until a replica has noticed.
    var hold: Moment { self == .failover ? 4000 : 0 }
}

/// How a run is made. Everything that is drawn in it follows from the seed, though not what two processes make of it.
struct ChaosSettings {
    /// Which replicas reach their database through PgBouncer.
    enum Pooling: String, CaseIterable {
        case none
        case one
        case all
    }

    var seed: UInt64 = 20_261_121
    var seconds = 60
    var users = 60
    /// One of so many users logs in through an app that refreshes at the brokers; 0 for none.
    var usersOfApp = 5
    var readersPerReplica = 4
    var faults: Set<FaultKind> = Set(FaultKind.allCases)
    /// How long the provider takes a refresh token that was used already, in seconds.
    var graceSeconds = 10
    var pooling = Pooling.one
    /// Whether a user without a token later than `FaultKind.recoveryLimit` fails the run. The figures are always printed.
    var judgesRecovery = false

    /// The broker: the one of this build, or `CHAOS_BROKER`, the path of another.
    static let program =
        ProcessInfo.processInfo.environment["CHAOS_BROKER"] ?? BrokerProcess.program("token-broker")

    static let replicas = 3
    static let tenants = 5

    /// The users who log in through an app, of all tenants.
    var appUsers: [Int] {
        usersOfApp == 0 ? [] : (0..<users).filter { $0 % usersOfApp == $0 / usersOfApp % usersOfApp }
    }

    /// The last users, who are never logged in or out: after each fault they show when there are tokens again.
    var probes: Int { min(8, users / 4) }

    struct Mistake: Error, CustomStringConvertible {
        let description: String
    }

    /// The defaults, changed by `CHAOS_SEED`, `CHAOS_SECONDS`, `CHAOS_USERS`, `CHAOS_READERS` (of each replica),
    /// `CHAOS_APPS` (of how many users one has an app),
    /// `CHAOS_GRACE` (seconds), `CHAOS_PGBOUNCER` (none, one, all), `CHAOS_RECOVERY` (`judged` or `told`) and
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
        users = try number("CHAOS_USERS", 4...100_000) ?? users
        readersPerReplica = try number("CHAOS_READERS", 1...100) ?? readersPerReplica
        usersOfApp = try number("CHAOS_APPS", 0...100_000) ?? usersOfApp
        graceSeconds = try number("CHAOS_GRACE", 0...3600) ?? graceSeconds
        if let name = environment["CHAOS_PGBOUNCER"] {
            guard let choice = Pooling(rawValue: name) else {
                throw Mistake(description: "CHAOS_PGBOUNCER is none of none, one, all")
            }
            pooling = choice
        }
        if let name = environment["CHAOS_RECOVERY"] {
            guard ["judged", "told"].contains(name) else {
                throw Mistake(description: "CHAOS_RECOVERY is neither judged nor told")
            }
            judgesRecovery = name == "judged"
        }
        let names = (environment["CHAOS_FAULTS"] ?? "all").split(separator: ",").map(String.init)
        faults = names.allSatisfy { $0 == "all" || $0.hasPrefix("-") } ? Set(FaultKind.allCases) : []
        for name in names where name != "all" && name != "none" {
            guard let kind = FaultKind(rawValue: name.hasPrefix("-") ? String(name.dropFirst()) : name) else {
                throw Mistake(description: "CHAOS_FAULTS knows no \(name)")
            }
            if name.hasPrefix("-") { faults.remove(kind) } else { faults.insert(kind) }
        }
    }

    /// No fault occurs, no user logs out, and no app refreshes.
    static func peaceful(seconds: Int, users: Int) throws -> ChaosSettings {
        var settings = try ChaosSettings(environment: [:])
        settings.seconds = seconds
        settings.users = users
        settings.usersOfApp = 0
        settings.faults = []
        return settings
    }
}
