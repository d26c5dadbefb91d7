import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import OAuth
import Testing
import TokenBroker

@Suite struct `Importing credentials` {
    private static func broker(_ tenant: String = #"{"client_id": "c1", "scopes": ["r_usr"]}"#) async throws
        -> BrokerHarness
    {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", tenant)
        return broker
    }

    private static func line(_ key: String, _ refresh: String, _ members: String = "") -> String {
        #"{"storage_key": "\#(key)", "refresh_token": "\#(refresh)"\#(members)}"#
    }

    private static let lasting = #""token": "a1", "expires": "2999-01-01T00:00:00Z""#

    // MARK: What is stored

    @Test func `a refresh token alone is refreshed at the first use, and shown to no caller before`() async throws {
        let broker = try await Self.broker()
        let answer = await broker.importing(Self.line("alice", "r1"))
        #expect(answer.head.status == 200)
        #expect(answer.head.fields["Content-Type"] == "application/x-ndjson")
        #expect(answer.outcomes == ["1 alice imported"])
        #expect(broker.transport.seen.isEmpty)
        #expect(await broker.get("storage_key=alice&policy=local").code == "missing_token_container")
        #expect(await broker.status(storageKey: "alice").isLoggedIn == true)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        let read = await broker.get("storage_key=alice")
        #expect((read.token, read.level) == ("a2", "user"))
        #expect(broker.transport.seen.count == 1)
        #expect(await broker.get("storage_key=alice").token == "a2")
    }

    @Test func `a whole set is served as it is, by the members of a put`() async throws {
        let broker = try await Self.broker()
        let answer = await broker.importing(
            Self.line("alice", "r1", #", "credentials": {"client_id": "c1", "user_id": "7", \#(Self.lasting)}"#))
        #expect(answer.outcomes == ["1 alice imported"])
        let read = await broker.get("storage_key=alice")
        #expect((read.token, read.json["user_id"]?.text) == ("a1", "7"))
        #expect(broker.transport.seen.isEmpty)
    }

    @Test func `each bad line is told, and the others go on`() async throws {
        let broker = try await Self.broker()
        let answer = await broker.importing(
            Self.line("a", "r1"), "{", "[]", #"{"storage_key": "b"}"#, Self.line("no such key", "r"), "",
            #"{"refresh_token": "r"}"#, Self.line("c", "r", #", "refreshtoken": "r""#),
            Self.line("d", "r", #", "credentials": {"client_id": "other"}"#),
            Self.line("e", "r", #", "granted_at": "2999-01-01T00:00:00Z""#),
            Self.line("f", "r", #", "granted_at": "yesterday""#),
            Self.line("u-" + String(repeating: "A", count: 43), "r"), Self.line("g", ""), Self.line("z", "r9"))
        #expect(
            answer.outcomes == [
                "1 a imported", "2 - invalid_request", "3 - invalid_request", "4 b invalid_request",
                "5 - invalid_request", "7 - invalid_request", "8 c invalid_request", "9 d illegal_argument",
                "10 e invalid_request", "11 f invalid_request",
                "12 u-\(String(repeating: "A", count: 43)) illegal_argument", "13 g invalid_request", "14 z imported",
            ])
        func pointers(_ index: Int) -> [String]? {
            answer.values[index]["errors"]?.array?.map { $0["pointer"]?.text ?? "" }
        }
        #expect(pointers(3) == ["/refresh_token"])
        #expect(pointers(4) == ["/storage_key"])
        #expect(pointers(6) == ["/refreshtoken"])
        #expect(pointers(8) == ["/granted_at"])
        #expect(!answer.lines.joined().contains("r9"))
    }

    // MARK: What is there already

    @Test func `the same file again changes nothing, also after the provider has replaced the token`() async throws {
        let broker = try await Self.broker()
        let line = Self.line("alice", "r1", #", "granted_at": "2020-01-01T00:00:00Z""#)
        #expect(await broker.importing(line).outcomes == ["1 alice imported"])
        #expect(await broker.importing(line).outcomes == ["1 alice unchanged"])
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        let tag = await broker.get("storage_key=alice").tag
        for query in ["", "replace=true", "verify=true", "dry_run=true"] {
            #expect(await broker.importing(line, query: query).outcomes == ["1 alice unchanged"], "\(query)")
        }
        let read = await broker.get("storage_key=alice")
        #expect((read.token, read.tag) == ("a2", tag))
        #expect(broker.transport.seen.count == 1)
    }

    @Test(arguments: [
        ("", #", "granted_at": "2999-01-01T00:00:00Z""#, "invalid_request"), ("", "", "conflict"),
        ("replace=false", "", "conflict"), ("replace=true", "", "imported"),
        ("replace=true", #", "granted_at": "2001-01-01T00:00:00Z""#, "conflict"),
    ])
    func `a user who is logged in is replaced only when asked, and never by an older grant`(
        query: String, members: String, outcome: String
    ) async throws {
        let broker = try await Self.broker()
        await broker.set("a1", refresh: "r1", storageKey: "alice")
        let answer = await broker.importing(Self.line("alice", "r9", members), query: query)
        #expect(answer.outcomes == ["1 alice \(outcome)"])
        if outcome != "imported" {
            #expect(await broker.get("storage_key=alice").token == "a1")
        } else {
            broker.transport.enqueue(.json(200, BrokerHarness.token("a9", refresh: "r10")))
            #expect(await broker.get("storage_key=alice").token == "a9")
        }
    }

    @Test func `a refresh token that the provider has refused is not stored again unasked`() async throws {
        let broker = try await Self.broker()
        #expect(await broker.importing(Self.line("alice", "r1")).outcomes == ["1 alice imported"])
        broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        #expect(await broker.get("storage_key=alice").level == "basic")
        #expect(await broker.importing(Self.line("alice", "r1")).outcomes == ["1 alice conflict"])
        #expect(await broker.importing(Self.line("alice", "r2")).outcomes == ["1 alice imported"])
    }

    @Test func `two lines of one storage key come one after another`() async throws {
        let broker = try await Self.broker()
        let answer = await broker.importing(
            Self.line("alice", "r1"), Self.line("alice", "r1"), Self.line("alice", "r2"))
        #expect(answer.outcomes == ["1 alice imported", "2 alice unchanged", "3 alice conflict"])
    }

    @Test func `a dry run tells the outcomes and stores nothing`() async throws {
        let broker = try await Self.broker()
        await broker.set("a1", refresh: "r1", storageKey: "bob")
        let answer = await broker.importing(
            Self.line("alice", "r1"), Self.line("bob", "r2"), "{", query: "dry_run=true")
        #expect(answer.outcomes == ["1 alice imported", "2 bob conflict", "3 - invalid_request"])
        #expect(await broker.status(storageKey: "alice").isLoggedIn == false)
        #expect(broker.transport.seen.isEmpty)
    }

    // MARK: Verifying

    @Test func `verifying presents each refresh token and stores what the provider grants`() async throws {
        let broker = try await Self.broker()
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        #expect(await broker.importing(Self.line("alice", "r1"), query: "verify=true").outcomes == ["1 alice imported"])
        #expect(broker.transport.seen.count == 1)
        #expect(await broker.get("storage_key=alice").token == "a2")
        // The line is known although its refresh token is not stored any more.
        #expect(
            await broker.importing(Self.line("alice", "r1"), query: "verify=true").outcomes == ["1 alice unchanged"])
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `verifying refuses what the provider refuses, and stores nothing of it`() async throws {
        let broker = try await Self.broker()
        broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        let answer = await broker.importing(Self.line("alice", "r1"), query: "verify=true")
        #expect(answer.outcomes == ["1 alice invalid_token_request"])
        #expect(answer.values[0]["error_code"]?.text == "invalid_grant")
        #expect(await broker.status(storageKey: "alice").isLoggedIn == false)
    }

    /// A broker to which a line with another name of the user than the provider's was imported.
    private static func misnamed() async throws -> BrokerHarness {
        let broker = try await Self.broker()
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2", userID: 8)))
        let line = Self.line("alice", "r1", #", "credentials": {"user_id": "alice@example.com"}"#)
        #expect(
            await broker.importing(line, query: "verify=true").outcomes == ["1 alice token_response_error"])
        return broker
    }

    @Test func `verifying puts aside what the provider grants to another user`() async throws {
        let broker = try await Self.misnamed()
        #expect(await broker.status(storageKey: "alice").isLoggedIn == false)
        let asides = try await broker.asides()
        #expect(asides.map(\.refreshToken?.revealedText) == ["r2"])
        #expect(asides.map(\.accessToken.isEmpty) == [true])
        let list = await broker.call(.get, "/credentials/list", tenant: "t1")
        #expect(list.json["credentials"]?.array?.map { $0["state"]?.text } == ["ended"], "\(list.text)")
    }

    @Test(arguments: ["", "verify=true"])
    func `a corrected line takes up what was put aside of it, and presents no spent token`(query: String) async throws {
        let broker = try await Self.misnamed()
        broker.transport.enqueue(.json(200, BrokerHarness.token("a3", refresh: "r3", userID: 8)))
        let line = Self.line("alice", "r1", #", "credentials": {"user_id": "8"}"#)
        #expect(await broker.importing(line, query: "dry_run=true").outcomes == ["1 alice imported"])
        #expect(await broker.importing(line, query: query).outcomes == ["1 alice imported"])
        #expect(await broker.get("storage_key=alice").token == "a3")
        #expect(broker.transport.seen.map { $0.form["refresh_token"] } == ["r1", "r2"])
        #expect(try await broker.asides().isEmpty)
        #expect(await broker.importing(line, query: query).outcomes == ["1 alice unchanged"])
    }

    @Test func `verifying stores the set of the user whom the line names`() async throws {
        let broker = try await Self.broker()
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2", userID: 7)))
        let line = Self.line("alice", "r1", #", "credentials": {"user_id": "7"}"#)
        #expect(await broker.importing(line, query: "verify=true").outcomes == ["1 alice imported"])
        #expect(await broker.get("storage_key=alice").json["user_id"]?.text == "7")
    }

    @Test func `verifying keeps the refresh token of an answer without an access token`() async throws {
        let broker = try await Self.broker()
        broker.transport.enqueue(.json(200, #"{"refresh_token": "r2"}"#))
        let line = Self.line("alice", "r1", #", "credentials": {\#(Self.lasting)}"#)
        #expect(await broker.importing(line, query: "verify=true").outcomes == ["1 alice imported"])
        broker.transport.enqueue(.json(200, BrokerHarness.token("a3", refresh: "r3")))
        #expect(await broker.get("storage_key=alice").token == "a3")
        #expect(broker.transport.seen.last?.form["refresh_token"] == "r2")
    }

    @Test func `verifying puts its set aside where a user logs in meanwhile`() async throws {
        let broker = try await Self.broker()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2", refresh: "r2"))))
        let line = Self.line("alice", "r1")
        async let answer = broker.importing(line, query: "verify=true")
        await gate.arrivals()
        await broker.set("a1", refresh: "r-login", storageKey: "alice")
        gate.open()
        #expect(await answer.outcomes == ["1 alice conflict"])
        #expect(await broker.get("storage_key=alice").token == "a1")
        broker.transport.enqueue(.json(200, BrokerHarness.token("a3", refresh: "r3")))
        #expect(await broker.importing(line, query: "replace=true&verify=true").outcomes == ["1 alice imported"])
        #expect(broker.transport.seen.last?.form["refresh_token"] == "r2")
    }

    // MARK: The content

    @Test(arguments: [1, 2, 3, 7, 100_000])
    func `lines end with LF or CRLF, and may arrive in any pieces`(size: Int) async throws {
        let broker = try await Self.broker()
        let text =
            "\u{feff}" + Self.line("a", "r1") + "\r\n\r\n \t\n" + Self.line("b", "r2") + "\n" + Self.line("c", "r3")
        let bytes = Array(text.utf8)
        let pieces = stride(from: 0, to: bytes.count, by: size).map {
            Array(bytes[$0..<min(bytes.count, $0 + size)])
        }
        let answer = await broker.lines("/credentials/import", pieces: pieces)
        #expect(answer.outcomes == ["1 a imported", "4 b imported", "5 c imported"])
    }

    @Test(arguments: [(0, "imported"), (1, "payload_too_large")])
    func `a line has a mebibyte at most`(more: Int, outcome: String) async throws {
        let broker = try await Self.broker()
        let line = Self.line("a", "r1")
        let padded = line + String(repeating: " ", count: (1 << 20) - line.utf8.count + more)
        let answer = await broker.lines(
            "/credentials/import", pieces: [Array((padded + "\n" + Self.line("b", "r2") + "\n").utf8)])
        #expect(answer.outcomes == ["1 \(more == 0 ? "a" : "-") \(outcome)", "2 b imported"])
    }

    @Test(arguments: [ContentFault.cutShort, .tooSlow, .malformed])
    func `a content that is cut off is told, and its last line is not taken`(fault: ContentFault) async throws {
        let broker = try await Self.broker()
        let answer = await broker.lines(
            "/credentials/import", pieces: [Array((Self.line("a", "r1") + "\n" + Self.line("b", "r2")).utf8)],
            fault: fault)
        #expect(answer.outcomes == ["1 a imported", "2 - invalid_request"])
        #expect(await broker.status(storageKey: "b").isLoggedIn == false)
    }

    @Test func `what was told before the connection broke is stored, and the file can be sent again`() async throws {
        let broker = try await Self.broker()
        let pieces = (0..<5).map { Array((Self.line("u\($0)", "r\($0)") + "\n").utf8) }
        let broken = await broker.lines("/credentials/import", pieces: pieces, while: { $0 < 3 })
        #expect(broken.outcomes == ["1 u0 imported", "2 u1 imported", "3 u2 imported"])
        for key in ["u0", "u1", "u2"] { #expect(await broker.status(storageKey: key).isLoggedIn == true) }
        let again = await broker.lines("/credentials/import", pieces: pieces)
        #expect(again.outcomes.prefix(3) == ["1 u0 unchanged", "2 u1 unchanged", "3 u2 unchanged"])
        #expect(again.outcomes.last == "5 u4 imported")
    }

    // MARK: Who may, and what is refused as a whole

    @Test func `only an admin key may import and export`() async throws {
        let broker = try await Self.broker()
        let key = await broker.makeKey()
        for path in ["/credentials/import", "/credentials/export"] {
            #expect(await broker.call(.post, path, key: key, body: "{}").status == 403)
            #expect(await broker.call(.post, path, key: nil, body: "{}").status == 401)
        }
    }

    @Test(arguments: [
        ("replace=yes", 400), ("verify=true&dry_run=true", 400), ("a=1", 400), ("verify=true&dry_run=false", 200),
    ])
    func `the query is checked before the content is read`(query: String, status: Int) async throws {
        let broker = try await Self.broker()
        #expect(await broker.importing(Self.line("a", "r"), query: query).head.status == status)
    }

    @Test(arguments: [
        ("application/x-ndjson", 200), ("application/x-ndjson; charset=utf-8", 200), ("application/jsonl", 200),
        ("application/json", 415), ("text/plain", 415),
    ])
    func `the content is lines`(type: String, status: Int) async throws {
        let broker = try await Self.broker()
        let answer = await broker.call(
            .post, "/credentials/import", tenant: "t1", body: Self.line("a", "r"), fields: ["Content-Type": "\(type)"])
        #expect(answer.status == status)
    }
}
