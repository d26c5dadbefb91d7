import Glibc
import Reactor
import Testing

/// Programs whose output is read.
@Suite(.timeLimit(.minutes(1))) struct `Output of programs` {
    private func shell(_ text: String, limit: Int = 100, within time: Duration = .seconds(30)) throws -> String {
        let bytes = try ProgramOutput.read(
            ["sh", "-c", text], environment: ["PATH": "/usr/bin:/bin", "WORD": "a word"], limit: limit, within: time)
        return String(decoding: bytes, as: UTF8.self)
    }

    @Test(arguments: [
        ("echo keys", "keys\n"), ("exec 1>&-", ""), ("cat", ""), ("echo $WORD $HOME", "a word\n"),
        ("echo one; echo two >&2; exit 0", "one\n"),
    ])
    func `is what the program prints until it ends`(_ text: String, _ output: String) throws {
        #expect(try shell(text) == output)
    }

    @Test(arguments: [(99, true), (100, true), (101, false), (1_000_000, false)])
    func `is as long as was allowed, at most`(_ count: Int, _ isRead: Bool) throws {
        let text = "head -c \(count) /dev/zero"
        if isRead {
            #expect(try shell(text).utf8.count == count)
        } else {
            #expect(throws: ProgramOutput.Failure.tooLong(100)) { try shell(text) }
        }
    }

    @Test(
        arguments: [
            ("exit 1", .status(1)), ("echo keys; exit 255", .status(255)), ("kill -9 $$", .signal(9)),
            ("kill -TERM $$; sleep 60", .signal(15)),
        ] as [(String, ProgramOutput.Failure)])
    func `counts for nothing where the program fails`(_ text: String, _ failure: ProgramOutput.Failure) {
        #expect(throws: failure) { try shell(text) }
    }

    /// Also where the program has closed its output, and where another program that it has started keeps the output open.
    @Test(arguments: ["sleep 600", "exec 1>&-; sleep 600", "sleep 600 & echo keys", "trap '' TERM; sleep 600"])
    func `is not waited for beyond the limit`(_ text: String) {
        let limit = Duration.milliseconds(200)
        #expect(throws: ProgramOutput.Failure.timeout(limit)) { try shell(text, within: limit) }
    }

    @Test func `what the program has started ends with it when the time is over`() async throws {
        let path = "/tmp/program-output-\(getpid())-\(UInt64.random(in: 0 ... .max))"
        defer { SmallFile.remove(path) }
        var process = Substring()
        // A slow machine may need a longer limit to start the programs at all.
        for limit in [Duration.seconds(1), .seconds(5), .seconds(25)] where Int(process) == nil {
            #expect(throws: ProgramOutput.Failure.timeout(limit)) {
                try shell("sleep 600 & echo $! >\(path); exit 0", within: limit)
            }
            process = String(decoding: (try? SmallFile.read(path, limit: 100)) ?? [], as: UTF8.self).dropLast()
        }
        try #require(Int(process) != nil)
        // It is gone, or waits for its new parent to ask how it has ended.
        while let status = try? SmallFile.read("/proc/\(process)/stat", limit: 4096),
            !String(decoding: status, as: UTF8.self).contains(") Z ")
        {
            await Task.yield()
        }
    }

    @Test func `a program that is not there cannot be started`() {
        #expect(throws: ProgramOutput.Failure.start(SystemError("posix_spawn /nowhere/keys", number: 2))) {
            try ProgramOutput.read(["/nowhere/keys"], environment: [:], limit: 1, within: .seconds(1))
        }
    }
}
