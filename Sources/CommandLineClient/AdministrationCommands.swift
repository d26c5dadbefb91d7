/// Tenants, providers, API keys, clients and sessions, and all of these by a file.
enum AdministrationCommands {
    static let all = (tenants + providers + keys + clients + sessions + [apply]).map(namingNext)

    /// With what to run next where a name or an identifier stands for nothing, or a value is refused.
    private static func namingNext(_ command: CommandSpecification) -> CommandSpecification {
        guard let body = command.body else { return command }
        return command.with { invocation throws(CommandError) in
            do throws(CommandError) {
                try await body(invocation)
            } catch {
                throw error.naming(next(after: error, invocation))
            }
        }
    }

    private static func next(after error: CommandError, _ invocation: Invocation) -> String? {
        switch error.status {
        case .notFound where invocation.command.words.count > 1:
            invocation.next(invocation.command.words[0], "list")
        case .refused: invocation.help
        default: nil
        }
    }
}

extension CommandError {
    /// With what to run next, where nothing is named yet.
    fileprivate func naming(_ next: String?) -> CommandError { CommandError(status, text, next: self.next ?? next) }
}
