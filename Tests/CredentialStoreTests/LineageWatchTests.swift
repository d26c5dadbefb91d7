import Testing

@testable import CredentialStore

/// What becomes of the sequences of the log of events where a database has lost its last commits.
@Suite struct `The watch over a database's lineage` {
    private static func watch() -> LineageWatch { LineageWatch(usesPooler: false) { _ in } }

    @Test func `lets sequences be assigned while none is lost`() {
        let watch = Self.watch()
        for sequence in [0, 5, 5, 6] as [Int64] { #expect(watch.note(sequence: sequence, since: watch.known()) == nil) }
    }

    @Test func `has the log skip what this process has seen and the database has lost`() {
        let watch = Self.watch()
        #expect(watch.note(sequence: 90, since: watch.known()) == nil)
        #expect(watch.note(sequence: 70, since: watch.known()) == 10_090)
        #expect(watch.note(sequence: 10_090, since: watch.known()) == nil)
        #expect(watch.note(sequence: 10_091, since: watch.known()) == nil)
    }

    /// Other processes may have seen more than this one, whose last sequence the database still has.
    @Test func `has the log skip as far where this process has seen nothing that is lost`() {
        let watch = Self.watch()
        #expect(watch.note(sequence: 70, since: watch.known()) == nil)
        watch.noteEarlierLoss()
        #expect(watch.note(sequence: 70, since: watch.known()) == 10_070)
        // Another process was faster, or assigned sequences before.
        #expect(watch.note(sequence: 10_069, since: watch.known()) == 10_070)
        #expect(watch.note(sequence: 10_070, since: watch.known()) == nil)
    }

    /// This process has not read the log for a while. Other processes have, and have seen what is lost.
    @Test(arguments: [69, 70, 71, 10_069, 10_070, 10_071, 50_000] as [Int64])
    func `has the log skip beyond its last sequence where this process has seen less`(last: Int64) {
        let watch = Self.watch()
        #expect(watch.note(sequence: 70, since: watch.known()) == nil)
        watch.noteEarlierLoss()
        let end = max(70, last) + 10_000
        #expect(watch.note(sequence: last, since: watch.known()) == end)
        #expect(watch.note(sequence: end - 1, since: watch.known()) == end)
        #expect(watch.note(sequence: end, since: watch.known()) == nil)
        #expect(watch.note(sequence: end + 1, since: watch.known()) == nil)
    }

    @Test func `has the log skip from its last sequence where this process has seen none`() {
        let watch = Self.watch()
        watch.noteEarlierLoss()
        #expect(watch.note(sequence: 70, since: watch.known()) == 10_070)
        #expect(watch.note(sequence: 10_070, since: watch.known()) == nil)
        #expect(watch.note(sequence: 10_071, since: watch.known()) == nil)
    }
}
