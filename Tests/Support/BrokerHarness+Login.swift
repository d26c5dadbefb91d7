package import CredentialStore
internal import Cryptography
internal import HTTPCodec
internal import JSON
internal import OAuth

extension BrokerHarness {
    /// What a browser sends as `Accept` when it follows a redirect.
    package static let browserAccept = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"

    /// A login as `beginLogin` returns it.
    package typealias Login = (id: String, uri: String, startURI: String, state: String)

    /// The answer to a browser that comes back from the login service, or to another caller by its `accept`.
    package func callback(
        _ query: String, cookie: String? = nil, accept: String? = browserAccept
    ) async -> Answer {
        await call(.get, "/login/callback?\(query)", key: nil, fields: Self.fields(cookie: cookie, accept: accept))
    }

    /// The same for `response_mode=form_post`.
    package func formPost(
        _ form: String, cookie: String? = nil, type: String = "application/x-www-form-urlencoded"
    ) async -> Answer {
        var fields = Self.fields(cookie: cookie, accept: Self.browserAccept)
        fields.append("Content-Type", type)
        return await call(.post, "/login/callback", key: nil, body: form, fields: fields)
    }

    /// A browser that opens the start address of a login.
    package func start(_ login: Login) async -> Answer {
        let path = login.startURI.split(separator: "/", maxSplits: 3)[2...].joined(separator: "/")
        return await call(.get, "/" + path, key: nil, fields: Self.fields(cookie: nil, accept: Self.browserAccept))
    }

    /// The cookie that an answer sets, as the browser sends it back.
    package static func cookie(_ answer: Answer) -> String? {
        (answer.fields["Set-Cookie"]?.text).map { String($0.prefix { $0 != ";" }) }
    }

    /// The content of a login's record in the clear; nil when there is none.
    package func loginRecord(_ id: String, tenant: String = "t1") async throws -> String? {
        guard let name = TenantName(tenant) else { return nil }
        return try await vault.read(RecordID(.login, name, key: id))?.content.revealedText
    }

    /// How many records of that kind the store has.
    package func count(_ kind: RecordKind) async throws -> Int {
        try await store.list(kind, tenant: nil, after: nil, limit: 10_000).count
    }

    /// What `GET /credentials` hands out.
    package func token(tenant: String = "t1", storageKey: String = "default") async -> String? {
        await call(.get, "/credentials?storage_key=\(storageKey)", tenant: tenant).json["token"]?.text
    }

    /// What `GET /login/{login_id}` tells.
    package func progress(_ id: String, tenant: String = "t1", query: String = "") async -> Answer {
        await call(.get, "/login/\(id)\(query)", tenant: tenant)
    }

    private static func fields(cookie: String?, accept: String?) -> Fields {
        var fields = Fields()
        if let accept { fields.append("Accept", accept) }
        if let cookie { fields.append("Cookie", cookie) }
        return fields
    }
}
