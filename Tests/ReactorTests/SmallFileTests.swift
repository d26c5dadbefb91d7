import Glibc
import Reactor
import Testing

@Suite struct `Small file` {
    /// A pipe that holds `count` bytes and has no writer any more, by its path.
    private static func withPipe<R>(_ count: Int, _ body: (String) throws -> R) throws -> R {
        var ends: [CInt] = [-1, -1]
        let isMade = unsafe pipe(&ends) == 0
        try #require(isMade)
        let reader = OwnedDescriptor(adopting: ends[0])
        do {
            let writer = OwnedDescriptor(adopting: ends[1])
            let written = unsafe write(writer.rawValue, [UInt8](repeating: 0x61, count: count), count)
            try #require(written == count)
        }
        return try body("/proc/self/fd/\(reader.rawValue)")
    }

    @Test(arguments: [(0, 0), (0, 1), (9, 10), (10, 10), (4096, 65_536)])
    func `what fits is read whole, from a pipe as well`(count: Int, limit: Int) throws {
        let bytes = try Self.withPipe(count) { path in try SmallFile.read(path, limit: limit) }
        #expect(bytes == [UInt8](repeating: 0x61, count: count))
    }

    @Test(arguments: [(1, 0), (11, 10), (4096, 10)])
    func `what is longer than the limit is refused`(count: Int, limit: Int) throws {
        #expect(throws: SystemError("read", number: EFBIG)) {
            try Self.withPipe(count) { path in try SmallFile.read(path, limit: limit) }
        }
    }

    @Test(arguments: [("/nonexistent", "open", ENOENT), ("/", "read", EISDIR)])
    func `what is no file is refused`(path: String, call: String, number: CInt) {
        #expect(throws: SystemError(call, number: number)) { try SmallFile.read(path, limit: 1) }
    }

    @Test(arguments: [("/proc/self/status", true), ("/nonexistent", false)])
    func `what can be read is told apart from what cannot`(path: String, isReadable: Bool) {
        #expect(SmallFile.isReadable(path) == isReadable)
    }
}
