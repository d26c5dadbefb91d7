import CredentialStore
import Cryptography
import ExternalText
import Glibc
import OAuth
import Postgres
import Reactor

// Compares cold reads through one pipeline with the same reads in a round trip each. See `cold.sh`.

/// What this process has used, and when.
struct Usage {
    let instant = MonotonicInstant.now
    let user: Double
    let system: Double

    init() {
        var usage = rusage()
        unsafe getrusage(RUSAGE_SELF.rawValue, &usage)
        user = Double(usage.ru_utime.tv_sec) * 1e6 + Double(usage.ru_utime.tv_usec)
        system = Double(usage.ru_stime.tv_sec) * 1e6 + Double(usage.ru_stime.tv_usec)
    }
}

/// Microseconds per read.
struct Cost {
    var time: Double
    var user: Double
    var system: Double
}

let keyCount = 10_000
let tenant = TenantName("bench")!
let connectionString = CommandLine.arguments[1]
let rounds = CommandLine.arguments.count > 2 ? Int(CommandLine.arguments[2])! : 7
let loop = try EventLoop(name: "bench")
let resolver = try NameResolver()
let keyring = try Keyring(parsing: "k:" + Base64.encode((0..<32).map { UInt8($0) }))

func open(connections: Int, reads: Int) async throws -> Vault {
    var configuration = try PostgresConfiguration(connectionString)
    configuration.maximumConnections = connections
    configuration.maximumPipelinedReads = reads
    configuration.maximumWaiters = 100_000
    configuration.waitTimeout = .seconds(60)
    configuration.statementTimeout = .seconds(60)
    return Vault(
        store: try await PostgresRecordStore.open(configuration, on: loop, resolver: resolver), keyring: keyring)
}

func id(_ number: Int) -> RecordID { RecordID(.credentials, tenant, key: "user-\(number)") }

func fill(_ vault: Vault) async throws {
    if try await vault.read(id(keyCount - 1)) != nil { return }
    let record = CredentialRecord(
        held: HeldCredentials(
            level: .user, accessToken: SecretBytes([UInt8](repeating: 0x61, count: 700)),
            refreshToken: SecretBytes([UInt8](repeating: 0x62, count: 60)),
            expires: Timestamp(milliseconds: 1_800_000_000_000),
            grantedScopes: ScopeSet(["r_usr", "w_usr"])!, userID: "12345678",
            obtainedWith: ClientFingerprint(
                clientID: "client", scopes: ScopeSet(["r_usr", "w_usr"])!, clientUniqueKey: nil, clientSecretDigest: nil
            ), grantedBy: GrantingProvider(issuer: nil, tokenEndpoint: "https://auth.example.com/oauth2/token")))
    for start in stride(from: 0, to: keyCount, by: 500) {
        try await vault.commit(
            (start..<start + 500).map {
                .insert(OpenRecord(id: id($0), version: 1, content: SecretBytes(record.encoded)))
            })
    }
}

/// Reads `count` records, `callers` at a time.
func run(_ vault: Vault, callers: Int, count: Int, decoding: Bool) async throws -> Cost {
    let before = Usage()
    try await withThrowingTaskGroup(of: Void.self) { group in
        for caller in 0..<callers {
            group.addTask {
                for number in stride(from: caller, to: count, by: callers) {
                    guard decoding else {
                        guard try await vault.version(of: id(number * 7 % keyCount)) == 1 else {
                            fatalError("no record")
                        }
                        continue
                    }
                    guard let record = try await vault.read(id(number * 7 % keyCount)),
                        CredentialRecord(decoding: record.content.revealedBytes) != nil
                    else { fatalError("no record") }
                }
            }
        }
        try await group.waitForAll()
    }
    let after = Usage()
    let each = Double(count)
    return Cost(
        time: Double(before.instant.duration(to: after.instant).nanoseconds) / 1e3 / each,
        user: (after.user - before.user) / each, system: (after.system - before.system) / each)
}

func median(_ values: [Double]) -> Double { values.sorted()[values.count / 2] }

func text(_ value: Double) -> String {
    let digits = String(Int((value * 10).rounded()))
    return (digits.count == 1 ? "0" : String(digits.dropLast())) + "." + digits.suffix(1)
}

func row(_ cells: [String]) {
    print(cells.map { String(repeating: " ", count: max(0, 12 - $0.count)) + $0 }.joined())
}

let single = try await open(connections: 1, reads: 1)
try await fill(single)
let several = try await open(connections: 4, reads: 1)
let pipelined = try await open(connections: 4, reads: 32)
let pipelinedOnOne = try await open(connections: 1, reads: 32)
let ways: [(String, Vault)] = [
    ("1 x 1", single), ("4 x 1", several), ("1 x 32", pipelinedOnOne), ("4 x 32", pipelined),
]
for decoding in [false, true] {
    print(decoding ? "\nread, unsealed and decoded" : "read")
    print("microseconds per read: time, user and system CPU of this process; medians of \(rounds) interleaved rounds")
    row(["callers", "way", "time", "user", "system", "x 1 x 1", "x 4 x 1"])
    for callers in [1, 8, 64, 512] {
        let count = callers == 1 ? 2000 : 8000
        var costs = [[Cost]](repeating: [], count: ways.count)
        for round in 0...rounds {
            for (index, way) in ways.enumerated() {
                let cost = try await run(way.1, callers: callers, count: count, decoding: decoding)
                // The first round opens connections, and has both sides' memory filled.
                if round > 0 { costs[index].append(cost) }
            }
        }
        for (index, way) in ways.enumerated() {
            let ratios = [0, 1].map { base in
                median(zip(costs[base], costs[index]).map { $0.time / $1.time })
            }
            row(
                ["\(callers)", way.0]
                    + [costs[index].map(\.time), costs[index].map(\.user), costs[index].map(\.system)].map {
                        text(median($0))
                    } + ratios.map { text($0) })
        }
    }
}
