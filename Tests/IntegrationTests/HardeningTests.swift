import BrokerTesting
import FoundationEssentials
import Glibc
import HTTPCodec
import JSON
import Reactor
import Testing

/// What the program withholds from the machine that it runs on, and what the machine's faults do to it.
@Suite(.timeLimit(.minutes(3))) struct `The program on its machine` {
    private let directory = StoreFixtureDirectory()

    private static func environment(_ port: UInt16, _ directory: String) -> [String: String] {
        [
            "TOKEN_BROKER_LISTEN": "127.0.0.1:\(port)", "TOKEN_BROKER_ADMIN_KEY": BrokerHarness.adminKey,
            "TOKEN_BROKER_DATA_DIR": directory,
        ]
    }

    private static func isListening(_ line: String) -> Bool { line.contains(#""event":"listening""#) }

    // MARK: Core files

    /// What stands before a command so that it does not run as root, to which the kernel gives what it withholds from others.
    private static var asOther: [String] {
        geteuid() == 0 ? ["/usr/bin/setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--"] : []
    }

    /// Copies the program to where each user may run it; the checkout may be closed to others. Another process copies it: what
    /// this one has open for writing, the processes have open that it starts meanwhile, and the kernel would not run it.
    private static func copyProgram(to directory: String) async throws -> String {
        let copy = directory + "/token-broker"
        let copying = try await TestProcess.start([
            "/usr/bin/install", "-m", "755", BrokerProcess.program("token-broker"), copy,
        ])
        try #require(await copying.exitStatus() == 0)
        return copy
    }

    /// The owner of the process's environment, as the kernel shows it: root where the process forbids core files.
    private static func owner(_ process: TestProcess) throws -> uid_t {
        var status = stat()
        try #require(unsafe stat("/proc/\(process.identifier)/environ", &status) == 0)
        return status.st_uid
    }

    // H060
    @Test func `a process that crashes leaves no core file, and no other process can read its memory`() async throws {
        let manager = FileManager.default
        let work = directory.path + "/work"
        try manager.createDirectory(atPath: work, withIntermediateDirectories: true)
        for path in [directory.path, work] { #expect(unsafe chmod(path, 0o777) == 0) }
        let program = try await Self.copyProgram(to: directory.path)
        let inWork = Self.asOther + ["/usr/bin/env", "--chdir", work]
        let port = try PostgresServer.freePort()
        let process = try await TestProcess.start(
            inWork + ["/bin/sh", "-c", #"exec "$0" 2>&1"#, program],
            environment: Self.environment(port, directory.path + "/data"))
        _ = try await process.line(where: Self.isListening)
        let limits = String(
            decoding: try SmallFile.read("/proc/\(process.identifier)/limits", limit: 65_536), as: UTF8.self)
        let line = try #require(limits.split(separator: "\n").first { $0.hasPrefix("Max core file size") })
        #expect(line.split(separator: " ").suffix(3) == ["0", "0", "bytes"], "\(line)")
        #expect(try Self.owner(process) == 0)
        #expect(await process.abort() == 128 + SIGABRT)
        // Swift's runtime, where it can, prints the registers and what they point to.
        #expect(process.lines.allSatisfy { $0.hasPrefix("{") }, "\(process.lines)")
        #expect(try manager.contentsOfDirectory(atPath: work) == [])

        // Of a process that forbids nothing the kernel names the user.
        let other = try await TestProcess.start(inWork + ["/bin/sh", "-c", "echo ready; exec sleep 60"])
        _ = try await other.line { $0 == "ready" }
        #expect(try Self.owner(other) == (geteuid() == 0 ? 65_534 : geteuid()))
        await other.kill()
    }

    // MARK: Swap

    /// A member of a process's `/proc/PID/status`, without its unit.
    private static func status(_ name: String, of process: String) throws -> Substring {
        let status = String(decoding: try SmallFile.read("/proc/\(process)/status", limit: 65_536), as: UTF8.self)
        let line = try #require(status.split(separator: "\n").first { $0.hasPrefix("\(name):") })
        return line.split { $0 == " " || $0 == "\t" }[1]
    }

    /// Whether a process of these tests may lock as much memory as it likes: not in each container.
    private static func mayLock() throws -> Bool {
        var limit = rlimit()
        try #require(unsafe getrlimit(__rlimit_resource_t(8), &limit) == 0)
        let capabilities = try #require(UInt64(try status("CapEff", of: "self"), radix: 16))
        return limit.rlim_cur == .max || capabilities >> 14 & 1 == 1
    }

    @Test(arguments: [true, false])
    func `memory is locked where this is asked for`(isAsked: Bool) async throws {
        let port = try PostgresServer.freePort()
        var environment = Self.environment(port, directory.path)
        environment["TOKEN_BROKER_LOCK_MEMORY"] = "\(isAsked)"
        let process = try await TestProcess.start(
            [BrokerProcess.program("token-broker")], environment: environment)
        guard try Self.mayLock() || !isAsked else { return #expect(await process.exitStatus() == 71) }
        _ = try await process.line(where: Self.isListening)
        #expect((try Self.memory("VmLck", of: process) > 0) == isAsked)
        #expect(await process.terminate() == 0)
    }

    @Test func `a process that may lock a part of its memory only does not start, and says what it needs`() async throws
    {
        let manager = FileManager.default
        try manager.createDirectory(atPath: directory.path, withIntermediateDirectories: true)
        #expect(unsafe chmod(directory.path, 0o777) == 0)
        let program = try await Self.copyProgram(to: directory.path)
        var environment = Self.environment(try PostgresServer.freePort(), directory.path + "/data")
        environment["TOKEN_BROKER_LOCK_MEMORY"] = "true"
        let process = try await TestProcess.start(
            ["/usr/bin/prlimit", "--memlock=65536"] + Self.asOther
                + ["/bin/sh", "-c", #"exec "$0" 2>&1"#, program], environment: environment)
        #expect(await process.exitStatus() == 71)
        let text = "CAP_IPC_LOCK or an unlimited RLIMIT_MEMLOCK"
        #expect(process.lines.contains { $0.contains(text) }, "\(process.lines)")
        #expect(!manager.fileExists(atPath: directory.path + "/data"))
    }

    // MARK: Random numbers

    // H053
    @Test func `without random numbers no key is made, and nothing is served`() async throws {
        let manager = FileManager.default
        try manager.createDirectory(atPath: directory.path, withIntermediateDirectories: true)
        let settings = directory.path + "/openssl.cnf"
        let text = "openssl_conf = all\n[all]\nrandom = chosen\n[chosen]\nrandom = NONE-SUCH\n"
        try Data(text.utf8).write(to: URL(filePath: settings))
        let port = try PostgresServer.freePort()
        let data = directory.path + "/data"
        var environment = Self.environment(port, data)
        environment["OPENSSL_CONF"] = settings
        let made = try await BrokerProcess.run(["keys", "generate", "k1"], environment: environment)
        #expect(made.status != 0)
        #expect(!made.output.contains("k1:"), "\(made.output)")
        let served = try await BrokerProcess.run(["serve"], environment: environment)
        #expect(served.status == 1)
        #expect(served.output.contains("the system's random source failed"), "\(served.output)")
        #expect(!served.output.split(separator: "\n").contains { Self.isListening(String($0)) })
        for name in ["master.keys", "admin.key"] { #expect(!manager.fileExists(atPath: data + "/" + name)) }

        let process = try await BrokerProcess.start(port: port, ["DATA_DIR": data])
        #expect(await process.terminate() == 0)
    }

    // MARK: Standard output

    /// Starts the program with standard output at a shell that passes lines on up to `listening`, then does `end`, and says
    /// `over`.
    private func start(_ port: UInt16, withOutputThat end: String) async throws -> TestProcess {
        let script = #"exec "$0" > >(sed -u '/"event":"listening"/q'; \#(end))"#
        let process = try await TestProcess.start(
            ["/bin/bash", "-c", script, BrokerProcess.program("token-broker")],
            environment: Self.environment(port, directory.path))
        _ = try await process.line { $0 == "over" }
        return process
    }

    // H105
    @Test(arguments: [
        "exec <&-; echo over",
        // Nothing is read any more, until the program ends.
        "echo over; exec >&- 2>&-; exec tail --pid=$$ -f /dev/null",
    ])
    func `a standard output that is closed or full stops nothing`(end: String) async throws {
        let port = try PostgresServer.freePort()
        let process = try await start(port, withOutputThat: end)
        let broker = try BrokerClient(port: port)
        #expect(try await broker.call(.put, "/tenants/t1", body: #"{"client_id": "c1"}"#).status == 201)
        // Each of them is a line of the log, and a pipe takes 64 KB.
        for _ in 0..<1000 { #expect(try await broker.call(.get, "/tenants/t1").status == 200) }
        #expect(try await broker.call(.get, "/readyz", key: nil).status == 200)
        await broker.close()
        #expect(await process.terminate() == 0)
    }

    // H105
    @Test func `lines that a full disk has not taken are counted later, and none is joined to a rest`() async throws {
        try FileManager.default.createDirectory(atPath: directory.path, withIntermediateDirectories: true)
        let path = directory.path + "/log"
        let port = try PostgresServer.freePort()
        let process = try await TestProcess.start(
            ["/bin/sh", "-c", #"exec "$0" >"$1""#, BrokerProcess.program("token-broker"), path],
            environment: Self.environment(port, directory.path + "/data"))
        let broker = try BrokerClient(port: port)
        while (try? await broker.call(.put, "/tenants/t1", body: #"{"client_id": "c1"}"#).status) != 201 {}
        func lines() throws -> [Substring] {
            String(decoding: try SmallFile.read(path, limit: 1 << 24), as: UTF8.self).split(separator: "\n")
        }
        // Lines are written within a millisecond, and a line that comes between the look at the size and the limit would leave no
        // room for a part of the next one.
        while try !lines().contains(where: { $0.contains(#""status":201"#) }) { await Task.yield() }
        let count = try lines().count
        // A part of the next line fits in, and each read of a tenant is a line.
        try process.limitFiles(toBytes: UInt64(try SmallFile.read(path, limit: 1 << 24).count) + 40)
        for _ in 0..<100 { #expect(try await broker.call(.get, "/tenants/t1").status == 200) }
        try process.limitFiles(toBytes: nil)
        var dropped: Substring?
        while dropped == nil {
            #expect(try await broker.call(.get, "/tenants/t1").status == 200)
            dropped = try lines().first { $0.contains(#""event":"log_lines_dropped""#) }
        }
        await broker.close()
        #expect(await process.terminate() == 0)
        let all = try lines().dropFirst(count)
        let broken = all.filter { (try? JSONValue(parsing: Array($0.utf8))) == nil }
        #expect(broken.count == 1, "\(broken)")
        #expect(broken.first?.utf8.count == 40)
        let line = try JSONValue(parsing: Array((dropped ?? "").utf8))
        let told = try #require(line["count"]?.integer)
        #expect(told >= 90, "the lines before the limit took effect were written")
    }

    // MARK: Memory

    /// A member of the process's `/proc/PID/status`, in KiB.
    private static func memory(_ name: String, of process: TestProcess) throws -> Int {
        try #require(Int(try status(name, of: "\(process.identifier)")))
    }

    // H103
    @Test func `contents that are announced and do not come take no memory`() async throws {
        let port = try PostgresServer.freePort()
        let process = try await BrokerProcess.start(port: port, ["DATA_DIR": directory.path])
        let address = try #require(SocketAddress(numericHost: "127.0.0.1", port: port))
        func announce(_ count: Int) async throws -> [HTTPRawClient] {
            var clients: [HTTPRawClient] = []
            for _ in 0..<count {
                let client = try HTTPRawClient(address)
                try await client.send(
                    "PUT /tenants/t1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer \(BrokerHarness.adminKey)\r\n"
                        + "Content-Type: application/json\r\nContent-Length: 1048576\r\nExpect: 100-continue\r\n\r\n")
                // The server has read the head and waits for the content.
                #expect(try await client.receive(through: "\r\n\r\n").hasPrefix("HTTP/1.1 100 "))
                clients.append(client)
            }
            return clients
        }
        var clients = try await announce(20)
        let names = ["VmRSS", "VmData"]
        let before = try names.map { try Self.memory($0, of: process) }
        clients += try await announce(100)
        // A megabyte for each of them would be 100,000 KiB.
        for (name, earlier) in zip(names, before) {
            let growth = try Self.memory(name, of: process) - earlier
            #expect(growth < 20_000, "\(name) has grown by \(growth) KiB")
        }
        for client in clients { await client.close() }
        #expect(await process.terminate() == 0)
    }

    // H104
    @Test(
        .enabled(if: geteuid() == 0, "the kernel shows the descriptors of a process without core dumps to root alone"))
    func `descriptors and memory do not grow with the number of requests and connections`() async throws {
        let port = try PostgresServer.freePort()
        let process = try await BrokerProcess.start(port: port, ["DATA_DIR": directory.path])
        let address = try #require(SocketAddress(numericHost: "127.0.0.1", port: port))
        let broker = try BrokerClient(port: port)
        func descriptors() throws -> Int {
            try FileManager.default.contentsOfDirectory(atPath: "/proc/\(process.identifier)/fd").count
        }
        func round() async throws {
            for _ in 0..<20 {
                let client = try HTTPRawClient(address)
                try await client.send("GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                #expect(try await client.rest().hasPrefix("HTTP/1.1 200 "))
            }
            #expect(try await broker.call(.put, "/tenants/t1", body: #"{"client_id": "c1"}"#).status == 201)
            for _ in 0..<50 { #expect(try await broker.call(.get, "/tenants/t1").status == 200) }
            #expect(try await broker.call(.delete, "/tenants/t1").status == 204)
        }
        for _ in 0..<5 { try await round() }
        let before = (descriptors: try descriptors(), memory: try Self.memory("VmRSS", of: process))
        for _ in 0..<10 { try await round() }
        // The server may close the last connections a little after their peers.
        var calls = 0
        while try descriptors() > before.descriptors, calls < 1000 {
            _ = try await broker.call(.get, "/livez", key: nil)
            calls += 1
        }
        #expect(try descriptors() <= before.descriptors)
        let growth = try Self.memory("VmRSS", of: process) - before.memory
        #expect(growth < 8_000, "the memory has grown by \(growth) KiB in 700 requests")
        await broker.close()
        #expect(await process.terminate() == 0)
    }
}
