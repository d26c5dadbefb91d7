internal import BrokerCore
internal import BrokerTesting
internal import CredentialStore
internal import OAuth
internal import Reactor
internal import Testing

@Suite struct `The shared store's time` {
    /// A store whose clock is ahead of the test's, and which takes its time to answer.
    private final class Clock: ForwardingStore {
        let inner: any RecordStore = MemoryRecordStore()
        let time: ManualTime
        let ahead: Duration
        let way: Duration

        init(_ time: ManualTime, ahead: Duration, way: Duration) {
            self.time = time
            self.ahead = ahead
            self.way = way
        }

        var revalidateAfter: Duration? { .seconds(5) }

        func admit() throws(StoreError) {}

        func clock() async throws(StoreError) -> Timestamp? {
            time.advance(by: way / 2)
            defer { time.advance(by: way / 2) }
            return time.now.advanced(by: ahead)
        }
    }

    @Test(arguments: [
        (0, 0, 0), (180_000, 0, 180_000), (-180_000, 0, -180_000), (200, 0, 0), (201, 0, 201), (-200, 0, 0),
        (-201, 0, -201), (300, 200, 0), (301, 200, 301), (180_000, 4000, 180_000),
    ])
    func `is taken where it differs by more than the way to the store explains`(
        ahead: Int, way: Int, moved: Int
    ) async throws {
        let manual = ManualTime()
        let store = Clock(manual, ahead: .milliseconds(ahead), way: .milliseconds(way))
        let vault = Vault(store: store, keyring: try Keyring(parsing: BrokerHarness.masterKeys))
        let time = SharedTime(manual)
        #expect(try await time.adjust(by: vault) == .milliseconds(moved))
        #expect(manual.now.duration(to: time.now) == .milliseconds(moved))
        #expect(time.monotonic == manual.monotonic)
        // What is right already stays.
        #expect(try await time.adjust(by: vault) == .zero)
        #expect(manual.now.duration(to: time.now) == .milliseconds(moved))
    }

    @Test func `is the process's own where nobody else writes`() async throws {
        let manual = ManualTime()
        let vault = Vault(store: MemoryRecordStore(), keyring: try Keyring(parsing: BrokerHarness.masterKeys))
        let time = SharedTime(manual)
        #expect(try await time.adjust(by: vault) == .zero)
        #expect(time.now == manual.now)
    }
}
