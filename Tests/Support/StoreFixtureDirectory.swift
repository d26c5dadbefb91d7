internal import FoundationEssentials

/// A path for one test's file store below the system's temporary directory, removed with all that is there afterwards.
/// Nothing stands there at first.
package final class StoreFixtureDirectory: Sendable {
    package let path: String

    /// - Parameter isInMemory: for tests that stand between the store and its disk: what a real one does is of no use to
    ///   them, and thousands of synchronizations take minutes on one that is slow.
    package init(isInMemory: Bool = false) {
        let memory = "/dev/shm"
        let parent =
            isInMemory && FileManager.default.isWritableFile(atPath: memory)
            ? memory : FileManager.default.temporaryDirectory.path
        path = parent + "/record-store-" + UUID().uuidString
    }

    deinit {
        // A test that failed on purpose before it made anything leaves nothing to remove.
        try? FileManager.default.removeItem(atPath: path)
    }
}
