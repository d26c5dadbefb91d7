import BrokerCore
import BrokerTesting
import CredentialStore
import OAuth
import Reactor
import Synchronization
import Testing

@Suite struct `The shared store's time` {
    /// One answer of a database that is asked for the time.
    struct Answer: Sendable {
        /// By how much the database's clock is ahead of the test's, in milliseconds.
        var ahead = 0
        /// How long the answer takes, in milliseconds; the clock is read in the middle.
        var way = 0
        /// Whether there is none.
        var fails = false
    }

    /// A store whose clock is not the test's, and which takes its time to answer.
    private final class Database: ForwardingStore {
        let inner: any RecordStore = MemoryRecordStore()
        let time: ManualTime
        /// The last one is given from then on.
        let answers: Mutex<[Answer]>
        private let questions = Atomic<Int>(0)

        init(_ time: ManualTime, _ answers: [Answer]) {
            self.time = time
            self.answers = Mutex(answers)
        }

        var revalidateAfter: Duration? { .seconds(5) }
        var countOfQuestions: Int { questions.load(ordering: .relaxed) }

        func admit() throws(StoreError) {}

        func clock() async throws(StoreError) -> Timestamp? {
            questions.add(1, ordering: .relaxed)
            let answer = answers.withLock { $0.count > 1 ? $0.removeFirst() : $0.first }
            guard let answer, !answer.fails else { throw .unavailable }
            time.advance(by: .milliseconds(answer.way / 2))
            defer { time.advance(by: .milliseconds(answer.way - answer.way / 2)) }
            return time.now.advanced(by: .milliseconds(answer.ahead))
        }
    }

    private static func vault(_ store: any RecordStore) throws -> Vault {
        Vault(store: store, keyring: try Keyring(parsing: BrokerHarness.masterKeys))
    }

    /// The store rounds to a millisecond in either direction: what differs by no more than that differs not at all.
    @Test(arguments: [
        (0, 0, 0), (1, 0, 0), (2, 0, 1), (-1, 0, 0), (-2, 0, -1), (180_000, 0, 179_999), (-180_000, 0, -179_999),
        (101, 200, 0), (102, 200, 1), (-101, 200, 0), (-102, 200, -1), (180_000, 4000, 177_999),
    ])
    func `is moved as far as the answers prove, and no further`(ahead: Int, way: Int, moved: Int) async throws {
        let manual = ManualTime()
        let vault = try Self.vault(Database(manual, [Answer(ahead: ahead, way: way)]))
        let time = SharedTime(manual)
        #expect(
            try await time.adjust(by: vault) == (moved == 0 ? .unchanged : .movedByDatabase(.milliseconds(moved))))
        #expect(manual.now.duration(to: time.now) == .milliseconds(moved))
        #expect(time.monotonic == manual.monotonic)
        #expect(time.clocks.now == time.now && time.clocks.monotonic == time.monotonic)
        // What is right already stays.
        #expect(try await time.adjust(by: vault) == .unchanged)
        #expect(manual.now.duration(to: time.now) == .milliseconds(moved))
    }

    /// The first answer, the second one, and by how much the time moves.
    @Test(arguments: [
        // One that is wrong by an hour, in either direction.
        ([Answer(ahead: 3_600_000), Answer()], 0), ([Answer(ahead: -3_600_000), Answer()], 0),
        // Two that contradict each other.
        ([Answer(ahead: 3_600_000), Answer(ahead: -3_600_000)], 0), ([Answer(ahead: 1000), Answer(ahead: 1003)], 0),
        // Two that allow for each other, one of which proves little.
        ([Answer(ahead: 1000), Answer(ahead: 1002)], 1001),
        ([Answer(ahead: 59_000, way: 120_000)], 0), ([Answer(ahead: 59_000), Answer(ahead: 59_000, way: 120_000)], 0),
        ([Answer(ahead: 61_000), Answer(ahead: 61_000, way: 120_000)], 60_999),
        ([Answer(ahead: -61_000), Answer(ahead: -61_000, way: 120_000)], -60_999),
    ])
    func `is not moved by one answer alone`(answers: [Answer], moved: Int) async throws {
        let manual = ManualTime()
        let store = Database(manual, answers)
        let time = SharedTime(manual)
        let adjustment = try await time.adjust(by: try Self.vault(store))
        #expect(adjustment == (moved == 0 ? .unchanged : .movedByDatabase(.milliseconds(moved))))
        #expect(manual.now.duration(to: time.now) == .milliseconds(moved))
    }

    @Test func `asks again only where the answer differs`() async throws {
        let manual = ManualTime()
        let store = Database(manual, [Answer()])
        let time = SharedTime(manual)
        let vault = try Self.vault(store)
        _ = try await time.adjust(by: vault)
        #expect(store.countOfQuestions == 1)
        store.answers.withLock { $0 = [Answer(ahead: 1000)] }
        _ = try await time.adjust(by: vault)
        #expect(store.countOfQuestions == 3)
    }

    /// A process must not judge by its wall clock what the database's clock is to judge. How long the first two answers
    /// take, whether they come, and how often the database is asked until the time is right.
    @Test(arguments: [
        ([Answer()], 2), ([Answer(fails: true), Answer()], 3),
        ([Answer(fails: true), Answer(fails: true), Answer()], 4),
        // One that takes long proves little.
        ([Answer(way: 3000), Answer(way: 3000), Answer()], 4), ([Answer(way: 998), Answer(way: 998), Answer()], 2),
        ([Answer(way: 1000), Answer(way: 1000), Answer()], 4),
    ])
    func `is right before a process begins to serve`(answers: [Answer], questions: Int) async throws {
        let manual = ManualTime()
        let store = Database(manual, answers)
        let time = SharedTime(MachineTime(manual, ahead: .seconds(3600)))
        try await time.begin(with: try Self.vault(store), within: .seconds(60), Self.silence(manual))
        #expect((.zero ... .milliseconds(500)).contains(manual.now.duration(to: time.now)))
        #expect(store.countOfQuestions == questions)
    }

    @Test func `is waited for by a process that begins as long as its patience lasts`() async throws {
        let manual = ManualTime()
        let (start, time) = (manual.monotonic, SharedTime(manual))
        await #expect(throws: StoreError.unavailable) {
            try await time.begin(with: try Self.vault(Database(manual, [])), within: .seconds(60), Self.silence(manual))
        }
        #expect(start.duration(to: manual.monotonic) == .seconds(60))
        // Answers that prove little are better than none.
        let slow = Database(manual, [Answer(way: 4500)])
        try await time.begin(with: try Self.vault(slow), within: .seconds(60), Self.silence(manual))
        #expect(slow.countOfQuestions == 13)
        // A store of one writer has no clock to wait for.
        try await time.begin(with: try Self.vault(MemoryRecordStore()), within: .zero, Self.silence(manual))
    }

    private static func silence(_ time: ManualTime) -> Log { Log(threshold: .error, time: time) { _ in } }

    /// Steps of the wall clock, each before the database is first asked, while it answers, and while it does not.
    @Test(arguments: [[15], [-90], [15, -90], [-90, 15], [-90, 3600]], [true, false])
    func `goes on when the wall clock is set`(steps: [Int], isAway: Bool) async throws {
        let manual = ManualTime()
        let store = Database(manual, [Answer()])
        // It starts an hour wrong.
        let machine = MachineTime(manual, ahead: .seconds(3600))
        let time = SharedTime(machine)
        let vault = try Self.vault(store)
        #expect(manual.now.duration(to: time.now) == .seconds(3600))
        for step in steps {
            machine.setWallClock(by: .seconds(step))
            #expect(manual.now.duration(to: time.now) == .seconds(3600))
        }
        #expect(try await time.adjust(by: vault) == .movedByDatabase(.milliseconds(1 - 3_600_000)))
        if isAway { store.answers.withLock { $0 = [] } }
        for step in steps {
            machine.setWallClock(by: .seconds(step))
            for _ in 0..<24 {
                manual.advance(by: .seconds(5))
                if isAway {
                    await #expect(throws: StoreError.unavailable) { try await time.adjust(by: vault) }
                } else {
                    #expect(try await time.adjust(by: vault) == .unchanged)
                }
                #expect(manual.now.duration(to: time.now) == .milliseconds(1))
            }
        }
        store.answers.withLock { $0 = [Answer()] }
        #expect(try await time.adjust(by: vault) == .unchanged)
    }

    /// A step of the database's own clock, and time that passed while the machine's clocks stood still.
    @Test(arguments: [-90_000, 15_000, 3_600_000])
    func `follows the database's clock when that is set`(step: Int) async throws {
        let manual = ManualTime()
        let store = Database(manual, [Answer()])
        let time = SharedTime(manual)
        let vault = try Self.vault(store)
        #expect(try await time.adjust(by: vault) == .unchanged)
        store.answers.withLock { $0 = [Answer(ahead: step)] }
        let moved = step - step.signum()
        #expect(try await time.adjust(by: vault) == .movedByDatabase(.milliseconds(moved)))
        #expect(manual.now.duration(to: time.now) == .milliseconds(moved))
    }

    // MARK: A store of one writer

    @Test func `follows the wall clock forward only where the store has no clock`() async throws {
        let manual = ManualTime()
        let machine = MachineTime(manual)
        let vault = try Self.vault(MemoryRecordStore())
        let time = SharedTime(machine)
        func lead() -> Duration { manual.now.duration(to: time.now) }
        #expect(try await time.adjust(by: vault) == .unchanged)
        #expect(lead() == .zero)
        machine.setWallClock(by: .seconds(15))
        #expect(lead() == .zero)
        #expect(try await time.adjust(by: vault) == .movedByWallClock(.seconds(15)))
        #expect(lead() == .seconds(15))
        machine.setWallClock(by: .seconds(-90))
        #expect(try await time.adjust(by: vault) == .aheadOfWallClock(.seconds(90)))
        manual.advance(by: .seconds(100))
        #expect(try await time.adjust(by: vault) == .aheadOfWallClock(.seconds(90)))
        #expect(lead() == .seconds(15))
        machine.setWallClock(by: .seconds(90))
        #expect(try await time.adjust(by: vault) == .unchanged)
        machine.setWallClock(by: .milliseconds(1))
        #expect(try await time.adjust(by: vault) == .movedByWallClock(.milliseconds(1)))
        // A new process believes the wall clock.
        machine.setWallClock(by: .seconds(-600))
        #expect(SharedTime(machine).now == machine.now)
    }

    /// A step that is believed at once, and one that is not; then that one's end, or that it lasts.
    @Test(arguments: [(60_000, 0, 60_000), (60_001, 179_999, 0), (60_001, 180_000, 60_001)])
    func `follows a large step of the wall clock only once that has lasted`(step: Int, age: Int, lead: Int) async throws
    {
        let manual = ManualTime()
        let machine = MachineTime(manual)
        let vault = try Self.vault(MemoryRecordStore())
        let time = SharedTime(machine)
        machine.setWallClock(by: .milliseconds(step))
        _ = try await time.adjust(by: vault)
        manual.advance(by: .milliseconds(age))
        _ = try await time.adjust(by: vault)
        #expect(manual.now.duration(to: time.now) == .milliseconds(lead))
    }

    @Test func `forgets a step of the wall clock that did not last, and begins anew with another one`() async throws {
        let manual = ManualTime()
        let machine = MachineTime(manual)
        let vault = try Self.vault(MemoryRecordStore())
        let time = SharedTime(machine)
        func lead() -> Duration { manual.now.duration(to: time.now) }
        let year = Duration.seconds(365 * 86_400)
        for _ in 0..<100 {
            machine.setWallClock(by: year)
            #expect(try await time.adjust(by: vault) == .behindWallClock(year))
            manual.advance(by: .seconds(10))
            machine.setWallClock(by: .zero - year)
            #expect(try await time.adjust(by: vault) == .unchanged)
        }
        // Each step is another one.
        for count in 1...100 {
            machine.setWallClock(by: year)
            #expect(try await time.adjust(by: vault) == .behindWallClock(year * count))
            manual.advance(by: .seconds(10))
        }
        #expect(lead() == .zero)
        manual.advance(by: .seconds(170))
        #expect(try await time.adjust(by: vault) == .movedByWallClock(year * 100))
    }

    // MARK: The log

    @Test func `says once that the wall clock of a store of one writer is not believed`() async throws {
        let machine = MachineTime(ManualTime())
        let vault = try Self.vault(MemoryRecordStore())
        let time = SharedTime(machine)
        let logged = Mutex<[String]>([])
        let log = Log(threshold: .info, time: machine) { line in
            logged.withLock { $0.append(String(decoding: line, as: UTF8.self)) }
        }
        for _ in 0..<2 {
            machine.setWallClock(by: .seconds(3600))
            for _ in 0..<3 { await time.adjust(by: vault, log) }
            #expect(logged.withLock { $0.count { $0.contains("wall_clock_doubted") } == 1 && $0.count == 1 })
            machine.setWallClock(by: .seconds(-3600))
            await time.adjust(by: vault, log)
            logged.withLock { $0 = [] }
        }
    }

    @Test(arguments: [(201, 0), (202, 1), (-201, 0), (-202, 1), (90_000, 1)])
    func `says once that the database's clock differs by more than a fifth of a second`(
        ahead: Int, lines: Int
    ) async throws {
        let manual = ManualTime()
        let vault = try Self.vault(Database(manual, [Answer(ahead: ahead)]))
        let time = SharedTime(manual)
        let logged = Mutex<[String]>([])
        let log = Log(threshold: .info, time: manual) { line in
            logged.withLock { $0.append(String(decoding: line, as: UTF8.self)) }
        }
        for _ in 0..<3 { await time.adjust(by: vault, log) }
        #expect(logged.withLock { $0.count } == lines)
        #expect(logged.withLock { $0.allSatisfy { $0.contains("clock_differs_from_database") } })
    }

    @Test func `says once for each step that the wall clock of a store of one writer was set`() async throws {
        let machine = MachineTime(ManualTime())
        let vault = try Self.vault(MemoryRecordStore())
        let time = SharedTime(machine)
        let logged = Mutex<[String]>([])
        let log = Log(threshold: .info, time: machine) { line in
            logged.withLock { $0.append(String(decoding: line, as: UTF8.self)) }
        }
        func lines(after step: Int) async -> [String] {
            machine.setWallClock(by: .milliseconds(step))
            for _ in 0..<3 { await time.adjust(by: vault, log) }
            defer { logged.withLock { $0 = [] } }
            return logged.withLock { $0 }
        }
        #expect(await lines(after: 200).isEmpty)
        let forward = await lines(after: 201)
        #expect(forward.count == 1 && forward[0].contains("wall_clock_set_forward"))
        #expect(await lines(after: -200).isEmpty)
        let back = await lines(after: -1)
        #expect(back.count == 1 && back[0].contains("wall_clock_set_back") && back[0].contains("201"))
        let further = await lines(after: -1000)
        #expect(further.count == 1 && further[0].contains("1201"))
        #expect(await lines(after: 1201).isEmpty)
        #expect(await lines(after: -300).count == 1)
    }

    @Test func `is compared with its source every five seconds`() async throws {
        let manual = ManualTime(skipsSleeps: false)
        let store = Database(manual, [Answer()])
        let time = SharedTime(manual)
        let vault = try Self.vault(store)
        let following = Task { await time.follow(vault, Log(threshold: .info, time: manual) { _ in }) }
        for round in 0..<3 {
            await manual.sleepers(of: .seconds(5))
            #expect(store.countOfQuestions == round)
            manual.advance(by: .milliseconds(4999))
            #expect(store.countOfQuestions == round)
            manual.advance(by: .milliseconds(1))
        }
        await manual.sleepers(of: .seconds(5))
        #expect(store.countOfQuestions == 3)
        following.cancel()
        await following.value
    }
}
