import FoundationEssentials
import GroundTesting
import Reactor
import Testing

@Suite struct `A held file` {
    private let directory = StoreFixtureDirectory()
    private var path: String { directory.path + "/held" }

    init() throws {
        try FileManager.default.createDirectory(atPath: directory.path, withIntermediateDirectories: true)
    }

    @Test func `counts while it is held, and is gone when that ends`() throws {
        #expect(try HeldFile.read(path, limit: 9) == nil)
        #expect(try HeldFile.read(directory.path + "/none/held", limit: 9) == nil)
        let held = try HeldFile(path, Array("one".utf8))
        #expect(try HeldFile.read(path, limit: 9) == Array("one".utf8))
        #expect(try HeldFile.read(path, limit: 9) == Array("one".utf8))
        let mode = try FileManager.default.attributesOfItem(atPath: path)[.posixPermissions] as? Int
        #expect(mode == 0o600)
        held.remove()
        #expect(!SmallFile.exists(path))
    }

    @Test func `counts no more where its holder has left it behind`() throws {
        do {
            let held = try HeldFile(path, Array("one".utf8))
            extendLifetime(held)
        }
        #expect(SmallFile.exists(path))
        #expect(try HeldFile.read(path, limit: 9) == nil)
        let next = try HeldFile(path, Array("two".utf8))
        #expect(try HeldFile.read(path, limit: 9) == Array("two".utf8))
        extendLifetime(next)
    }

    @Test func `counts not where other users can write it, and is not read beyond its limit`() throws {
        let held = try HeldFile(path, Array("one".utf8))
        #expect(throws: SystemError.self) { try HeldFile.read(path, limit: 2) }
        try FileManager.default.setAttributes([.posixPermissions: 0o622], ofItemAtPath: path)
        #expect(try HeldFile.read(path, limit: 9) == nil)
        held.remove()
    }

    @Test func `is at a place that is the same for the whole process`() {
        #expect(NetworkPlace.current == NetworkPlace.current)
        #expect(!NetworkPlace.current.contains("\n"))
    }
}
