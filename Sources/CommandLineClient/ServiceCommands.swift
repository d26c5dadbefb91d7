/// The service and its installation.
enum ServiceCommands {
    static let all: [CommandSpecification] = []
}
