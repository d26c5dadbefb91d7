import BrokerTesting
import Testing

@testable import BrokerCore

@Suite struct `A table of values that expire` {
    private let time = ManualTime()

    private func table(capacity: Int = 8) -> ExpiringTable<String, Int> {
        ExpiringTable(validity: .seconds(60), capacity: capacity, time: time)
    }

    @Test(arguments: [(59_999, true), (60_000, false), (60_001, false)])
    func `has each for its time`(milliseconds: Int, isThere: Bool) {
        let table = table()
        table.set("a", 1)
        time.advance(by: .milliseconds(milliseconds))
        #expect(table["a"] == (isThere ? 1 : nil))
        #expect(table.values == (isThere ? [1] : []))
    }

    @Test func `begins the time of a value anew when it is set again`() {
        let table = table()
        table.set("a", 1)
        time.advance(by: .seconds(59))
        table.set("a", 2)
        time.advance(by: .seconds(59))
        #expect(table["a"] == 2)
    }

    @Test func `makes a value of the one before, unless that one's time is over`() {
        let table = table()
        table.set("a") { ($0 ?? 10) + 1 }
        table.set("a") { ($0 ?? 20) + 1 }
        #expect(table["a"] == 12)
        time.advance(by: .seconds(60))
        table.set("a") { ($0 ?? 30) + 1 }
        #expect(table["a"] == 31)
    }

    @Test func `gives way with the value that was set first`() {
        let table = table(capacity: 2)
        for (index, key) in ["a", "b", "a", "c"].enumerated() { table.set(key, index) }
        #expect(table["b"] == nil)
        #expect(table.values == [2, 3])
    }

    @Test func `loses what is removed`() {
        let table = table()
        table.set("a", 1)
        table.remove("a")
        table.remove("b")
        #expect(table.values.isEmpty)
    }
}
