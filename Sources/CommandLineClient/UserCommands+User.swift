import ExternalText
import HTTPCodec
import JSON

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

    /// What puts the user's session back, as it is typed.
    var restoration: String { api.next.typed("restore", "--storage-key", storageKey, tenant: api.tenant) }

    /// As the broker's interface does; what is to be run next names the same user.
    func send(_ request: BrokerAPI.Request) async throws(CommandError) -> BrokerAPI.Answer {
        var request = request
        request.expected.insert(424)
        let answer = try await api.send(request)
        guard answer.status.code == 424 else { return answer }
        let refusal = Refusal(answer)
        if refusal.code == "illegal_configuration", await isHeld {
            throw CommandError(
                .tryLater,
                "the session\(place) is held: the provider refuses the refresh tokens of many users at once. The session is kept, "
                    + "and the broker goes on when the provider accepts one of them." + refusal.wait,
                next: api.next.typed("restore", "--held", tenant: api.tenant))
        }
        let error = refusal.error(tenant: api.tenant, url: api.url, api.next)
        throw error.status == .notLoggedIn ? notLoggedIn(error.text) : error
    }

    /// Whether the broker keeps the session without renewing it. Not for a key that may not read that.
    private var isHeld: Bool {
        get async {
            let request = BrokerAPI.Request(.get, "/credentials/status", query: [("storage_key", storageKey)])
            return (try? await api.send(request).json())?["state"]?.string == "held"
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
