import BrokerTesting
import CredentialStore
import HTTPCodec
import OAuth
import Synchronization
import Testing
import TokenBroker

@testable import BrokerCore

@Suite struct `A store that is away` {
    private struct Setting {
        let time = ManualTime()
        let reports: StoreReports
        private let collected: CollectedLines

        init() {
            let collected = CollectedLines()
            self.collected = collected
            reports = StoreReports(
                Log(threshold: .debug, time: time) { collected.append($0) }, Metrics(), time: time)
        }

        /// What the log has of it, without the times.
        var told: [String] {
            collected.all.compactMap { line in
                line.firstMatch(of: /"event":"(.*})/).map { String($0.output.1) }
            }
        }
    }

    private final class CollectedLines: Sendable {
        private let lines = Mutex<[String]>([])

        var all: [String] { lines.withLock { $0 } }

        func append(_ line: [UInt8]) { lines.withLock { $0.append(String(decoding: line, as: UTF8.self)) } }
    }

    private static func failed(_ count: Int) -> String {
        #"store_failed","store_error":"unavailable","count":\#(count)}"#
    }

    private static func back(after seconds: Int, _ count: Int) -> String {
        #"store_answers_again","duration_us":\#(seconds * 1_000_000),"count":\#(count)}"#
    }

    @Test func `is told when it begins, every ten seconds with a count, and when it is over`() {
        let setting = Setting()
        setting.reports.answered(.read)
        for _ in 0..<100 { setting.reports.failed(.read) }
        #expect(setting.told == [Self.failed(1)])
        setting.time.advance(by: .milliseconds(9999))
        setting.reports.failed(.write)
        #expect(setting.told == [Self.failed(1)])
        setting.time.advance(by: .milliseconds(1))
        setting.reports.failed(.read)
        #expect(setting.told == [Self.failed(1), Self.failed(101)])
        setting.reports.failed(.read)
        setting.time.advance(by: .seconds(5))
        for _ in 0..<3 { setting.reports.answered(.write) }
        #expect(setting.told == [Self.failed(1), Self.failed(101), Self.back(after: 15, 1)])
    }

    @Test func `that fails and answers by turns has two lines in ten seconds`() {
        let setting = Setting()
        for _ in 0..<20 {
            setting.time.advance(by: .milliseconds(500))
            setting.reports.failed(.read)
            setting.reports.answered(.read)
        }
        #expect(setting.told == [Self.failed(1), Self.back(after: 0, 0)])
        setting.time.advance(by: .milliseconds(500))
        setting.reports.failed(.read)
        #expect(setting.told.last == Self.failed(20))
    }

    @Test(
        arguments: [(.read, .read, true), (.write, .read, false), (.write, .write, true), (.read, .write, true)]
            as [(StoreAccess, StoreAccess, Bool)])
    func `is back when it does what it did not do`(
        failed: StoreAccess, answered: StoreAccess, isBack: Bool
    ) {
        let setting = Setting()
        setting.reports.failed(failed)
        setting.reports.answered(answered)
        #expect(setting.told.count == (isBack ? 2 : 1))
    }

    @Test func `has one line, and a count of each call`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await BrokerHarness(store: store, time: ManualTime(skipsSleeps: false))
        await broker.makeTenant()
        #expect(await Self.failures(broker) == [0, 0])
        store.isAway = true
        for user in 0..<30 { #expect(await broker.get("storage_key=u\(user)").code == "storage_unavailable") }
        #expect(broker.log.count { $0.contains("store_failed") } == 1)
        let counted = try #require(await Self.failures(broker).first)
        #expect(counted >= 30)
        #expect(await broker.call(.put, "/tenants/t2", body: #"{"client_id": "c1"}"#).code == "storage_unavailable")
        store.isAway = false
        #expect(await broker.call(.put, "/tenants/t2", body: #"{"client_id": "c1"}"#).status == 201)
        #expect(broker.log.count { $0.contains("store_failed") } == 1)
        #expect(broker.log.count { $0.contains("store_answers_again") } == 1)
    }

    /// Of reads and of writes.
    private static func failures(_ broker: BrokerHarness) async -> [Int] {
        let lines = await broker.call(.get, "/metrics", key: nil).text.split(separator: "\n")
        return ["read", "write"].compactMap { access in
            let name = #"token_broker_store_failures_total{access="\#(access)"} "#
            return lines.first { $0.hasPrefix(name) }.flatMap { Int($0.dropFirst(name.count)) }
        }
    }
}
