import Reactor
import Testing

@Suite struct `Process memory` {
    /// KiB of the process's memory that are pages of files.
    private static func fileBacked() throws -> Int {
        let status = String(decoding: try SmallFile.read("/proc/self/status", limit: 65_536), as: UTF8.self)
        let line = try #require(status.split(separator: "\n").first { $0.hasPrefix("RssFile:") })
        return try #require(Int(line.split(separator: " ")[1]))
    }

    @Test func `what is given back are pages of files, and what was written stays`() throws {
        let words = ProcessEnvironment.variables
        let before = try Self.fileBacked()
        ProcessMemory.giveBackStartPages()
        let after = try Self.fileBacked()
        #expect(after < before)
        #expect(ProcessEnvironment.variables == words)
        // Code that is called again is there again.
        #expect("\(SystemError("open", number: 2))" == "open: No such file or directory")
        ProcessMemory.giveBackStartPages()
        #expect(ProcessEnvironment.variables == words)
    }
}
