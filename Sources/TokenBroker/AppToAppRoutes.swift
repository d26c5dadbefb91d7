internal import BrokerCore
internal import ExternalText
internal import HTTPCodec
internal import HTTPServer
internal import JSON
internal import OAuth

/// `/app2app/…`: the broker, as an app at a provider, lets another app in.
struct AppToAppRoutes {
    private let broker: Broker
    private var admissions: AppAdmission { broker.core.admissions }

    init(_ broker: Broker) {
        self.broker = broker
    }

    var all: [Route] {
        [
            Route(.post, "/app2app/requests", .tenant(.login), parse),
            Route(.post, "/app2app/approve", .tenant(.login), approve),
            Route(.post, "/app2app/reject", .tenant(.login), reject),
        ]
    }

    private func parse(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let uri = try await call.body { $0.requiredString("uri", limit: AppToAppRequest.longest) }
        _ = try await broker.tenant(of: call)
        let request = try admissions.request(uri ?? "")
        return .json(.ok) { json in
            json.member("client_id", request.clientID.text)
            json.member("redirect_uri", request.redirectURI.text)
            json.member("code_challenge", request.codeChallenge.text)
            json.memberIfPresent("state", request.state?.text)
        }
    }

    private func approve(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let wanted = try await call.body { body in
            (
                storageKey: body.storageKey(),
                uri: body.requiredString("uri", limit: AppToAppRequest.longest),
                app: body.object("verify_app_link", Self.app) ?? nil
            )
        }
        let tenant = try await broker.tenant(of: call)
        try call.authorize(wanted.storageKey)
        try broker.rateLimits.spend(.logins, call.caller)
        let request = try admissions.request(wanted.uri ?? "")
        let id = CredentialsID(tenant: tenant.name, storageKey: wanted.storageKey)
        return Self.answer(try await admissions.approve(request, by: id, of: tenant, checking: wanted.app))
    }

    private static func app(_ body: inout ObjectReader) -> AppLinkCheck.App? {
        let packageName = body.string("package_name", limit: 255)
        let fingerprint = body.string("sha256_cert_fingerprint", limit: 95)
        let appID = body.string("apple_app_id", limit: 255)
        switch (packageName, fingerprint, appID) {
        case (let packageName?, let fingerprint?, nil):
            return .android(packageName: packageName, fingerprint: fingerprint)
        case (nil, nil, let appID?): return .apple(appID)
        default:
            body.note("package_name", "must stand with sha256_cert_fingerprint, or apple_app_id alone")
            return nil
        }
    }

    private func reject(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let wanted = try await call.body { body in
            (
                storageKey: body.storageKey(),
                uri: body.requiredString("uri", limit: AppToAppRequest.longest),
                error: body.string("error", limit: 100),
                description: body.string("error_description", limit: 500)
            )
        }
        let tenant = try await broker.tenant(of: call)
        try call.authorize(wanted.storageKey)
        try broker.rateLimits.spend(.logins, call.caller)
        let request = try admissions.request(wanted.uri ?? "")
        let id = CredentialsID(tenant: tenant.name, storageKey: wanted.storageKey)
        let answer = try await admissions.reject(
            request, by: id, of: tenant, error: wanted.error, description: wanted.description)
        return .json(.ok) { $0.member("redirect_uri", answer.redirectURI) }
    }

    private static func answer(_ answer: AppAdmission.Answer) -> Response {
        .json(.ok) { json in
            json.member("redirect_uri", answer.redirectURI)
            json.member("outcome", answer.refusal == nil ? "approved" : "refused")
        }
    }
}
