import BrokerTesting
import ExternalText
import HTTPCodec
import Reactor
import Synchronization
import Testing

@testable import HTTPServer

/// Answers `GET /quick`, each time with how often it was asked.
private final class CountingShortcut: Shortcut {
    let generation = Generation()
    private var asked = 0

    func clocks() -> (monotonic: MonotonicInstant, milliseconds: Int64) { (.now, WallClock.milliseconds) }

    func answer(_ bytes: Span<UInt8>, _ answer: inout ShortcutAnswer, _ output: OutputBuffer) {
        let start = Array("GET /quick ".utf8)
        guard bytes.count > start.count, start.indices.allSatisfy({ bytes[$0] == start[$0] }),
            let end = (3..<bytes.count).first(where: { index in
                bytes[index] == 10 && bytes[index - 1] == 13 && bytes[index - 2] == 10 && bytes[index - 3] == 13
            })
        else { return }
        asked += 1
        answer.write(Array("\(asked)".utf8), output)
        answer.consumed = end + 1
    }

    func answered(_ count: Int, kind: Int) {}
    func turnEnded(answers: Int, nanoseconds: Int64) {}
}

private struct QuickHandler: RequestHandler {
    func respond(to request: Request) async -> Response { Response(.ok, body: Array("slow".utf8)) }
    func response(toFault status: Status, detail: String) -> Response { Response(status) }
    func makeShortcut() -> (any Shortcut)? { CountingShortcut() }
}

private func withQuickServer(
    _ configuration: ServerConfiguration = configured { _ in }, _ body: (Server) async throws -> Void
) async throws {
    try await withServer(configuration, answering: QuickHandler(), body)
}

private func get(_ path: String) -> String { "GET \(path) HTTP/1.1\r\nHost: h\r\n\r\n" }

@Suite struct `Connections with a shortcut` {
    @Test func `wait for their next request as long as every other, also when the first came with them`() async throws {
        let configuration = configured {
            $0.headTimeout = .milliseconds(200)
            $0.idleTimeout = .seconds(60)
        }
        try await withQuickServer(configuration) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/quick"))
            #expect(try await client.response().text == "1")
            // Five times as long as a head may take.
            #expect(await !client.hasInput(within: .seconds(1)))
            try await client.send(get("/quick"))
            #expect(try await client.response().text == "2")
        }
    }

    @Test func `are closed when they have waited for too long, and not before`() async throws {
        let configuration = configured { $0.idleTimeout = .milliseconds(400) }
        try await withQuickServer(configuration) { server in
            let client = try HTTPRawClient(server.address)
            for number in 1...4 {
                try await client.send(get("/quick"))
                #expect(try await client.response().text == "\(number)")
                // Together longer than one wait may be.
                #expect(await !client.hasInput(within: .milliseconds(150)))
            }
            #expect(try await client.rest() == "")
        }
    }

    @Test func `that send half a head have as long for it as every other`() async throws {
        let configuration = configured { $0.headTimeout = .milliseconds(200) }
        try await withQuickServer(configuration) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/quick"))
            _ = try await client.response()
            try await client.send("GET /quick HTTP/1.1\r\nHo")
            #expect(try await client.response().status == .requestTimeout)
        }
    }

    /// More answers than the kernel takes for a peer that does not read. What the shortcut has left over takes the usual
    /// way, which answers with another text.
    @Test func `get an answer to each request, however late they read`() async throws {
        try await withQuickServer { server in
            let client = try HTTPRawClient(server.address, receiveBufferBytes: 4096)
            let (rounds, batch) = (20, 100)
            for _ in 0..<rounds { try await client.send(String(repeating: get("/quick"), count: batch)) }
            var quick = 0
            for _ in 0..<rounds * batch {
                let text = try await client.response().text
                if text == "slow" { continue }
                quick += 1
                #expect(text == "\(quick)")
            }
            #expect(quick > 0)
            try await client.send(get("/quick"))
            #expect(try await client.response().text == "\(quick + 1)")
        }
    }

    @Test func `that are drained get what they asked for, and are closed`() async throws {
        try await withQuickServer { server in
            let (busy, idle) = (try HTTPRawClient(server.address), try HTTPRawClient(server.address))
            for client in [busy, idle] {
                try await client.send(get("/quick"))
                _ = try await client.response()
            }
            try await busy.send(get("/quick") + "GET /quick HTT")
            _ = try await busy.response()
            async let drained: Void = server.drain(within: .seconds(10))
            #expect(try await idle.rest() == "")
            try await busy.send("P/1.1\r\nHost: h\r\n\r\n")
            let last = try await busy.response()
            #expect(last.status == .ok)
            #expect(last.fields["Connection"] == "close")
            await drained
        }
    }
}

/// Answers `GET /quick/part/of/PART` with the part, and how often it was asked for a whole request.
private final class PartShortcut: Shortcut {
    let generation = Generation()
    private let life: Int64
    private let whole: Counter

    init(life: Int64, whole: Counter) {
        self.life = life
        self.whole = whole
    }

    func clocks() -> (monotonic: MonotonicInstant, milliseconds: Int64) { (.now, WallClock.milliseconds) }

    func answer(_ bytes: Span<UInt8>, _ answer: inout ShortcutAnswer, _ output: OutputBuffer) {
        let start = Array("GET /quick/part/of/".utf8)
        guard bytes.count > start.count, start.indices.allSatisfy({ bytes[$0] == start[$0] }),
            let end = (3..<bytes.count).first(where: { index in
                bytes[index] == 10 && bytes[index - 1] == 13 && bytes[index - 2] == 10 && bytes[index - 3] == 13
            }), let space = (start.count..<bytes.count).first(where: { bytes[$0] == UInt8(ascii: " ") })
        else { return }
        answer.frame = whole.add()
        write(bytes.extracting(start.count..<space), answer.frame, &answer, output)
        answer.part = start.count..<space
        answer.frameLife = life
        answer.consumed = end + 1
    }

    func answer(
        part: Span<UInt8>, inFrame frame: Int, of holder: AnyObject?, _ answer: inout ShortcutAnswer,
        _ output: OutputBuffer
    ) {
        write(part, frame, &answer, output)
        answer.consumed = part.count
    }

    private func write(
        _ part: Span<UInt8>, _ number: Int, _ answer: inout ShortcutAnswer, _ output: OutputBuffer
    ) {
        var body = Array("\(number) ".utf8)
        for index in part.indices { body.append(part[index]) }
        answer.write(body, output)
    }

    func answered(_ count: Int, kind: Int) {}
    func turnEnded(answers: Int, nanoseconds: Int64) {}
}

private final class Counter: Sendable {
    private let value = Mutex(0)

    func add() -> Int {
        value.withLock { value in
            value += 1
            return value
        }
    }

    var current: Int { value.withLock { $0 } }
}

private struct PartHandler: RequestHandler {
    let life: Int64
    let whole = Counter()

    func respond(to request: Request) async -> Response { Response(.ok, body: Array("slow".utf8)) }
    func response(toFault status: Status, detail: String) -> Response { Response(status) }
    func makeShortcut() -> (any Shortcut)? { PartShortcut(life: life, whole: whole) }
}

@Suite struct `A shortcut that knows requests by one part` {
    private static let long: Int64 = 60_000_000_000

    @Test func `is asked for the part alone where all the rest is as it was`() async throws {
        let handler = PartHandler(life: Self.long)
        try await withServer(answering: handler) { server async throws in
            let client = try HTTPRawClient(server.address)
            for part in ["a", "bc", "a", String(repeating: "d", count: 600), "e"] {
                try await client.send(get("/quick/part/of/\(part)"))
                #expect(try await client.response().text == "1 \(part)")
            }
            try await client.send(["f", "gh", "f"].map { get("/quick/part/of/\($0)") }.joined())
            for part in ["f", "gh", "f"] { #expect(try await client.response().text == "1 \(part)") }
            // On another connection, its first request is whole.
            let other = try HTTPRawClient(server.address)
            for (part, number) in [("a", 2), ("b", 2)] {
                try await other.send(get("/quick/part/of/\(part)"))
                #expect(try await other.response().text == "\(number) \(part)")
            }
        }
    }

    /// No byte of the rest may differ unseen, and no part be empty.
    @Test func `is asked for the whole request where any other byte differs`() async throws {
        let handler = PartHandler(life: Self.long)
        try await withServer(answering: handler) { server async throws in
            func head(_ part: String, _ value: [UInt8]) -> [UInt8] {
                Array("GET /quick/part/of/\(part) HTTP/1.1\r\nHost: h\r\nValue: ".utf8) + value + Array("\r\n\r\n".utf8)
            }
            let value = Array((0..<67).map { UInt8(ascii: "a") + $0 % 26 })
            let client = try HTTPRawClient(server.address)
            var whole = 0
            func answer(_ bytes: [UInt8]) async throws -> Int {
                try await client.send(bytes)
                let text = try await client.response().text
                return try #require(Int(text.prefix { $0 != " " }))
            }
            for index in value.indices {
                // Those before it, so that the frame of this one is the connection's.
                whole = try await answer(head("before", value))
                #expect(try await answer(head("x\(index)", value)) == whole)
                var changed = value
                changed[index] ^= 1
                #expect(try await answer(head("y\(index)", changed)) != whole, "\(index)")
            }
            #expect(handler.whole.current > value.count)
        }
    }

    @Test func `is asked for the whole request when the frame's time is over`() async throws {
        let handler = PartHandler(life: 1)
        try await withServer(answering: handler) { server async throws in
            let client = try HTTPRawClient(server.address)
            for number in 1...5 {
                try await client.send(get("/quick/part/of/\(number)"))
                #expect(try await client.response().text == "\(number) \(number)")
            }
        }
    }

    /// More than there are frames, by turns on one connection: each is answered as its own.
    @Test func `takes no frame for another, however many there are`() async throws {
        let handler = PartHandler(life: Self.long)
        try await withServer(answering: handler) { server async throws in
            let client = try HTTPRawClient(server.address)
            for _ in 0..<3 {
                for number in 0..<2 * FastLane.framePlaces {
                    let fields = "Host: h\r\nValue: \(number)\r\n\r\n"
                    try await client.send(
                        "GET /quick/part/of/a\(number) HTTP/1.1\r\n\(fields)GET /quick/part/of/b\(number) HTTP/1.1\r\n\(fields)"
                    )
                    let (one, other) = (try await client.response().text, try await client.response().text)
                    #expect(one.hasSuffix(" a\(number)"))
                    #expect(other.hasSuffix(" b\(number)"))
                }
            }
        }
    }
}

/// Answers `GET /quick/part/of/PART` whose one field is `From`, with the part, the sender, and how often it was asked for
/// a whole request. The sender is the secret.
private final class SecretShortcut: Shortcut {
    final class Holder {
        let name: String
        private let gone: HTTPLatch

        init(_ name: String, _ gone: HTTPLatch) {
            self.name = name
            self.gone = gone
        }

        deinit { gone.open() }
    }

    private static let from = "\r\nFrom: "
    let generation = Generation()
    private let whole: Counter
    private let gone: HTTPLatch
    private let life: Int64
    private var last: Holder?

    init(life: Int64, whole: Counter, gone: HTTPLatch) {
        self.life = life
        self.whole = whole
        self.gone = gone
    }

    func clocks() -> (monotonic: MonotonicInstant, milliseconds: Int64) { (.now, WallClock.milliseconds) }

    var lastHolder: AnyObject? {
        defer { last = nil }
        return last
    }

    func answer(_ bytes: Span<UInt8>, _ answer: inout ShortcutAnswer, _ output: OutputBuffer) {
        let text = String(decoding: bytes.indices.map { bytes[$0] }, as: UTF8.self)
        let start = "GET /quick/part/of/"
        guard text.hasPrefix(start), let end = text.firstRange(of: "\r\n\r\n"),
            let from = text.firstRange(of: Self.from), let space = text.dropFirst(4).firstIndex(of: " ")
        else { return }
        func offset(_ index: String.Index) -> Int { text.utf8.distance(from: text.startIndex, to: index) }
        answer.part = start.utf8.count..<offset(space)
        answer.secret = offset(from.upperBound)..<offset(end.lowerBound)
        (answer.frameLife, answer.secretLife) = (life, life)
        let holder = Holder(String(text[from.upperBound..<end.lowerBound]), gone)
        last = holder
        write(bytes.extracting(answer.part), holder, "\(whole.add())", &answer, output)
        answer.consumed = offset(end.upperBound)
    }

    func answer(
        part: Span<UInt8>, inFrame frame: Int, of holder: AnyObject?, _ answer: inout ShortcutAnswer,
        _ output: OutputBuffer
    ) {
        guard let holder = holder as? Holder else { return }
        write(part, holder, "in a frame", &answer, output)
        answer.consumed = part.count
    }

    private func write(
        _ part: Span<UInt8>, _ holder: Holder, _ how: String, _ answer: inout ShortcutAnswer, _ output: OutputBuffer
    ) {
        let text = String(decoding: part.indices.map { part[$0] }, as: UTF8.self)
        answer.write(Array("\(text) \(holder.name) \(how)".utf8), output)
    }

    func answered(_ count: Int, kind: Int) {}
    func turnEnded(answers: Int, nanoseconds: Int64) {}
}

private struct SecretHandler: RequestHandler {
    var life: Int64 = 60_000_000_000
    let whole = Counter()
    let gone = HTTPLatch()

    func respond(to request: Request) async -> Response { Response(.ok, body: Array("slow".utf8)) }
    func response(toFault status: Status, detail: String) -> Response { Response(status) }
    func makeShortcut() -> (any Shortcut)? { SecretShortcut(life: life, whole: whole, gone: gone) }
}

@Suite struct `A shortcut that knows requests by one part and a secret` {
    private static func get(_ part: String, _ secret: String) -> String {
        "GET /quick/part/of/\(part) HTTP/1.1\r\nHost: host\r\nFrom: \(secret)\r\n\r\n"
    }

    /// Alike but for one byte: the least that is known by its bytes, and the most.
    private static func secrets(_ length: Int) -> [String] {
        (0..<length).map { place in String((0..<length).map { $0 == place ? "x" : "y" }) }
    }

    @Test(arguments: [16, 17, 32, 46, 48])
    func `is told whose secret stands in a request, on any connection`(length: Int) async throws {
        let handler = SecretHandler()
        try await withServer(answering: handler) { server async throws in
            let clients = [try HTTPRawClient(server.address), try HTTPRawClient(server.address)]
            let secrets = Self.secrets(length)
            func ask(_ client: HTTPRawClient, _ part: String, _ secret: String) async throws -> Bool {
                try await client.send(Self.get(part, secret))
                let text = try await client.response().text
                #expect(text.hasPrefix("\(part) \(secret) "))
                return text.hasSuffix("in a frame")
            }
            for client in clients { #expect(try await !ask(client, "a", secrets[0])) }
            for secret in secrets.dropFirst() { #expect(try await !ask(clients[0], "a", secret)) }
            for part in ["b", "cc"] {
                for (index, secret) in secrets.enumerated() {
                    #expect(try await ask(clients[index % 2], part, secret))
                }
            }
        }
    }

    @Test(arguments: [15, 49]) func `is asked for the whole request where the secret is short or long`(
        length: Int
    ) async throws {
        let handler = SecretHandler()
        try await withServer(answering: handler) { server async throws in
            let client = try HTTPRawClient(server.address)
            let secrets = Self.secrets(length)
            for number in 1...3 {
                try await client.send(Self.get("a\(number)", secrets[0]))
                #expect(try await client.response().text == "a\(number) \(secrets[0]) \(number)")
            }
        }
    }

    @Test func `is let go of whoever asks no more`() async throws {
        let handler = SecretHandler(life: 1)
        try await withServer(answering: handler) { server async throws in
            let client = try HTTPRawClient(server.address)
            try await client.send(Self.get("a", Self.secrets(46)[0]))
            #expect(try await client.response().text.hasSuffix(" 1"))
            #expect(!handler.gone.isOpen)
            await handler.gone.wait()
        }
    }
}
