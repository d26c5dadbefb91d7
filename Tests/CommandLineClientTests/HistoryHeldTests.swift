import BrokerTesting
import CommandLineClient
import Testing

/// What an operator finds where the broker has held the sessions of users whom a provider refused all at once.
@Suite(.timeLimit(.minutes(2))) struct `A night in which sessions are held` {
    @Test func `names the held sessions, and frees them`() async throws {
        try await Night.run { night in
            try await night.beginWave()
            try await night.hold("alice")

            // They have not ended, so that no time finds them.
            let ended = await night.run(["restore", "--since", "1d", "--dry-run"])
            #expect(ended.status == .done && ended.output.isEmpty)
            #expect(
                ended.errors.contains("1 session of t1 is held")
                    && ended.errors.contains("token-broker restore --held --dry-run --tenant t1"), "\(ended.errors)")

            let seen = await night.run(["restore", "--held", "--dry-run"])
            #expect(seen.status == .done, "\(seen.errors)")
            #expect(
                Night.rows(seen.output).map { [$0[0], $0[2]] } == [["user-alice", "held"]], "\(seen.output)")

            let unasked = await night.run(["restore", "--held"])
            #expect(unasked.status == .usage)
            #expect(
                unasked.errors.contains("Free 1 session of t1?")
                    && unasked.errors.contains("Try: token-broker restore --held --tenant t1 --yes"),
                "\(unasked.errors)")

            let freed = await night.run(["restore", "--held", "--verify", "--yes"])
            #expect(freed.status == .done, "\(freed.errors)")
            #expect(
                Night.rows(freed.output).map { [$0[0], $0[2]] } == [["user-alice", "verified"]], "\(freed.output)")
            #expect(freed.errors.contains("1 session freed."))
            for user in ["alice", "bob", "carol"] { try await night.expect(user, isLoggedIn: true) }

            let none = await night.run(["restore", "--held", "--yes"])
            #expect(none.status == .done)
            #expect(none.errors == "No session of t1 is held.\n")
        }
    }

    @Test func `are freed or not, where the answer is lost`() async throws {
        let list = #"{"credentials": [{"storage_key": "a", "state": "held"}, {"storage_key": "b", "state": "held"}]}"#
        let head =
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json\r\n"
            + "Content-Length: \(list.utf8.count)\r\n\r\n"
        let server = try await TLSTestServer(tls: nil, [.read, .send(head + list), .close], [.read, .close])
        let run = await CommandLines.run(
            ["restore", "--held", "--yes"],
            [
                "TOKEN_BROKER_URL": "http://localhost:\(server.port)", "TOKEN_BROKER_API_KEY": "k",
                "TOKEN_BROKER_TENANT": "t1",
            ])
        #expect(run.status == .unreachable)
        #expect(
            run.terminal.errors.contains("0 of 2 sessions are put back, and the rest may be put back: "),
            "\(run.terminal.errors)")
        _ = try await server.report(afterConnections: 2)
    }

    @Test(arguments: [
        ["--held", "--storage-key", "user-alice"], ["--held", "--since", "1h"], ["--held", "--until", "1h"],
        ["--held", "--cause", "revoked"],
    ])
    func `refuses words that say nothing beside --held`(words: [String]) async {
        let run = await CommandLines.run(
            ["restore"] + words,
            ["TOKEN_BROKER_URL": "http://localhost:59999", "TOKEN_BROKER_API_KEY": "k", "TOKEN_BROKER_TENANT": "t1"])
        #expect(run.status == .usage)
        #expect(run.terminal.errors.contains("what is held has not ended"), "\(run.terminal.errors)")
    }
}
