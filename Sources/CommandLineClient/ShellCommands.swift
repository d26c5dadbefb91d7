/// Completions, the manual, and the version.
enum ShellCommands {
    static let all: [CommandSpecification] = []
}
