internal import BrokerCore
internal import ExternalText
internal import HTTPCodec
internal import HTTPServer
internal import OAuth

/// The route table: openapi.yaml in code, held against it by a test.
struct Routes {
    private let broker: Broker
    private let isForOperators: Bool

    /// - Parameter isForOperators: whether callers cannot reach the listener.
    init(_ broker: Broker, isForOperators: Bool = false) {
        self.broker = broker
        self.isForOperators = isForOperators
    }

    var all: [Route] {
        TenantRoutes(broker).all + CallerKeyRoutes(broker).all + BrowserLoginRoutes(broker).all
            + EndedLoginRoutes(broker).all + LoginRoutes(broker).all + DeviceRoutes(broker).all
            + CredentialsRoutes(broker).all + EventRoutes(broker).all
            + OperationRoutes(broker, isForOperators: isForOperators).all
    }
}

extension Broker {
    /// The tenant that a call is about: the key's own, or for the admin the one that `X-Tenant` names.
    func tenant(of call: Call) async throws(BrokerError) -> Tenant {
        let named = call.request.fields.values("X-Tenant")
        if named.count > 1 { throw BrokerError(.invalidRequest, "Send X-Tenant once.") }
        let name: TenantName
        switch call.caller {
        case .key(let key)?:
            if let other = named.first, other != WireText(key.tenant.description) {
                throw BrokerError(.forbidden, "The API key belongs to another tenant.")
            }
            name = key.tenant
        case .admin?:
            guard let text = named.first else {
                throw BrokerError(.invalidRequest, "With the admin key, name the tenant in X-Tenant.")
            }
            guard let known = TenantName(text) else { throw BrokerError.noSuchTenant }
            name = known
        case nil:
            throw BrokerError(.unauthorized, "This call needs an API key.")
        }
        guard let tenant = try await tenants.tenant(name) else { throw BrokerError.noSuchTenant }
        return tenant
    }
}

extension Call {
    /// Refuses a storage key that a narrowed API key is not for.
    func authorize(_ storageKey: StorageKey) throws(BrokerError) {
        if let apiKey, !apiKey.isFor(storageKey.description.utf8.span) {
            throw BrokerError(.forbidden, "The API key is not valid for this storage key.")
        }
    }

    /// The storage keys that the caller is confined to; nil for all.
    var narrowedStorageKeys: [StorageKey]? { apiKey?.storageKeys }

    /// The API key that the caller shows; nil for the operator's and for none.
    var apiKey: CallerKey? {
        if case .key(let key)? = caller { key } else { nil }
    }

    /// Refuses every query parameter: for operations that take none.
    func refuseQuery() throws(BrokerError) {
        var query = try query()
        try query.finish()
    }
}
