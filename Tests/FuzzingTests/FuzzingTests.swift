import BrokerTesting
import FoundationEssentials
import Testing

/// The program that gives hostile input to readers: what the corpus and inputs made from it find, and that it finds faults.
@Suite(.timeLimit(.minutes(15))) struct `Hostile input` {
    private static let corpus =
        #filePath.split(separator: "/").dropLast(2).reduce("") { "\($0)/\($1)" } + "/Fuzzing/Corpus"
    private static let targets = [
        "request", "response", "chunked", "form", "json", "jws", "claims", "keys", "pem", "answer", "header", "address",
        "tenant", "record", "store",
    ]

    /// Runs the program to its end, with a directory for its files; behind other tests, which have deadlines.
    private func run(
        _ arguments: [String], _ directory: StoreFixtureDirectory = StoreFixtureDirectory(isInMemory: true)
    ) async throws -> (status: Int32, lines: [String]) {
        try FileManager.default.createDirectory(atPath: directory.path, withIntermediateDirectories: false)
        let process = try await TestProcess.start(
            ["/usr/bin/nice", "-n", "10", BrokerProcess.program("fuzz")] + arguments,
            environment: ["TMPDIR": directory.path, "SWIFT_BACKTRACE": "enable=no"])
        let status = await process.exitStatus()
        return (status, process.lines)
    }

    @Test(arguments: targets)
    func `is read alike in every way, at a cost in proportion to its size`(target: String) async throws {
        let (status, lines) = try await run([target, "--mutations", "300", "\(Self.corpus)/\(target)"])
        #expect(status == 0, "\(lines.joined(separator: "\n"))")
        #expect(lines.last?.hasSuffix("300 inputs made from them") == true)
    }

    @Test func `is given to every reader, and each reader has a corpus`() async throws {
        let (status, lines) = try await run(["--targets"])
        #expect(status == 0 && lines == [Self.targets.joined(separator: " ")])
        let directories = try FileManager.default.contentsOfDirectory(atPath: Self.corpus)
        #expect(Set(directories) == Set(Self.targets))
    }

    @Test(arguments: [
        ("faulty-crash", "fail", "it begins with the word"), ("faulty-growth", "a", "octets cost"),
        ("faulty-cost", "a", "octets cost"),
    ])
    func `is kept where a reader fails`(target: String, input: String, reason: String) async throws {
        let directory = StoreFixtureDirectory(isInMemory: true)
        let file = StoreFixtureDirectory(isInMemory: true)
        #expect(FileManager.default.createFile(atPath: file.path, contents: Data(input.utf8)))
        let (status, lines) = try await run([target, "--mutations", "0", file.path], directory)
        // SIGABRT
        #expect(status == 128 + 6)
        #expect(lines.contains { $0.hasPrefix("fuzz: \(target): ") && $0.contains(reason) }, "\(lines)")
        let kept = FileManager.default.contents(atPath: "\(directory.path)/fuzz-\(target)-failure")
        #expect(kept.map { $0.starts(with: input.utf8) } == true)
    }

    @Test(arguments: [
        [], ["unknown"], ["json"], ["json", "--mutations"], ["json", "--mutations", "-1"],
        ["json", "--mutations", "1"],
        ["json", "--mutations", "1", "--seed", "x", "/dev/null"], ["json", "--mutations", "1", "/does/not/exist"],
    ])
    func `is not made by arguments that the program does not know`(arguments: [String]) async throws {
        #expect(try await run(arguments).status == 2)
    }
}
