import BrokerCore
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import OAuth

/// `/login/…` for callers: begins a login, finishes it with the caller's own `redirect_uri`, and shows its progress.
///
/// `BrowserLoginRoutes` has the addresses that the user's browser opens.
struct LoginRoutes {
    private let broker: Broker

    init(_ broker: Broker) {
        self.broker = broker
    }

    var all: [Route] {
        [
            Route(.post, "/login/initialize", .tenant(.login), initialize),
            Route(.post, "/login/finalize", .tenant(.login), finalize),
            Route(.get, "/login/{login_id}", .tenant(.login), progress),
        ]
    }

    private func initialize(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let parameters = try await call.body { body in
            let storageKey = body.storageKey()
            let redirectURI = body.string("redirect_uri")
            let returnTo = body.string("return_to")
            let login = body.object("login_config") { body in
                (
                    language: body.string("language", limit: 64), email: body.string("email", limit: 254),
                    custom: body.stringMap("custom_parameters")
                )
            }
            let app = body.object("app2app") { $0.requiredString("authorization_endpoint") }
            var parameters = LoginFlow.Parameters(
                storageKey: storageKey, redirectURI: redirectURI, returnTo: returnTo, language: login?.language,
                email: login?.email, customParameters: login?.custom ?? [:],
                authorizationEndpoint: app ?? nil)
            parameters.wish = LoginWish(&body)
            return parameters
        }
        let tenant = try await broker.tenant(of: call)
        // The library's applications name the other app themselves, so the core does not ask for this.
        if parameters.authorizationEndpoint != nil, tenant.configuration.appToApp?.isEnabled != true {
            throw BrokerError(
                .illegalArgument,
                "The tenant's app2app is not enabled: set app2app.enabled to true, or leave app2app out of the request."
            )
        }
        try call.authorize(try parameters.storageKey.writable())
        try broker.rateLimits.spend(.logins, call.caller)
        let begun = try await broker.logins.begin(parameters, of: tenant)
        return .json(.created) { json in
            json.member("login_id", begun.loginID)
            json.member("login_uri", begun.loginURI)
            json.member("start_uri", begun.startURI)
            json.member("expires_in", begun.expiresIn.components.seconds)
        }
    }

    private func finalize(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let query = try await call.body { $0.requiredString("login_response_query", limit: 65_536) }
        let response = try await InputReading.run(bytes: query?.count ?? 0) { () throws(BrokerError) in
            try AuthorizationResponse(reading: query ?? "")
        }
        let tenant = try await broker.tenant(of: call)
        let ended = try await broker.logins.finalize(
            response, of: tenant.name, storageKeys: call.narrowedStorageKeys)
        return Response.summary(of: ended, try ended.result.get())
    }

    private func progress(_ call: Call) async throws(BrokerError) -> Response {
        var query = try call.query()
        let wait = query.wait()
        try query.finish()
        let tenant = try await broker.tenant(of: call)
        let id = call.parameters["login_id"] ?? ""
        guard LoginFlow.isLoginID(id),
            let progress = try await broker.logins.progress(
                tenant: tenant.name, loginID: id.text, storageKeys: call.narrowedStorageKeys, wait: wait)
        else { throw BrokerError(.notFound, "The tenant has no login with this id.") }
        return .progress(progress)
    }
}

extension ObjectReader {
    /// The member `storage_key`; `default` if it is not given.
    mutating func storageKey() -> StorageKey {
        guard let text = string("storage_key", limit: 1024) else { return .default }
        if let key = StorageKey(text) { return key }
        note("storage_key", StorageKey.rule)
        return .default
    }
}
