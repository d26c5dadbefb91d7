/// Logins, tokens, and what is known of users.
enum UserCommands {
    static let all: [CommandSpecification] = []
}
