import GroundTesting
import Reactor
import Testing

@Suite struct `A file that is read in pieces` {
    private let directory = StoreFixtureDirectory()

    @Test func `gives the bytes at a place, as often as asked, and none behind its end`() throws {
        let path = directory.path + "/input"
        try SmallFile.makeDirectories(above: path)
        let bytes = (0..<100_000).map { UInt8(truncatingIfNeeded: $0) }
        try SmallFile.replace(path, bytes)
        let file = try #require(try InputFile(path))
        #expect(file.size == bytes.count)
        #expect(try file.read(at: 0, upTo: 70_000) == Array(bytes[..<70_000]))
        #expect(try file.read(at: 70_000, upTo: 70_000) == Array(bytes[70_000...]))
        #expect(try file.read(at: 5, upTo: 2) == [5, 6])
        #expect(try file.read(at: bytes.count, upTo: 10).isEmpty)
        #expect(try file.read(at: bytes.count + 7, upTo: 10).isEmpty)
    }

    @Test func `is a regular one only, and a missing one is told`() throws {
        #expect(try InputFile("/dev/null") == nil)
        #expect(try InputFile("/") == nil)
        #expect(throws: SystemError("open", number: 2)) { try InputFile(directory.path + "/none") }
    }
}

@Suite struct `A file that is written in pieces` {
    private let directory = StoreFixtureDirectory()

    @Test func `is at its path once it is complete, for its owner alone`() throws {
        let path = directory.path + "/output"
        try SmallFile.makeDirectories(above: path)
        let file = try DraftFile(for: path)
        try file.append([1, 2])
        try file.append([3])
        #expect(!SmallFile.exists(path))
        try file.complete()
        let written = try SmallFile.readWithAccess(path, limit: 10)
        #expect(written.bytes == [1, 2, 3])
        #expect(!written.access.isReadableByOthers)
    }

    @Test func `replaces no file, and needs a directory`() throws {
        let path = directory.path + "/output"
        try SmallFile.makeDirectories(above: path)
        try SmallFile.replace(path, [7])
        let file = try DraftFile(for: path)
        #expect(throws: SystemError("link", number: 17)) { try file.complete() }
        #expect(try SmallFile.read(path, limit: 10) == [7])
        #expect(throws: SystemError("open", number: 2)) { try DraftFile(for: directory.path + "/none/output") }
    }
}
