import BrokerTesting
import HTTPCodec
import Testing

@Suite struct `Contract of Prefer` {
    // A field of separators alone once ended the process.
    @Test(arguments: [
        ("wait=0", 200), ("wait=1", 200), (#"WAIT="1""#, 200), ("wait = 1 ; x", 200), ("respond-async, wait=1", 200),
        ("wait=99999999999999999999", 200), (";", 200), ("=", 200), ("=;=", 200), ("; wait=x", 200), ("=5", 200),
        ("return=minimal", 200), ("wait", 400), ("wait=", 400), ("wait=-1", 400), ("wait=1.5", 400), ("wait=x", 400),
    ])
    func `a preference is read, passed over or refused`(_ value: String, _ status: Int) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let answer = await broker.call(.get, "/credentials", tenant: "t1", fields: ["Prefer": value])
        #expect(answer.status == status)
    }
}
