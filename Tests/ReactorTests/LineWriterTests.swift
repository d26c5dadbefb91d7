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

    @Test func `writes lines together that come one after another, and what is left when it is closed`() throws {
        var ends: [CInt] = [0, 0]
        // Each write arrives as a packet of its own.
        try #require(unsafe socketpair(AF_UNIX, CInt(SOCK_SEQPACKET.rawValue), 0, &ends) == 0)
        let output = OwnedDescriptor(adopting: ends[0])
        let input = OwnedDescriptor(adopting: ends[1])
        let writer = try LineWriter(descriptor: input.rawValue, pause: .seconds(600)) { _ in [] }
        for line in ["a", "b", "c"] { writer.write(Array(line.utf8)) }
        writer.close(within: .seconds(50))
        var packet = [UInt8](repeating: 0, count: 100)
        let count = unsafe read(output.rawValue, &packet, packet.count)
        #expect(Array(packet.prefix(count)) == Array("a\nb\nc\n".utf8))
    }

    // H105
    @Test func `tells how many lines did not fit into the queue while the pipe was full`() throws {
        var ends: [CInt] = [0, 0]
        try #require(unsafe pipe(&ends) == 0)
        let output = OwnedDescriptor(adopting: ends[0])
        let input = OwnedDescriptor(adopting: ends[1])
        let writer = try LineWriter(descriptor: input.rawValue, capacity: 10_000) { Array("\($0) dropped".utf8) }
        let line = [UInt8](repeating: 0x61, count: 999)
        // The pipe takes nothing more, whenever the writer has its turn.
        let filling = fcntl(input.rawValue, F_SETFL, O_NONBLOCK)
        try #require(filling == 0)
        var room = 0
        while true {
            let count = unsafe Glibc.write(input.rawValue, [UInt8](repeating: 0x20, count: 4096), 4096)
            if count < 0 { break }
            room += count
        }
        try #require(fcntl(input.rawValue, F_SETFL, 0) == 0)
        // The queue takes 10,000 octets, and the writer has as many.
        for _ in 0..<200 { writer.write(line) }
        var text = ""
        var bytes = [UInt8](repeating: 0, count: 65_536)
        func tally() -> (lines: Int, dropped: Int) {
            let lines = text.split(separator: "\n", omittingEmptySubsequences: true)
            let reports = lines.filter { $0.hasSuffix(" dropped") }.compactMap { Int($0.dropLast(" dropped".count)) }
            return (lines.count { $0.utf8.count == 999 }, reports.reduce(0, +))
        }
        while tally().lines + tally().dropped < 200 || !text.hasSuffix("\n") {
            let count = unsafe read(output.rawValue, &bytes, bytes.count)
            try #require(count > 0)
            let blanks = min(room, count)
            room -= blanks
            text += String(decoding: bytes[blanks..<count], as: UTF8.self)
        }
        writer.close(within: .seconds(50))
        #expect(tally().lines + tally().dropped == 200)
        #expect((180...190).contains(tally().dropped), "10 or 20 lines were taken")
    }
}
