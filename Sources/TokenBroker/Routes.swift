import BrokerCore
import ExternalText
import HTTPCodec
import HTTPServer
import OAuth

/// The table of all routes. A test compares it with openapi.yaml.
struct Routes {
    private let broker: Broker
    private let isForOperators: Bool

    /// - Parameter isForOperators: whether only operators can reach the listener.
    init(_ broker: Broker, isForOperators: Bool = false) {
        self.broker = broker
        self.isForOperators = isForOperators
    }

    var all: [Route] {
        TenantRoutes(broker).all + ProviderRoutes(broker).all + CallerKeyRoutes(broker).all
            + BrowserLoginRoutes(broker).all
            + EndedLoginRoutes(broker).all + LoginRoutes(broker).all + DeviceRoutes(broker).all
            + AppToAppRoutes(broker).all
            + CredentialsRoutes(broker).all + EventRoutes(broker).all + AppClientRoutes(broker).all
            + AppSessionRoutes(broker).all + AppAuthorizationRoutes(broker).all + AppTokenRoutes(broker).all
            + AppMetadataRoutes(broker).all + AppChallengeRoutes(broker).all + AppLinkRoutes(broker).all
            + ClientDocumentRoutes(broker).all
            + OperationRoutes(broker, isForOperators: isForOperators).all
    }
}

extension Broker {
    /// The tenant of a call: the tenant of the API key or, with the admin key or a key of several tenants, the tenant that
    /// `X-Tenant` names.
    func tenant(of call: Call) async throws(BrokerError) -> Tenant {
        let named = call.request.fields.values("X-Tenant")
        if named.count > 1 { throw BrokerError(.invalidRequest, "Send X-Tenant once.") }
        let name: TenantName
        switch call.caller {
        case .key(let key)? where key.isWithoutTenant:
            if named.isEmpty {
                throw BrokerError.invalidRequest(
                    "X-Tenant", "The API key is one of several tenants: name the tenant of the call in X-Tenant.")
            }
            throw BrokerError(.forbidden, "The API key is not valid in the tenant that X-Tenant names.")
        case .key(let key)?:
            if let other = named.first, other != WireText(key.tenant.description) {
                throw BrokerError(.forbidden, "The API key belongs to another tenant.")
            }
            name = key.tenant
        case .admin?:
            guard let text = named.first else {
                throw BrokerError.invalidRequest("X-Tenant", "With the admin key, name the tenant in X-Tenant.")
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
    /// Refuses a storage key that the API key is not valid for.
    func authorize(_ storageKey: StorageKey) throws(BrokerError) {
        if let apiKey, !apiKey.isFor(storageKey.description.utf8.span) {
            throw BrokerError.forbidden(storageKey, "The API key is not valid for this storage key.")
        }
    }

    /// The storage keys that the caller's API key is limited to; nil means all.
    var narrowedStorageKeys: StorageKeyLimit? { apiKey?.storageKeys }

    /// The caller's API key; nil for the operator's keys and for calls without a key.
    var apiKey: CallerKey? {
        if case .key(let key)? = caller { key } else { nil }
    }

    /// Refuses every query parameter. For operations that have none.
    func refuseQuery() throws(BrokerError) {
        var query = try query()
        try query.finish()
    }
}
