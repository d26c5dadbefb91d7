import Glibc
import Reactor
import Testing

@Suite(.timeLimit(.minutes(1))) struct `Line writer` {
    // H105
    @Test func `drops what a full disk does not take, and holds up neither its callers nor the end`() throws {
        let full = OwnedDescriptor(adopting: unsafe open("/dev/full", O_WRONLY | O_CLOEXEC))
        try #require(full.rawValue >= 0)
        let writer = try LineWriter(descriptor: full.rawValue)
        let line = [UInt8](repeating: 0x61, count: 1000)
        for _ in 0..<10_000 { writer.write(line) }
        let begun = MonotonicInstant.now
        writer.close(within: .seconds(50))
        #expect(begun.duration(to: .now) < .seconds(40), "the lines were given up, not waited for")
    }
}
