import FoundationEssentials

/// A path for one test's file store below the system's temporary directory, removed with all that is there afterwards.
/// Nothing stands there at first.
package final class StoreFixtureDirectory: Sendable {
    package let path: String

    /// - Parameter isInMemory: for tests that stand between the store and its disk: what a real one does is of no use to
    ///   them, and thousands of synchronizations take minutes on one that is slow.
    package init(isInMemory: Bool = false) {
        let parent = isInMemory ? Self.memory : nil
        path = (parent ?? FileManager.default.temporaryDirectory.path) + "/record-store-" + UUID().uuidString
    }

    /// Where files are in memory, if there is enough for tests that run side by side: containers have 64 MiB by default.
    private static let memory: String? = {
        let path = "/dev/shm"
        let free = try? FileManager.default.attributesOfFileSystem(forPath: path)[.systemFreeSize] as? Int64
        return (free ?? 0) >= 1 << 30 ? path : nil
    }()

    deinit {
        // A test that failed on purpose before it made anything leaves nothing to remove.
        try? FileManager.default.removeItem(atPath: path)
    }
}
