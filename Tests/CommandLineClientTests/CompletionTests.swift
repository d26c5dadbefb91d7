import BrokerTesting
import CommandLineClient
import FoundationEssentials
import Testing

@Suite struct `Completions` {
    /// A command line of which the last word is being typed, words that are offered for it, and words that are not.
    private struct Case {
        let words: [String]
        let offered: [String]
        let others: [String]
    }

    private static let cases = [
        Case(words: ["au"], offered: ["audit"], others: ["serve"]),
        Case(words: [""], offered: ["audit", "serve", "keys", "context", "version"], others: ["verify", "variables"]),
        Case(words: ["audit", ""], offered: ["verify", "export", "remove"], others: ["audit", "serve"]),
        Case(words: ["keys", "re"], offered: ["reseal", "retire"], others: ["generate"]),
        Case(
            words: ["audit", "export", "--"], offered: ["--tenant", "--from", "--to", "--help"], others: ["--repair"]),
        Case(words: ["audit", "export", "--tenant", "t", "--f"], offered: ["--from"], others: ["--to"]),
        Case(words: ["context", "add", "--"], offered: ["--url", "--tenant", "--json"], others: ["--port"]),
        Case(words: ["completions", ""], offered: ["bash", "zsh", "fish"], others: ["audit"]),
        Case(words: ["completions", "f"], offered: ["fish"], others: ["bash"]),
        Case(words: ["help", "audit", ""], offered: ["verify", "export"], others: ["serve"]),
        Case(words: ["help", ""], offered: ["audit", "variables"], others: ["verify"]),
    ]

    private func script(_ shell: String) async throws -> String {
        let (status, terminal) = await CommandLines.run(["completions", shell])
        #expect(status == .done)
        let path = StoreFixtureDirectory().path + ".\(shell)"
        try Data(terminal.output.utf8).write(to: URL(filePath: path))
        return path
    }

    /// Runs a shell with a script and arguments; the lines that it prints on both outputs.
    private func lines(_ arguments: [String]) async throws -> [String] {
        // Shells write to the home of their user.
        let home = StoreFixtureDirectory()
        defer { withExtendedLifetime(home) {} }
        let process = try await TestProcess.start(
            ["/bin/sh", "-c", #"exec "$@" 2>&1"#, "sh"] + arguments, environment: ["HOME": home.path])
        #expect(await process.exitStatus() == 0, "\(arguments) \(process.lines)")
        return process.lines
    }

    private func check(_ one: Case, _ found: [String]) {
        for word in one.offered { #expect(found.contains(word), "\(one.words): \(found)") }
        for word in one.others { #expect(!found.contains(word), "\(one.words): \(found)") }
    }

    @Test func `of bash know words, options and choices`() async throws {
        let path = try await script("bash")
        defer { try? FileManager.default.removeItem(atPath: path) }
        let specification = try await lines(["bash", "--norc", "-c", #"source "$0"; complete -p token-broker"#, path])
        #expect(specification == ["complete -o default -F _token_broker token-broker"])
        let typed = #"""
            source "$0"
            COMP_WORDS=(token-broker "$@")
            COMP_CWORD=$#
            _token_broker
            for word in "${COMPREPLY[@]}"; do echo "$word"; done
            """#
        for one in Self.cases {
            check(one, try await lines(["bash", "--norc", "-u", "-c", typed, path] + one.words))
        }
        // bash has taken --shell=x apart; a value of which nothing is known is left to bash.
        #expect(try await lines(["bash", "--norc", "-c", typed, path, "up", "--port", "=", ""]).isEmpty)
        #expect(try await lines(["bash", "--norc", "-c", typed, path, "audit", "export", "--tenant", ""]).isEmpty)
    }

    @Test(.enabled(if: FileManager.default.isExecutableFile(atPath: "/usr/bin/zsh")))
    func `of zsh know words, options and choices`() async throws {
        let path = try await script("zsh")
        defer { try? FileManager.default.removeItem(atPath: path) }
        // What the shell brings for completions, printed as words.
        let typed = #"""
            _describe() { [[ $1 == -o ]] && shift; local one; for one in "${(@P)2}"; do print -r -- "${one%%:*}"; done }
            compadd() { print -rl -- "${(@P)2}" }
            compdef() { true }
            compset() { true }
            _files() { print files }
            source "$0"
            words=(token-broker "$@")
            CURRENT=$#words
            _token_broker
            """#
        for one in Self.cases {
            // zsh itself leaves out what does not begin with what is typed.
            let found = try await lines(["zsh", "-f", "-c", typed, path] + one.words)
            check(one, found.filter { $0.hasPrefix(one.words.last ?? "") })
        }
        #expect(try await lines(["zsh", "-f", "-c", typed, path, "audit", "export", "--tenant", ""]) == ["files"])
    }

    @Test(.enabled(if: FileManager.default.isExecutableFile(atPath: "/usr/bin/fish")))
    func `of fish know words, options and choices`() async throws {
        let path = try await script("fish")
        defer { try? FileManager.default.removeItem(atPath: path) }
        for one in Self.cases {
            let line = (["token-broker"] + one.words).joined(separator: " ")
            let found = try await lines(["fish", "-N", "-c", "source '\(path)'; complete -C '\(line)'"])
            check(one, found.map { String($0.prefix { $0 != "\t" }) })
        }
    }
}
