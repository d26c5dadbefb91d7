import Reactor
import Testing

@Suite struct `Process memory` {
    /// The number that `/proc/self/status` has under a name.
    private static func status(_ name: String) throws -> Int {
        let status = String(decoding: try SmallFile.read("/proc/self/status", limit: 65_536), as: UTF8.self)
        let line = try #require(status.split(separator: "\n").first { $0.hasPrefix("\(name):") })
        return try #require(Int(line.split { $0 == " " || $0 == "\t" }[1]))
    }

    /// KiB of the process's memory that are pages of files.
    private static func fileBacked() throws -> Int { try status("RssFile") }

    @Test func `the kernel's table of descriptors is as large as was asked for, within the limit`() throws {
        let limit = try DescriptorLimit.raise()
        for count in [2 * (try Self.status("FDSize")), 1] where count <= limit {
            DescriptorLimit.reserve(count)
            #expect(try Self.status("FDSize") >= count)
        }
        let size = try Self.status("FDSize")
        DescriptorLimit.reserve(.max)
        #expect(try Self.status("FDSize") == size)
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
