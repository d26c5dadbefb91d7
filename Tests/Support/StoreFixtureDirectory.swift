internal import FoundationEssentials

/// A path for one test's file store below the system's temporary directory, removed with all that is there afterwards.
/// Nothing stands there at first.
package final class StoreFixtureDirectory: Sendable {
    package let path: String

    package init() {
        path = FileManager.default.temporaryDirectory.path + "/record-store-" + UUID().uuidString
    }

    deinit {
        // A test that failed on purpose before it made anything leaves nothing to remove.
        try? FileManager.default.removeItem(atPath: path)
    }
}
