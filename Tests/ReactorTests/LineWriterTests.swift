import Glibc
import Reactor
import Testing

@Suite(.timeLimit(.minutes(1))) struct `Line writer` {
    // H105
    @Test func `drops what a full disk does not take, and holds up neither its callers nor the end`() throws {
        let full = OwnedDescriptor(adopting: unsafe open("/dev/full", O_WRONLY | O_CLOEXEC))
        try #require(full.rawValue >= 0)
        let writer = try LineWriter(descriptor: full.rawValue) { _ in [] }
        let line = [UInt8](repeating: 0x61, count: 1000)
        for _ in 0..<10_000 { writer.write(line) }
        let begun = MonotonicInstant.now
        writer.close(within: .seconds(50))
        #expect(begun.duration(to: .now) < .seconds(40), "the lines were given up, not waited for")
    }

    // H105
    @Test func `tells how many lines did not fit into the queue while the pipe was full`() throws {
        var ends: [CInt] = [0, 0]
        try #require(unsafe pipe(&ends) == 0)
        let output = OwnedDescriptor(adopting: ends[0])
        let input = OwnedDescriptor(adopting: ends[1])
        let writer = try LineWriter(descriptor: input.rawValue, capacity: 10_000) { Array("\($0) dropped".utf8) }
        let line = [UInt8](repeating: 0x61, count: 999)
        // A pipe takes 65,536 octets, and the queue 10,000 more while the writer has as many.
        for _ in 0..<200 { writer.write(line) }
        var text = ""
        var bytes = [UInt8](repeating: 0, count: 65_536)
        while !text.contains("dropped\n") {
            let count = unsafe read(output.rawValue, &bytes, bytes.count)
            try #require(count > 0)
            text += String(decoding: bytes[..<count], as: UTF8.self)
        }
        writer.close(within: .seconds(50))
        let lines = text.split(separator: "\n")
        let dropped = try #require(Int(lines.last?.split(separator: " ").first ?? ""))
        #expect(dropped > 100)
        #expect(lines.count - 1 + dropped == 200)
        #expect(lines.dropLast().allSatisfy { $0.utf8.count == 999 })
    }
}
