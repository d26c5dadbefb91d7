import BrokerCore
import BrokerTesting
import ExternalText
import HTTPCodec
import JSON
import Reactor
import Synchronization
import Testing
import TokenBroker

/// How much of names, queries and forms is taken, and what a caller is told of the rest.
@Suite(.timeLimit(.minutes(2))) struct `Limits of input` {
    private static func repeated(_ text: String, _ count: Int) -> String { String(repeating: text, count: count) }

    @Test(arguments: [
        (127, "is not a known parameter"), (128, "is not a known parameter"), (129, "more than 128 bytes"),
    ])
    func `a query parameter's name has 128 bytes at most`(count: Int, detail: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let answer = await broker.call(.get, "/credentials?\(Self.repeated("n", count))=1", tenant: "t1")
        #expect((answer.status, answer.code) == (400, "invalid_request"))
        #expect(answer.json["detail"]?.text?.contains(detail) == true, "\(answer.text)")
    }

    @Test(arguments: [(127, "has 127 faults"), (128, "has 128 faults"), (129, "more than 128 parameters")])
    func `a query has 128 parameters at most`(count: Int, detail: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let query = (0..<count).map { "n\($0)=" }.joined(separator: "&")
        let answer = await broker.call(.get, "/credentials?\(query)", tenant: "t1")
        #expect((answer.status, answer.code) == (400, "invalid_request"))
        #expect(answer.json["detail"]?.text?.contains(detail) == true, "\(answer.text)")
    }

    @Test(arguments: [(127, "is not a known member"), (128, "is not a known member"), (129, "more than 128 bytes")])
    func `a member's name has 128 bytes at most, and its pointer is short`(count: Int, detail: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let body = "{\"\(Self.repeated("n", count))\": 1}"
        let answer = await broker.call(.post, "/login/initialize", tenant: "t1", body: body)
        #expect((answer.status, answer.code) == (400, "invalid_request"))
        #expect(answer.json["detail"]?.text?.contains(detail) == true, "\(answer.text)")
        #expect(answer.pointers == ["/" + Self.repeated("n", 64)])
    }

    private static func post(_ form: String, to broker: BrokerHarness) async -> BrokerHarness.Answer {
        await broker.call(
            .post, "/login/callback", key: nil, body: form,
            fields: ["Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"])
    }

    @Test(arguments: [(65_535, 410), (65_536, 410), (65_537, 413)])
    func `a form has 64 KiB at most`(count: Int, status: Int) async throws {
        let broker = try await BrokerHarness()
        let form = "state=s&code=c&filler="
        let answer = await Self.post(form + Self.repeated("f", count - form.utf8.count), to: broker)
        #expect(answer.status == status, "\(answer.text)")
        if status == 413 {
            #expect(answer.code == "payload_too_large")
            #expect(answer.json["detail"]?.text?.contains("65536 bytes") == true)
        }
    }

    @Test(arguments: [(127, 410, ""), (128, 410, ""), (129, 400, "more than 128 parameters")])
    func `a form has 128 parameters at most`(count: Int, status: Int, detail: String) async throws {
        let broker = try await BrokerHarness()
        let answer = await Self.post("state=s&code=c" + Self.repeated("&n=", count - 2), to: broker)
        #expect(answer.status == status, "\(answer.text)")
        #expect(detail.isEmpty || answer.json["detail"]?.text?.contains(detail) == true)
    }

    @Test(arguments: [(127, 410, ""), (128, 410, ""), (129, 400, "more than 128 bytes")])
    func `a form's parameter has a name of 128 bytes at most`(count: Int, status: Int, detail: String) async throws {
        let broker = try await BrokerHarness()
        let answer = await Self.post("state=s&code=c&\(Self.repeated("n", count))=1", to: broker)
        #expect(answer.status == status, "\(answer.text)")
        #expect(detail.isEmpty || answer.json["detail"]?.text?.contains(detail) == true)
    }

    @Test func `a cookie of another service with a long name does not keep a user from logging in`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let answer = await broker.call(
            .get, "/login/callback?state=s&code=c", key: nil, fields: ["Cookie": "\(Self.repeated("n", 129))=1"])
        #expect(answer.status == 410)
    }

    @Test func `of a body with many faults, the first hundred are told`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let members = (0..<5000).map { "\"n\($0)\": 1" }.joined(separator: ", ")
        let answer = await broker.call(.post, "/login/initialize", tenant: "t1", body: "{\(members)}")
        #expect(answer.status == 400)
        #expect(answer.json["detail"]?.text?.contains("5000") == true)
        #expect(answer.json["errors"]?.array?.count == 100)
    }

    // MARK: Large input

    /// Counts who reads now, how many did so at once at most, and how many have read.
    private final class Readers: Sendable {
        private let state = Mutex((now: 0, most: 0, all: 0))

        var counts: (now: Int, most: Int, all: Int) { state.withLock { $0 } }

        func begin() {
            state.withLock { state in
                state.now += 1
                state.most = max(state.most, state.now)
            }
        }

        func end() {
            state.withLock { state in
                state.now -= 1
                state.all += 1
            }
        }
    }

    @Test(arguments: [(InputReading.largestInPlace, true), (InputReading.largestInPlace + 1, false)])
    func `large input is not read on the loop that a task prefers`(count: Int, isOnLoop: Bool) async throws {
        let loop = try EventLoop(name: "reading")
        defer { loop.shutDown() }
        let wasOnLoop = await Task(executorPreference: EventLoopTaskExecutor(loop)) {
            await InputReading.run(bytes: count) { loop.isCurrent }
        }.value
        #expect(wasOnLoop == isOnLoop)
    }

    @Test func `two large inputs are read at once, and the others in their turn`() async throws {
        let readers = Readers()
        let tasks = (0..<50).map { _ in
            Task {
                await InputReading.run(bytes: .max) {
                    readers.begin()
                    // Long enough for others to come in between.
                    _ = (0..<20_000).reduce(0) { $0 ^ $1 }
                    readers.end()
                }
            }
        }
        for task in tasks { await task.value }
        let (now, most, all) = readers.counts
        #expect((now, all) == (0, 50))
        #expect((1...2).contains(most))
    }

    @Test func `what a large input has wrong is told as of a small one`() async throws {
        struct Wrong: Error, Equatable {}
        await #expect(throws: Wrong()) {
            try await InputReading.run(bytes: .max) { () throws(Wrong) in throw Wrong() }
        }
    }
}
