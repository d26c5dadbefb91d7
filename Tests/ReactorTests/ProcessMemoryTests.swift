import Reactor
import Testing

@Suite struct `Process memory` {
    /// The value of the line of `/proc/self/status` that begins with this name.
    private static func status(_ name: String) throws -> Int {
        let status = String(decoding: try SmallFile.read("/proc/self/status", limit: 65_536), as: UTF8.self)
        let line = try #require(status.split(separator: "\n").first { $0.hasPrefix("\(name):") })
        return try #require(Int(line.split { $0 == " " || $0 == "\t" }[1]))
    }

    /// The file-backed memory of the process, in KiB.
    private static func fileBacked() throws -> Int { try status("RssFile") }

    @Test func `the kernel's table of descriptors grows to the requested size, within the limit`() throws {
        let limit = try DescriptorLimit.raise()
        for count in [2 * (try Self.status("FDSize")), 1] where count <= limit {
            DescriptorLimit.reserve(count)
            #expect(try Self.status("FDSize") >= count)
        }
        let size = try Self.status("FDSize")
        DescriptorLimit.reserve(.max)
        #expect(try Self.status("FDSize") == size)
    }

    @Test func `only file-backed pages are released, and written data stays`() throws {
        let words = ProcessEnvironment.variables
        let before = try Self.fileBacked()
        ProcessMemory.releaseStartPages()
        let after = try Self.fileBacked()
        #expect(after < before)
        #expect(ProcessEnvironment.variables == words)
        // A call of released code maps its page again.
        #expect("\(SystemError("open", number: 2))" == "open: No such file or directory")
        ProcessMemory.releaseStartPages()
        #expect(ProcessEnvironment.variables == words)
    }
}
