// swift-tools-version: 6.2
import PackageDescription

// Every Swift target is held to the same rules: language mode 6, each touch of C spelled `unsafe`,
// and no warning survives a build.
let strict: [SwiftSetting] = [
    .swiftLanguageMode(.v6),
    .strictMemorySafety(),
    .treatAllWarnings(as: .error),
    .enableUpcomingFeature("ExistentialAny"),
    .enableUpcomingFeature("InternalImportsByDefault"),
    .enableUpcomingFeature("MemberImportVisibility"),
    .enableUpcomingFeature("NonisolatedNonsendingByDefault"),
]

func library(_ name: String, _ dependencies: [Target.Dependency]) -> Target {
    .target(name: name, dependencies: dependencies, swiftSettings: strict)
}

/// - Parameter tools: the target with what its tests use.
func tests(
    _ name: String, _ dependencies: [Target.Dependency], with tools: Target.Dependency = "BrokerTesting",
    exclude: [String] = []
) -> Target {
    .testTarget(
        name: name, dependencies: dependencies + [tools, "ExternalText"], path: "Tests/\(name)", exclude: exclude,
        swiftSettings: strict)
}

/// Tests of what knows no broker: built and run alone by `Deploy/test --ground`.
func groundTests(_ name: String, _ dependencies: [Target.Dependency], exclude: [String] = []) -> Target {
    tests(name, dependencies, with: "GroundTesting", exclude: exclude)
}

let package = Package(
    name: "token-broker",
    products: [
        .executable(name: "token-broker", targets: ["token-broker"]),
        .executable(name: "token-broker-provider", targets: ["token-broker-provider"]),
        .library(name: "Auth", targets: ["Auth"]),
        .library(name: "AuthTesting", targets: ["AuthTesting"]),
    ],
    targets: [
        // System libraries and the few Linux calls that Swift's Glibc module leaves out.
        .target(name: "CLinux"),
        // Overwrites freed memory in the program that it is linked into.
        .target(name: "CWipe"),
        // openapi.yaml, its page and the profiles of providers, carried inside the binary by #embed.
        .target(name: "CResources", exclude: ["api.html", "profiles"]),
        .systemLibrary(name: "COpenSSL", pkgConfig: "openssl", providers: [.apt(["libssl-dev"])]),
        // libpq, loaded by the processes that use a database.
        .target(name: "CPostgres"),

        // The two cores that do no I/O, and what they are written in.
        library("Containers", []),
        library("ExternalText", []),
        library("JSON", ["ExternalText"]),
        library("Cryptography", ["COpenSSL"]),
        library("HTTPCodec", ["ExternalText"]),
        library("JOSE", ["Cryptography", "ExternalText", "JSON"]),
        library(
            "OAuth", ["Containers", "CResources", "Cryptography", "ExternalText", "HTTPCodec", "JOSE", "JSON"]),

        // What several replicas may do to one record, without a store, a clock or a network.
        library("Renewal", []),

        // Tasks that wait for each other.
        library("Waiting", ["Containers"]),

        // Bytes in and out.
        library("Reactor", ["CLinux", "Containers", "Waiting"]),
        library("TLS", ["Cryptography", "COpenSSL"]),
        library("HTTPServer", ["Reactor", "HTTPCodec", "CLinux", "TLS"]),
        library(
            "HTTPSClient",
            ["Containers", "ExternalText", "Reactor", "HTTPCodec", "Cryptography", "COpenSSL", "TLS", "Waiting"]),
        library("Postgres", ["Reactor", "CPostgres", "Waiting"]),
        library(
            "CredentialStore",
            [
                "Containers", "OAuth", "Cryptography", "ExternalText", "Postgres", "Reactor", "JSON", "CLinux",
                "Waiting",
            ]),

        // What the broker does, without a server in front of it.
        library(
            "BrokerCore",
            [
                "Containers", "HTTPSClient", "CredentialStore", "OAuth", "JOSE", "Cryptography", "ExternalText",
                "HTTPCodec", "JSON", "Reactor", "Postgres", "Renewal", "CLinux", "Waiting",
            ]),

        // The same as a library, for programs that need no service.
        library(
            "Auth",
            [
                "BrokerCore", "CredentialStore", "OAuth", "Cryptography", "ExternalText", "HTTPCodec", "HTTPSClient",
                "HTTPServer", "JOSE", "JSON", "Postgres", "Reactor", "Waiting",
            ]),
        .executableTarget(name: "auth-example", dependencies: ["Auth"], swiftSettings: strict),
        // Two apps of one device, of which the first lets the second in.
        .executableTarget(name: "app-a-example", dependencies: ["Auth"], swiftSettings: strict),
        .executableTarget(name: "app-b-example", dependencies: ["Auth"], swiftSettings: strict),

        // The service, and the provider that development and tests log in at.
        library(
            "TokenBroker",
            [
                "BrokerCore", "HTTPServer", "HTTPSClient", "CredentialStore", "OAuth", "Cryptography", "ExternalText",
                "HTTPCodec", "JSON", "Reactor", "Postgres", "CResources", "TLS", "Waiting",
            ]),
        library(
            "DevelopmentProvider",
            [
                "Containers", "HTTPServer", "HTTPCodec", "JOSE", "Cryptography", "ExternalText", "JSON", "OAuth",
                "Reactor", "TLS", "Waiting",
            ]),
        // What holds tasks back until a test lets them go on.
        library("Gates", []),
        // What tests of a program that uses the library need in place of a provider, of the network and of the time.
        library(
            "AuthTesting",
            [
                "Auth", "BrokerCore", "Cryptography", "DevelopmentProvider", "ExternalText", "Gates", "HTTPCodec",
                "HTTPServer", "HTTPSClient", "JOSE", "JSON", "OAuth", "Reactor", "TLS",
            ]),
        // The commands that speak to a broker over HTTP, and what all commands have in common.
        library(
            "CommandLineClient",
            ["Cryptography", "ExternalText", "HTTPCodec", "HTTPSClient", "JSON", "OAuth", "Reactor", "Waiting"]),
        .executableTarget(
            name: "token-broker",
            dependencies: [
                "CommandLineClient", "TokenBroker", "BrokerCore", "CredentialStore", "HTTPServer", "HTTPSClient",
                "Postgres", "OAuth",
                "Cryptography", "CWipe", "ExternalText", "Reactor", "JSON", "TLS", "Waiting",
            ],
            swiftSettings: strict),
        .executableTarget(
            name: "token-broker-provider", dependencies: ["DevelopmentProvider", "HTTPServer", "Reactor"],
            swiftSettings: strict),

        // Tools of tests that know no broker.
        .target(
            name: "GroundTesting",
            dependencies: [
                "Cryptography", "ExternalText", "Gates", "HTTPCodec", "JOSE", "JSON", "OAuth", "Reactor",
            ],
            path: "Tests/GroundSupport", swiftSettings: strict),
        // Doubles and tools that several test targets share.
        .target(
            name: "BrokerTesting",
            dependencies: [
                "AuthTesting", "GroundTesting", "TokenBroker", "BrokerCore", "DevelopmentProvider", "CredentialStore",
                "HTTPServer",
                "HTTPSClient", "ExternalText", "HTTPCodec", "JOSE", "OAuth", "Postgres", "Reactor", "Cryptography",
                "JSON", "TLS",
            ],
            path: "Tests/Support",
            exclude: [
                "chromium", "glewlwyd", "openapi/contract.py", "openapi/fuzz", "openapi/fuzz.toml",
                "openapi/fuzz_apps.py", "openapi/generate", "openapi/page", "openapi/page.css",
                "openapi/page_schemas.py",
                "openapi/requirements.txt", "servers",
            ], swiftSettings: strict),
        // Whole replicas in a simulated world: a program of its own, since it takes over Swift's runtime.
        .target(name: "CSimulation", path: "Tests/Simulation/CSimulation"),
        .executableTarget(
            name: "simulation",
            dependencies: [
                "BrokerCore", "CredentialStore", "CSimulation", "Cryptography", "ExternalText", "HTTPCodec",
                "HTTPSClient", "JSON", "OAuth", "Reactor",
            ],
            path: "Tests/Simulation/Tool", swiftSettings: strict),
        // It starts the program above, which is built with the tests.
        tests("SimulationTests", []),
        // Hostile input for what reads bytes from outside.
        .target(name: "CFuzzing", path: "Tests/Fuzzing/CFuzzing"),
        .executableTarget(
            name: "fuzz",
            dependencies: [
                "BrokerCore", "CFuzzing", "CredentialStore", "Cryptography", "ExternalText", "HTTPCodec", "HTTPSClient",
                "JOSE", "JSON", "OAuth", "Reactor",
            ],
            path: "Tests/Fuzzing/Tool", swiftSettings: strict),
        // It starts the program above, too.
        tests("FuzzingTests", []),
        tests(
            "CommandLineClientTests",
            [
                "CommandLineClient", "Cryptography", "DevelopmentProvider", "HTTPCodec", "HTTPSClient", "JSON",
                "Reactor",
            ],
            exclude: ["token-files"]),
        groundTests("ContainersTests", ["Containers"]),
        groundTests("WaitingTests", ["Waiting"]),
        groundTests("ReactorTests", ["Reactor"]),
        groundTests("CryptographyTests", ["Cryptography"]),
        groundTests("ExternalTextTests", []),
        groundTests("HTTPCodecTests", ["HTTPCodec"]),
        groundTests("JSONTests", ["JSON"]),
        groundTests("OAuthTests", ["OAuth", "JOSE", "JSON", "Cryptography", "HTTPCodec"]),
        groundTests(
            "JOSETests", ["JOSE", "Cryptography", "JSON", "Reactor"],
            exclude: ["Vectors", "interop.py", "requirements.txt"]),
        // Several replicas that renew one record, and a search of everything that can happen to them. It looks at millions
        // of states, so it is compiled with optimisation whatever the rest is.
        .target(
            name: "RenewalWorld", dependencies: ["Renewal"], path: "Tests/RenewalWorld",
            swiftSettings: strict + [.unsafeFlags(["-O"])]),
        .executableTarget(
            name: "exploration", dependencies: ["RenewalWorld"], path: "Tests/Exploration/Tool", swiftSettings: strict),
        groundTests("RenewalTests", ["Reactor", "RenewalWorld"]),
        tests("HTTPServerTests", ["HTTPServer", "HTTPSClient", "HTTPCodec", "Reactor", "TLS"]),
        tests("HTTPSClientTests", ["HTTPSClient", "Cryptography", "HTTPCodec", "Reactor"]),
        tests("PostgresTests", ["Postgres", "Reactor"]),
        tests(
            "CredentialStoreTests",
            ["CredentialStore", "DevelopmentProvider", "Postgres", "OAuth", "Cryptography", "Reactor", "JSON"]),
        tests(
            "DevelopmentProviderTests",
            [
                "DevelopmentProvider", "HTTPServer", "HTTPSClient", "HTTPCodec", "JOSE", "JSON", "Reactor",
                "Cryptography", "OAuth", "TLS",
            ]),
        tests(
            "BrokerCoreTests",
            [
                "BrokerCore", "CredentialStore", "Cryptography", "HTTPCodec", "HTTPSClient", "JOSE", "OAuth",
                "Postgres", "Reactor",
            ]),
        tests(
            "TokenBrokerTests",
            [
                "TokenBroker", "BrokerCore", "DevelopmentProvider", "CredentialStore", "HTTPServer", "HTTPSClient",
                "HTTPCodec", "JOSE", "OAuth", "Cryptography", "Postgres", "Reactor", "JSON", "TLS",
            ]),
        tests(
            "AuthTests",
            [
                "Auth", "AuthTesting", "BrokerCore", "OAuth", "Cryptography", "DevelopmentProvider", "HTTPCodec",
                "HTTPSClient", "JSON", "Reactor",
            ]),
        tests(
            "IntegrationTests",
            [
                "Auth", "DevelopmentProvider", "HTTPCodec", "HTTPSClient", "JSON", "Reactor", "Cryptography",
                "Postgres", "CredentialStore", "HTTPServer", "OAuth",
            ],
            exclude: ["oauth-libraries"]),
        // Replicas as processes, under faults: what is promised of many brokers at one database.
        .testTarget(
            name: "ChaosTests",
            dependencies: [
                "BrokerTesting", "DevelopmentProvider", "ExternalText", "HTTPCodec", "HTTPSClient", "JSON", "Reactor",
                "Cryptography",
            ],
            path: "Tests/ChaosTests", exclude: ["run", "clock.c", "README.md"], swiftSettings: strict),
    ]
)

// `Deploy/test --ground` and `--quick` build a part of the package: what these tests need, and nothing else.
switch Context.environment["TOKEN_BROKER_TESTS"] {
case "ground":
    let ground: Set = [
        "CLinux", "CResources", "COpenSSL", "Containers", "ExternalText", "JSON", "Cryptography", "HTTPCodec", "JOSE",
        "OAuth", "Gates", "Renewal", "Waiting", "Reactor", "GroundTesting", "RenewalWorld", "ContainersTests",
        "WaitingTests", "ReactorTests", "CryptographyTests", "ExternalTextTests", "HTTPCodecTests", "JSONTests",
        "OAuthTests", "JOSETests", "RenewalTests",
    ]
    package.products = []
    package.targets.removeAll { !ground.contains($0.name) }
case "quick":
    let others: Set = [
        "auth-example", "app-a-example", "app-b-example", "token-broker", "token-broker-provider", "CWipe",
        "CSimulation",
        "simulation", "SimulationTests", "CFuzzing", "fuzz", "FuzzingTests", "exploration", "IntegrationTests",
        "ChaosTests",
        "PostgresTests",
    ]
    package.products = []
    package.targets.removeAll { others.contains($0.name) }
default: break
}
