import ExternalText
import HTTPCodec
import JSON

/// `token-broker providers`.
extension AdministrationCommands {
    static let providers = [listProviders, showProvider, putProvider, deleteProvider]

    private static let listProviders = CommandSpecification(
        "providers list", "list the providers that tenants can name",
        examples: [.init("token-broker providers list", "what each requires of a tenant")],
        body: { invocation throws(CommandError) in
            let answer = try await invocation.broker().send(.init(.get, "/providers"))
            let providers = try answer.json()["providers"]?.array ?? []
            if invocation.printsJSON { return printLines(providers, invocation) }
            var table = TextTable("NAME", "TITLE", "REQUIRES", "AS OF", "SOURCE")
            for provider in providers {
                table.add(
                    text(of: provider["name"]), text(of: provider["title"]), text(of: provider["required"]),
                    text(of: provider["as_of"]), text(of: provider["source"]))
            }
            invocation.show(table)
        })

    private static let showProvider = CommandSpecification(
        "providers show", "show a provider's profile: addresses, requirements, peculiarities",
        arguments: [.init("NAME", "one of token-broker providers list")],
        examples: [
            .init("token-broker providers show spotify", "for people"),
            .init("token-broker providers show spotify --json >acme.json", "as the beginning of a profile of your own"),
        ],
        body: { invocation throws(CommandError) in
            let answer = try await invocation.broker().send(.init(.get, providerPath(invocation.arguments[0])))
            try show(answer, first: ["name", "title", "documentation", "registration", "required"], invocation)
        })

    private static let putProvider = CommandSpecification(
        "providers put", "add a provider's profile, or replace one",
        discussion:
            "The file holds a profile as JSON, as token-broker providers show NAME --json prints one. Tenants of a provider of "
            + "that name use it at once.",
        arguments: [.init("FILE", "the profile; - is standard input")],
        options: [.init("name", "NAME", "the provider's name; by default the profile's own")],
        examples: [
            .init("token-broker providers put acme.json", "under the name that the profile says"),
            .init("token-broker providers put acme.json --name acme-test", "under another name"),
        ],
        body: { invocation throws(CommandError) in
            var profile = try GivenFile.object(invocation.arguments[0], limit: 1 << 20, invocation).object ?? [:]
            guard let name = invocation["name"] ?? profile["name"]?.string?.text else {
                throw invocation.wrong("the profile has no name: say --name NAME")
            }
            profile["name"] = nil
            let answer = try await invocation.broker().send(.init(.put, providerPath(name), json: body(profile)))
            if invocation.printsJSON { invocation.printLine(answer.body) }
            invocation.terminal.note("The provider \(name) is \(answer.status.code == 201 ? "added" : "replaced").")
        })

    private static let deleteProvider = CommandSpecification(
        "providers delete", "delete a provider's profile that was put",
        discussion:
            "Where the broker carries one of that name, tenants use that from then on. One that tenants need is not deleted.",
        arguments: [.init("NAME", "the provider")], options: [.yes],
        examples: [.init("token-broker providers delete acme", "asks first")],
        body: { invocation throws(CommandError) in
            let (api, name) = (try invocation.broker(), invocation.arguments[0])
            _ = try await api.send(.init(.get, providerPath(name)))
            try invocation.confirm("Delete the profile of the provider \(name)?")
            _ = try await api.send(.init(.delete, providerPath(name)))
            invocation.terminal.note("The profile of the provider \(name) is deleted.")
        })

    static func providerPath(_ name: String) -> String { "/providers/" + BrokerAPI.segment(name) }
}
