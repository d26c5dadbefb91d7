import Testing

@testable import CommandLineClient

@Suite struct `A command to run next` {
    @Test(
        arguments: [
            ("plain", "plain"), ("a.b_c-d", "a.b_c-d"), ("https://a.example:80/x@y%20", "https://a.example:80/x@y%20"),
            ("MEMBER=VALUE", "MEMBER=VALUE"), ("", "''"), ("two words", "'two words'"), ("team-a.*", "'team-a.*'"),
            ("it's", "'it'\\''s'"), ("$(reboot)", "'$(reboot)'"), ("a;b", "'a;b'"), ("~", "'~'"), ("ü", "'ü'"),
            ("a\u{1b}[0m", "'a\u{fffd}[0m'"),
        ])
    func `has words as a shell reads them`(word: String, quoted: String) {
        #expect(ShellWord.quoted(word) == quoted)
    }

    @Test(
        arguments: [
            (nil, nil, "token-broker list"), ("work", nil, "token-broker list --context work"),
            (nil, "music", "token-broker list --tenant music"),
            ("my work", "music", "token-broker list --tenant music --context 'my work'"),
        ] as [(String?, String?, String)])
    func `speaks to the same broker about the same tenant`(context: String?, tenant: String?, typed: String) {
        #expect(NextCommand(context: context).typed("list", tenant: tenant) == typed)
    }

    @Test(
        arguments: [
            (["tenants", "delete", "a b", "--context", "work"], "token-broker tenants delete 'a b' --context work"),
            (
                ["restore", "--since", "12h", "--verify", "--storage-key=a*", "--storage-key", "b", "--tenant", "t"],
                "token-broker restore --storage-key 'a*' --storage-key b --since 12h --verify --tenant t"
            ),
            (
                ["sessions", "revoke", "--yes", "--tenant", "t", "--", "-N"],
                "token-broker sessions revoke --yes --tenant t -- -N"
            ),
            (
                ["run", "--tenant", "t", "--env", "A", "--", "sh", "-c", "echo $A"],
                "token-broker run --env A --tenant t -- sh -c 'echo $A'"
            ),
        ] as [([String], String)])
    func `is the same one with all its words`(words: [String], typed: String) throws {
        let invocation = try #require(CommandLines.invocation(words, [:]))
        #expect(invocation.again() == typed)
    }

    @Test func `has other options where they are named`() throws {
        let invocation = try #require(
            CommandLines.invocation(["restore", "--since", "12h", "--yes", "--tenant", "t"], [:]))
        let typed = invocation.again(["since": ["2026-11-21T09:00:00Z"], "yes": [], "verify": [""]])
        #expect(typed == "token-broker restore --since 2026-11-21T09:00:00Z --verify --tenant t")
    }
}
