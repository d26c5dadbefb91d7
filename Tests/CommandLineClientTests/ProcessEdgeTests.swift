import BrokerTesting
import Testing

/// What the program does with the process that it is: its words, its standard streams, its limits, its terminal.
@Suite(.serialized, .timeLimit(.minutes(3))) struct `The program as a process` {
    private static let program = BrokerProcess.program("token-broker")

    private static func outcome(of process: TestProcess) async -> (status: Int32, lines: [String]) {
        let status = await process.exitStatus()
        return (status, process.lines)
    }

    @Test func `refuses a word that is no text, in place of another word that is like it`() async throws {
        let process = try await TestProcess.start([
            "/bin/sh", "-c", #"exec "$0" import ndjson "$(printf 'a\377')" 2>&1"#, Self.program,
        ])
        let (status, lines) = await Self.outcome(of: process)
        #expect(status == 2)
        #expect(lines == ["token-broker: word 3 of the command line is no text in UTF-8"])
    }

    @Test func `hands on the limit of core dumps, and something in the place of a stream that is closed`() async throws
    {
        let fixture = try await UserFixture()
        try await fixture.store("t")
        let plain = try await TestProcess.start(["/bin/sh", "-c", "ulimit -Hc"])
        let hard = await Self.outcome(of: plain).lines
        let process = try await TestProcess.start(
            [
                "/bin/sh", "-c", #"ulimit -Sc "$(ulimit -Hc)"; exec "$0" "$@" <&-"#, Self.program, "run", "--tenant",
                "web", "--", "/bin/sh", "-c", "ulimit -Hc; ulimit -Sc; exec readlink /proc/self/fd/0",
            ],
            environment: fixture.environment.merging(["PATH": "/usr/bin:/bin"]) { $1 })
        let (status, lines) = await Self.outcome(of: process)
        #expect(status == 0)
        #expect(lines == hard + hard + ["/dev/null"])
        await fixture.close()
    }

    @Test func `names the next command where another program listens at the address of a broker for oneself`()
        async throws
    {
        let directory = StoreFixtureDirectory()
        let other = try await TLSTestServer(tls: nil, [.hold])
        defer { withExtendedLifetime(other) {} }
        let (status, output) = try await BrokerProcess.run(
            ["up", "--port", "\(other.port)"], environment: ["XDG_DATA_HOME": directory.path])
        #expect(status == 1)
        #expect(output.hasSuffix("\nTry: token-broker up --port \(other.port + 1)"), "\(output)")
    }

    /// Types nothing at the question for a key, sends a signal, and looks whether the terminal shows what is typed.
    private static let typist = #"""
        import os, pty, signal, sys, termios, time
        def shows(): return bool(termios.tcgetattr(terminal)[3] & termios.ECHO)
        def wait(until):
            end = time.time() + 60
            while not until():
                if time.time() > end: sys.exit("too late")
                time.sleep(0.01)
        process, terminal = pty.fork()
        if process == 0:
            os.execve(sys.argv[1], [sys.argv[1], "context", "add", "a", "--url", "http://h.example"], {"HOME": "/nowhere"})
        seen = b""
        while b"Key for" not in seen: seen += os.read(terminal, 100)
        wait(lambda: not shows())
        os.kill(process, int(sys.argv[2]))
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        print(status, "shown" if shows() else "hidden")
        """#

    @Test(arguments: [(1, 129), (2, 130), (3, 131), (15, 130)])
    func `has the terminal show what is typed when a signal ends the question for a secret`(
        signal: Int, status: Int
    ) async throws {
        let process = try await TestProcess.start([
            DialogueProcess.python, "-c", Self.typist, Self.program, "\(signal)",
        ])
        let (ended, lines) = await Self.outcome(of: process)
        #expect(ended == 0)
        #expect(lines == ["\(status) shown"])
    }
}
