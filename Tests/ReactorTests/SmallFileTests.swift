import Glibc
import Reactor
import Testing

@Suite struct `Small file` {
    /// The path of a pipe that holds `count` bytes and whose writer has closed.
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
    func `content within the limit is read whole, from a pipe as well`(count: Int, limit: Int) throws {
        let bytes = try Self.withPipe(count) { path in try SmallFile.read(path, limit: limit) }
        #expect(bytes == [UInt8](repeating: 0x61, count: count))
    }

    @Test(arguments: [(1, 0), (11, 10), (4096, 10)])
    func `content longer than the limit is refused`(count: Int, limit: Int) throws {
        #expect(throws: SystemError("read", number: EFBIG)) {
            try Self.withPipe(count) { path in try SmallFile.read(path, limit: limit) }
        }
    }

    @Test(arguments: [("/nonexistent", "open", ENOENT), ("/", "read", EISDIR)])
    func `a path without a readable file is refused`(path: String, call: String, number: CInt) {
        #expect(throws: SystemError(call, number: number)) { try SmallFile.read(path, limit: 1) }
    }

    private static func withDirectory<R>(_ body: (String) throws -> R) throws -> R {
        var template = Array("/tmp/small-file.XXXXXX".utf8CString)
        let isMade = unsafe mkdtemp(&template) != nil
        try #require(isMade)
        let path = String(decoding: template.dropLast().map { UInt8(bitPattern: $0) }, as: UTF8.self)
        defer {
            for name in ["a", "link"] { _ = unsafe unlink(path + "/" + name) }
            _ = unsafe rmdir(path)
        }
        return try body(path)
    }

    @Test func `a created file is complete, private to its owner, and replaces no file`() throws {
        try Self.withDirectory { directory in
            let path = directory + "/a"
            #expect(!SmallFile.exists(path))
            try SmallFile.create(path, Array("one".utf8))
            let (bytes, access) = try SmallFile.readWithAccess(path, limit: 9)
            #expect(bytes == Array("one".utf8))
            #expect(!access.belongsToAnother && !access.isWritableByOthers && !access.isReadableByOthers)
            #expect(throws: SystemError("link", number: EEXIST)) { try SmallFile.create(path, Array("two".utf8)) }
            #expect(try SmallFile.read(path, limit: 9) == Array("one".utf8))
            // No draft file is left: the directory can be removed once these two files are gone.
            _ = unsafe unlink(path)
            let isEmpty = unsafe rmdir(directory) == 0
            #expect(isEmpty)
        }
    }

    @Test func `a file that takes another's place is complete, private to its owner, and leaves no draft`() throws {
        try Self.withDirectory { directory in
            let path = directory + "/a"
            for text in ["one", "two"] {
                try SmallFile.replace(path, Array(text.utf8))
                let (bytes, access) = try SmallFile.readWithAccess(path, limit: 9)
                #expect(bytes == Array(text.utf8))
                #expect(!access.belongsToAnother && !access.isWritableByOthers && !access.isReadableByOthers)
            }
            // A directory is not replaced, and the draft is removed.
            #expect(throws: SystemError("rename", number: EISDIR)) { try SmallFile.replace(directory, []) }
            SmallFile.remove(path)
            #expect(!SmallFile.exists(path))
            let isEmpty = unsafe rmdir(directory) == 0
            #expect(isEmpty)
        }
    }

    @Test func `the mode of a link's target counts`() throws {
        try Self.withDirectory { directory in
            let (path, link) = (directory + "/a", directory + "/link")
            let isLinked = unsafe symlink(path, link) == 0
            try #require(isLinked)
            // A link without a target exists all the same.
            #expect(SmallFile.exists(link) && !SmallFile.isReadable(link))
            #expect(throws: SystemError("link", number: EEXIST)) { try SmallFile.create(link, []) }
            try SmallFile.create(path, [1])
            #expect(try !SmallFile.readWithAccess(link, limit: 9).access.isReadableByOthers)
            let isChanged = unsafe chmod(path, 0o666) == 0
            try #require(isChanged)
            let access = try SmallFile.readWithAccess(link, limit: 9).access
            #expect(access.isWritableByOthers && access.isReadableByOthers)
        }
    }

    @Test(arguments: [("/proc/self/status", true), ("/nonexistent", false)])
    func `isReadable is true for files that the process may read`(path: String, isReadable: Bool) {
        #expect(SmallFile.isReadable(path) == isReadable)
    }
}
