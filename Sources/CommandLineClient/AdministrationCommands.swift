/// Tenants, providers, API keys, clients and sessions.
enum AdministrationCommands {
    static let all: [CommandSpecification] = []
}
