extension Invocation {
    /// The broker that the command speaks to, as `BrokerChoice` says.
    /// - Parameter ofAllTenants: whether the command is about all tenants, whichever the context and the variables name.
    /// - Throws: `configuration`, `forbidden` and `unreachable`, and says what to set or to start; `usage` for a name of a tenant
    ///   that is none.
    package func broker(ofAllTenants: Bool = false) throws(CommandError) -> BrokerAPI {
        let choice = try BrokerChoice(self)
        let terminal = terminal
        let tenant =
            ofAllTenants ? nil : self["tenant"] ?? environment.text("TOKEN_BROKER_TENANT") ?? choice.tenant
        if let tenant {
            try GivenWords.checkName(tenant, "the tenant's name", has("tenant") ? .usage : .configuration)
        }
        return try BrokerAPI(
            choice, tenant: tenant, next: next, caFile: environment.text("TOKEN_BROKER_CA_FILE"),
            assumed: { tenant in
                if terminal.isErrorTerminal { terminal.note("The tenant is \(tenant), the only one.") }
            })
    }

    /// The tenant that the command is about: the one that is named, else the only one.
    /// - Throws: `usage` where there are several, and lists them.
    package func requiredTenant(_ api: BrokerAPI) async throws(CommandError) -> String {
        if let tenant = api.tenant { return tenant }
        return try await api.assumeTenant()
    }
}

extension [String: String] {
    /// The variable's value, if it is set and not empty.
    func text(_ name: String) -> String? { self[name].flatMap { $0.isEmpty ? nil : $0 } }
}
