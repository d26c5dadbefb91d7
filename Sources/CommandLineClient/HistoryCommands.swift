/// Events, and sessions that are restored.
enum HistoryCommands {
    static let all: [CommandSpecification] = []
}
