import BrokerCore
import Cryptography
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import OAuth

/// `/device…`.
struct DeviceRoutes {
    private let broker: Broker

    init(_ broker: Broker) {
        self.broker = broker
    }

    var all: [Route] {
        [
            Route(.post, "/device", .tenant(.login), begin),
            Route(.get, "/device/{device_code}", .tenant(.login), progress),
            Route(.delete, "/device/{device_code}", .tenant(.login), cancel),
        ]
    }

    private func begin(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let (storageKey, wish) = try await call.body { body in (body.storageKey(), LoginWish(&body)) }
        let tenant = try await broker.tenant(of: call)
        try call.authorize(try storageKey.writable())
        try broker.rateLimits.spend(.deviceLogins, call.caller)
        let begun = try await broker.deviceLogins.begin(storageKey, of: tenant, wish: wish)
        return .json(.created) { json in
            json.member("device_code", begun.handle.revealedText)
            json.member("user_code", begun.userCode)
            json.member("verification_uri", begun.verificationURI)
            json.memberIfPresent("verification_uri_complete", begun.verificationURIComplete)
            json.member("expires_in", begun.expiresIn.components.seconds)
            json.member("interval", begun.interval.components.seconds)
        }
    }

    private func progress(_ call: Call) async throws(BrokerError) -> Response {
        var query = try call.query()
        let wait = query.wait()
        try query.finish()
        let tenant = try await broker.tenant(of: call)
        guard let handle = Self.handle(call),
            let progress = try await broker.deviceLogins.progress(
                handle, for: .init(tenant: tenant, storageKeys: call.narrowedStorageKeys), wait: wait)
        else { throw Self.unknown }
        return .progress(progress)
    }

    private func cancel(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let tenant = try await broker.tenant(of: call)
        guard let handle = Self.handle(call),
            try await broker.deviceLogins.cancel(
                handle, for: .init(tenant: tenant, storageKeys: call.narrowedStorageKeys))
        else { throw Self.unknown }
        return .empty(.noContent)
    }

    private static func handle(_ call: Call) -> SecretBytes? {
        guard let text = call.parameters["device_code"], text.count == 43, Base64URL.decode(text.text) != nil else {
            return nil
        }
        return SecretBytes(utf8: text.text)
    }

    private static let unknown = BrokerError(.notFound, "The tenant has no device login with this device_code.")
}

extension Response {
    /// The answer for the progress of a login.
    static func progress(_ progress: LoginProgress) -> Response {
        .json(.ok) { progress.encode(to: &$0) }
    }
}
