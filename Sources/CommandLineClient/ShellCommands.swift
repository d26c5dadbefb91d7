/// Completions, the manual, and the version.
enum ShellCommands {
    static let all = [completions, manual, help, variables, version]

    private static let completions = CommandSpecification(
        "completions", "print completions for a shell",
        discussion: "They know all commands, options and choices of this version.",
        arguments: [.init("SHELL", "which shell", choices: CompletionShell.allCases.map(\.rawValue))],
        examples: [
            .init(
                "token-broker completions bash >~/.local/share/bash-completion/completions/token-broker",
                "for bash, which reads the file when it is needed"),
            .init(
                "token-broker completions zsh >~/.zfunc/_token-broker",
                "for zsh, with fpath+=~/.zfunc before compinit in ~/.zshrc"),
            .init("token-broker completions fish >~/.config/fish/completions/token-broker.fish", "for fish"),
        ],
        speaksToBroker: false,
        body: { invocation throws(CommandError) in
            // The choices of the argument are those of the type.
            invocation.terminal.write(Array(CompletionShell(rawValue: invocation.arguments[0])!.script.utf8))
        })

    private static let manual = CommandSpecification(
        "man", "print the page for the manual",
        discussion: "In the format of man(7).",
        examples: [
            .init("token-broker man | man -l -", "read it"),
            .init("token-broker man >/usr/local/share/man/man1/token-broker.1", "install it"),
        ],
        speaksToBroker: false,
        body: { invocation throws(CommandError) in invocation.terminal.write(Array(ManualPage.text.utf8)) })

    private static let help = CommandSpecification(
        "help", "explain a command, as its --help does",
        arguments: [
            .init(
                "COMMAND", "the words of a command, or of a group; all commands are listed without", isRequired: false,
                repeats: true)
        ],
        options: [.init("markdown", nil, "print all commands as a page in Markdown (Deploy/COMMANDS.md)")],
        examples: [
            .init("token-broker help audit export", "one command"),
            .init("token-broker help keys", "all commands that begin with this word"),
        ],
        speaksToBroker: false,
        body: { invocation throws(CommandError) in
            let text =
                invocation.has("markdown") ? CommandPage.text : try HelpText.about(invocation.arguments)
            invocation.terminal.write(Array(text.utf8))
        })

    private static let variables = CommandSpecification(
        "help variables", "list the variables of the service and of the commands",
        examples: [.init("token-broker help variables", "each with its meaning and its default")])

    private static let version = CommandSpecification(
        "version", "print the version, and the commit that it was built from",
        discussion: "The commit is unknown where the program was not built by Deploy/build.",
        options: [.init("json", nil, "print JSON for programs")],
        examples: [.init("token-broker version", "the same as token-broker --version")])
}
