internal import BrokerCore
internal import ExternalText
internal import HTTPCodec
internal import HTTPServer
internal import JSON
internal import OAuth

/// `/providers`: the profiles that a tenant's `provider` can name, for people who choose.
struct ProviderRoutes {
    private let broker: Broker

    init(_ broker: Broker) {
        self.broker = broker
    }

    var all: [Route] {
        [
            Route(.get, "/providers", .anyKey, list),
            Route(.get, "/providers/{name}", .anyKey, get),
        ]
    }

    /// What the list tells of a profile; the rest is in its document.
    private static let listed: [WireText] = [
        "name", "title", "documentation", "registration", "as_of", "required", "notes", "changes", "refresh_tokens",
    ]

    private func list(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let names = ShippedProfiles.names
        return await Page.answer(names.count) { json in
            json.name("providers")
            json.array { json in
                for name in names {
                    let members = ShippedProfiles.document(WireText(name))?.object ?? [:]
                    json.object { json in
                        for name in Self.listed { if let value = members[name] { json.member(name.text, value) } }
                    }
                }
            }
        }
    }

    private func get(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        guard let document = ShippedProfiles.document(call.parameters["name"] ?? "") else {
            throw BrokerError(.notFound, "There is no provider of that name. GET /providers lists them.")
        }
        return .json(.ok) { json in
            for (name, value) in (document.object ?? [:]).sorted(by: { $0.key < $1.key }) {
                json.member(name.text, value)
            }
        }
    }
}
