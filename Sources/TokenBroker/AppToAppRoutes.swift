import BrokerCore
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import OAuth

/// `/app2app/…`: lets other apps of a device in, at providers that have that.
struct AppToAppRoutes {
    private let broker: Broker

    init(_ broker: Broker) {
        self.broker = broker
    }

    var all: [Route] {
        [
            Route(.post, "/app2app/requests", .tenant(.login), read),
            Route(.post, "/app2app/approve", .tenant(.login), approve),
            Route(.post, "/app2app/reject", .tenant(.login), reject),
        ]
    }

    private func read(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let link = try await call.body { $0.link() }
        _ = try await broker.tenant(of: call)
        let request = try broker.core.appAdmission.request(link)
        return .json(.ok) { json in
            json.member("client_id", request.clientID.text)
            json.member("redirect_uri", request.redirectURI.text)
            json.member("code_challenge", request.codeChallenge.text)
            json.memberIfPresent("state", request.state?.text)
        }
    }

    private func approve(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let (storageKey, link, app) = try await call.body { body in
            (body.storageKey(), body.link(), body.object("verify_app_link", Self.app) ?? nil)
        }
        let tenant = try await broker.tenant(of: call)
        try call.authorize(storageKey)
        let request = try broker.core.appAdmission.request(link)
        let outcome = try await broker.core.appAdmission.approve(
            request, CredentialsID(tenant: tenant.name, storageKey: storageKey), of: tenant, for: app)
        return .json(.ok) { json in
            json.member("redirect_uri", outcome.redirectURI)
            json.member("outcome", outcome.isApproved ? "approved" : "refused")
        }
    }

    private func reject(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let (storageKey, link, error, description) = try await call.body { body in
            let error = body.string("error", limit: 64)
            if let error, ErrorText.presentable(error) == nil {
                body.note("error", "must consist of letters, digits and . _ : -")
            }
            return (body.storageKey(), body.link(), error, body.string("error_description", limit: 256))
        }
        let tenant = try await broker.tenant(of: call)
        try call.authorize(storageKey)
        let request = try broker.core.appAdmission.request(link)
        let answer = try await broker.core.appAdmission.reject(
            request, CredentialsID(tenant: tenant.name, storageKey: storageKey), error: error,
            description: description)
        return .json(.ok) { $0.member("redirect_uri", answer) }
    }

    /// The app that a link is to belong to: one of Android or one of Apple.
    private static func app(_ reader: inout ObjectReader) -> AppLinkCheck.App? {
        if let id = reader.string("apple_app_id", limit: 512) {
            reader.refuse("package_name", "is not for the apps of Apple")
            reader.refuse("sha256_cert_fingerprint", "is not for the apps of Apple")
            return .apple(id: id)
        }
        let package = reader.requiredString("package_name", limit: 512)
        guard let text = reader.requiredString("sha256_cert_fingerprint", limit: 512) else { return nil }
        guard let certificate = AndroidAppLinks.fingerprint(text) else {
            reader.note("sha256_cert_fingerprint", "must be 32 pairs of hexadecimal digits with colons between them")
            return nil
        }
        return package.map { .android(package: $0, certificate: certificate) }
    }
}

extension ObjectReader {
    /// The member `uri`, a link from another app; the empty text where it is not given.
    fileprivate mutating func link() -> WireText {
        requiredString("uri", limit: AppToAppRequest.longest) ?? ""
    }
}
