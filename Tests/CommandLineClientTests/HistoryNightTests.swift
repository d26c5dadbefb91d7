import BrokerTesting
import CommandLineClient
import ExternalText
import HTTPCodec
import JSON
import Testing

/// What an operator finds in the morning, and undoes: a provider has refused users whose sessions were alive.
@Suite(.timeLimit(.minutes(2))) struct `A night in which a provider refuses users` {
    @Test func `is told by events, and undone by two commands`() async throws {
        try await Night.run { night in
            try await night.refuse("alice", "bob")

            // Who was logged out, when, and what the provider has said.
            let events = await night.run([
                "events", "--since", "1h", "--type", "credentials.deauthorized", "--type", "refresh.failed",
            ])
            #expect(events.status == .done, "\(events.errors)")
            let told = Night.rows(events.output)
            #expect(told.allSatisfy { $0[0].count == 20 && $0[0].hasSuffix("Z") }, "\(events.output)")
            for user in ["alice", "bob"] {
                let own = told.filter { $0[2] == "user-\(user)" }
                #expect(own.contains { $0[1] == "credentials.deauthorized" && $0[4] == "revoked" }, "\(events.output)")
                #expect(own.contains { $0[1] == "refresh.failed" && $0.last == "invalid_grant" }, "\(events.output)")
            }
            #expect(told.count == 4, "\(events.output)")
            let ends = await night.run(["events", "--since", "1h", "--ended"])
            #expect(Night.rows(ends.output) == told, "\(ends.output)")

            // Whose credentials are kept aside.
            let list = await night.run(["list", "--state", "quarantined"])
            #expect(list.status == .done, "\(list.errors)")
            #expect(Night.rows(list.output).map { $0[0] } == ["user-alice", "user-bob"], "\(list.output)")
            let seen = await night.run(["restore", "--since", "1h", "--dry-run"])
            #expect(seen.status == .done, "\(seen.errors)")
            #expect(
                Night.rows(seen.output).map { [$0[0], $0[2], $0[4], $0[5]] } == [
                    ["user-alice", "quarantined", "revoked", "invalid_grant"],
                    ["user-bob", "quarantined", "revoked", "invalid_grant"],
                ])
            try await night.expect("alice", isLoggedIn: false)

            let undone = await night.run(["restore", "--since", "1h", "--verify", "--yes"])
            #expect(undone.status == .done, "\(undone.errors)")
            #expect(
                Set(Night.rows(undone.output).map { [$0[0], $0[2]] }) == [
                    ["user-alice", "verified"], ["user-bob", "verified"],
                ])
            for user in ["alice", "bob", "carol"] { try await night.expect(user, isLoggedIn: true) }

            // It can be run again, and changes nothing then.
            let again = await night.run(["restore", "--since", "1h", "--yes"])
            #expect(again.status == .done)
            #expect(again.output.isEmpty)
            let after = await night.run(["events", "--since", "1h", "--type", "credentials.updated", "--json"])
            #expect(
                after.output.split(separator: "\n").count { $0.contains(#""cause":"restored""#) } == 2,
                "\(after.output)")
        }
    }

    @Test func `is told in the same words of one user and of all`() async throws {
        try await Night.run { night in
            try await night.refuse("alice")
            #expect(await night.run(["logout", "t1", "--storage-key", "user-bob", "--yes"]).status == .done)
            let list = await night.run(["list"])
            let lines = list.output.split(separator: "\n").map(String.init)
            for (user, state, words) in [
                ("alice", "quarantined", ["(revoked)"]), ("bob", "logged out", []), ("carol", "active", []),
            ] {
                let line = try #require(lines.first { $0.hasPrefix("user-\(user) ") })
                let status = await night.run(["status", "t1", "--storage-key", "user-\(user)"])
                #expect(line.contains(" \(state) "), "\(list.output)")
                #expect(status.output.contains("state           \(state)\n"), "\(status.output)")
                for word in words { #expect(line.contains(word) && status.output.contains(word), "\(status.output)") }
            }
            // What can be put back is not to be logged in anew.
            let kept = await night.run(["status", "t1", "--storage-key", "user-alice"])
            #expect(kept.status == .notLoggedIn)
            #expect(
                kept.errors.contains("(revoked), and is kept aside. For a new login: token-broker login t1"),
                "\(kept.errors)")
            #expect(
                kept.errors.hasSuffix("Try: token-broker restore --storage-key user-alice --tenant t1\n"),
                "\(kept.errors)")
        }
    }

    @Test func `changes nothing that is not confirmed`() async throws {
        try await Night.run { night in
            try await night.refuse("alice")
            let unasked = await night.run(["restore", "--since", "1h"])
            #expect(unasked.status == .usage)
            #expect(unasked.errors.contains("--yes"))
            let declined = await night.run(["restore", "--since", "1h"], answers: ["n"], canAsk: true)
            #expect(declined.status == .failed)
            #expect(declined.errors.contains("Put back 1 session of t1? [y/N] "))
            #expect(declined.errors.contains("user-alice"))
            try await night.expect("alice", isLoggedIn: false)
            let confirmed = await night.run(["restore", "--storage-key", "user-alice"], answers: ["y"], canAsk: true)
            #expect(confirmed.status == .done, "\(confirmed.errors)")
            #expect(Night.rows(confirmed.output).map { $0[2] } == ["restored"])
            try await night.expect("alice", isLoggedIn: true)
        }
    }

    @Test func `is undone for those only who ended in that time, for that cause`() async throws {
        try await Night.run { night in
            try await night.refuse("alice")
            for words in [
                ["--since", "1h", "--until", "30m"], ["--since", "2999-01-01"],
                ["--since", "1h", "--cause", "expired"],
            ] {
                let nothing = await night.run(["restore", "--yes"] + words)
                #expect(nothing.status == .done)
                #expect(nothing.errors == "No session of t1 that ended in this time is kept aside.\n", "\(words)")
            }
            try await night.expect("alice", isLoggedIn: false)
        }
    }

    @Test func `is told of each user whose session cannot be put back`() async throws {
        try await Night.run { night in
            try await night.refuse("alice")
            let some = await night.run([
                "restore", "--storage-key", "user-alice", "--storage-key", "user-carol", "--storage-key", "user-dan",
                "--yes", "--json",
            ])
            #expect(some.status == .partly)
            let lines = some.output.split(separator: "\n")
            #expect(lines.count == 3)
            for (key, text) in [
                ("user-alice", #""outcome":"restored""#), ("user-carol", #""code":"conflict""#),
                ("user-dan", #""code":"not_found""#),
            ] {
                #expect(
                    lines.contains { $0.contains(#""storage_key":"\#(key)""#) && $0.contains(text) }, "\(some.output)")
            }
            #expect(some.errors.contains("1 of 3 sessions are put back"))
            let none = await night.run(["restore", "--storage-key", "user-dan", "--yes"])
            #expect(none.status == .notFound)
        }
    }

    @Test func `is not undone for a user whom the provider refuses again`() async throws {
        try await Night.run { night in
            try await night.refuse("alice")
            night.provider.endSessions(of: "alice")
            let undone = await night.run(["restore", "--since", "1h", "--verify", "--yes"])
            #expect(undone.status == .failed)
            #expect(Night.rows(undone.output).map { $0[2] } == ["refused"])
            #expect(undone.errors.contains("0 of 1 sessions are put back, and 1 refused by the provider again"))
            let seen = await night.run(["restore", "--since", "1h", "--dry-run"])
            #expect(Night.rows(seen.output).map { $0[2] } == ["quarantined"])
        }
    }

    @Test func `is told for one user`() async throws {
        try await Night.run { night in
            try await night.refuse("alice", "bob")
            let answer = try await night.broker.call(
                .get, "/credentials/list?state=quarantined&limit=1", tenant: "t1")
            let user = try #require(answer.json["credentials"]?.array?.first?["user_id"]?.string?.text)
            for words in [["--user", user], ["--storage-key", "user-alice"]] {
                let events = await night.run(["events", "--type", "refresh.failed"] + words)
                #expect(Night.rows(events.output).map { $0[2] } == ["user-alice"], "\(words): \(events.output)")
            }
            let none = await night.run(["events", "--user", "none", "--json"])
            #expect(none.status == .done, "\(none.errors)")
            #expect(none.output.isEmpty)
        }
    }
}
