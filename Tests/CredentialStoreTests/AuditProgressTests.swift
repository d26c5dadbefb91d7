import CredentialStore
import Synchronization
import Testing

extension `Audit log` {
    @Test func `is examined with a word on how far that is, now and then`() async throws {
        let (log, vault) = try log()
        try await log.sign(isStart: true)
        for number in 0..<2_000 { try await vault.commit([insertion("k\(number)")]) }
        let counts = Mutex<[Int]>([])
        let summary = try await AuditExamination(store, keyring: try Keyring(parsing: Self.keys)) {
            Issue.record("\($0)")
        } progress: { count in
            counts.withLock { $0.append(count) }
        }.run()
        #expect(summary.entries >= 2_000)
        #expect(counts.withLock { $0.prefix(2) } == [1_000, 2_000])
    }
}
