internal import ExternalText
internal import HTTPCodec
internal import JSON

/// Whom a command is about: a storage key of a tenant.
struct CommandUser: Sendable {
    let api: BrokerAPI
    /// The one that is named, or `default`.
    let storageKey: String
    private let named: String?

    fileprivate init(_ api: BrokerAPI, storageKey: String?) {
        self.api = api
        self.storageKey = storageKey ?? "default"
        named = storageKey
    }

    /// ` of the tenant github`; empty where the key says which it is.
    var tenantWords: String { api.tenant.map { " of the tenant " + $0 } ?? "" }

    /// ` under the storage key default of the tenant github`.
    var place: String { " under the storage key \(storageKey)" + tenantWords }

    /// A command about the same user, as it is typed.
    func command(_ name: String) -> String {
        api.next.typed([name] + (api.tenant.map { [$0] } ?? []) + (named.map { ["--storage-key", $0] } ?? []))
    }

    func notLoggedIn(_ text: String) -> CommandError { CommandError(.notLoggedIn, text, next: command("login")) }

    /// As the broker's interface does; what is to be run next names the same user.
    func send(_ request: BrokerAPI.Request) async throws(CommandError) -> BrokerAPI.Answer {
        do throws(CommandError) {
            return try await api.send(request)
        } catch {
            throw error.status == .notLoggedIn ? notLoggedIn(error.text) : error
        }
    }
}

extension Invocation {
    /// Whom the command is about, by its first argument or by `--tenant`, and by `--storage-key`.
    /// - Throws: `usage` where both name a tenant, and not the same.
    func user() throws(CommandError) -> CommandUser {
        try user(tenant: command.arguments.first?.name == UserCommands.tenantArgument.name ? arguments.first : nil)
    }

    func user(tenant: String?) throws(CommandError) -> CommandUser {
        var options = options
        if let tenant {
            if let other = self["tenant"], other != tenant {
                throw wrong("\(tenant) and --tenant \(other) are two tenants")
            }
            options["tenant"] = [tenant]
        }
        let named = Invocation(
            command: command, options: options, arguments: arguments, trailing: trailing, terminal: terminal,
            environment: environment)
        return CommandUser(try named.broker(), storageKey: self["storage-key"])
    }
}
