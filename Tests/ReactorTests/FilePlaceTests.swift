import FoundationEssentials
import Glibc
import GroundTesting
import Reactor
import Testing

/// Files that a configuration of a tenant names, where only some directories are permitted.
@Suite struct `A file that must be in a directory` {
    /// `in/file`, `in/below/file`, `in-other/file` and `out/file`, each with its path in it, and links between them.
    private struct Tree {
        let root = StoreFixtureDirectory()

        init() throws {
            let files = FileManager.default
            for name in ["in/below", "in-other", "out"] {
                try files.createDirectory(atPath: path(name), withIntermediateDirectories: true)
            }
            for name in ["in/file", "in/below/file", "in-other/file", "out/file"] {
                try SmallFile.create(path(name), Array(name.utf8))
            }
            try files.createSymbolicLink(atPath: path("in/to-out"), withDestinationPath: path("out/file"))
            try files.createSymbolicLink(atPath: path("in/to-in"), withDestinationPath: "below/file")
            try files.createSymbolicLink(atPath: path("in/out"), withDestinationPath: path("out"))
            try files.createSymbolicLink(atPath: path("alias"), withDestinationPath: path("in"))
        }

        func path(_ name: String) -> String { "\(root.path)/\(name)" }

        /// What is read, or the number of the error.
        func read(_ name: String, below directories: [String]?) -> (String?, CInt) {
            do throws(SystemError) {
                let bytes = try SmallFile.readRegular(path(name), limit: 100, below: directories?.map { path($0) })
                return (String(decoding: bytes, as: UTF8.self), 0)
            } catch {
                return (nil, error.number)
            }
        }
    }

    @Test(
        arguments: [
            ("in/file", "in/file", 0), ("in/below/file", "in/below/file", 0), ("in/to-in", "in/below/file", 0),
            ("alias/file", "in/file", 0), ("out/../in/file", "in/file", 0), ("in//./file", "in/file", 0),
            ("out/file", nil, EXDEV), ("in/to-out", nil, EXDEV), ("in/out/file", nil, EXDEV),
            ("in/../out/file", nil, EXDEV), ("in-other/file", nil, EXDEV), ("in", nil, EXDEV),
            ("in/below", nil, EINVAL),
            // It does not say what is there.
            ("in/gone", nil, ENOENT), ("in/gone/file", nil, ENOENT), ("out/gone", nil, EXDEV),
            ("gone/file", nil, EXDEV), ("in/gone/../../out/gone", nil, EXDEV), ("in/out/gone", nil, EXDEV),
        ] as [(String, String?, CInt)])
    func `is read where it is in truth`(name: String, text: String?, number: CInt) throws {
        let tree = try Tree()
        for directory in ["in", "alias"] {
            let (read, error) = tree.read(name, below: [directory])
            #expect(read == text && error == number, "\(name) below \(directory)")
        }
    }

    @Test func `may be in each of several, in any where none are named, and in none of an empty list`() throws {
        let tree = try Tree()
        for (directories, isRead) in [(["gone", "out"], true), (["gone"], false), ([], false), (nil, true)] {
            #expect((tree.read("out/file", below: directories).0 != nil) == isRead, "\(directories ?? [])")
        }
        #expect(try SmallFile.readRegular(tree.path("out/file"), limit: 100, below: ["/"]).count == 8)
    }
}
