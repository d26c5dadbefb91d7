package import CredentialStore
import Cryptography
import ExternalText
package import HTTPCodec
import JSON
import OAuth

extension BrokerHarness {
    /// What a browser sends as `Accept` when it follows a redirect.
    package static let browserAccept = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"

    /// A login as `beginLogin` returns it.
    package typealias Login = (id: String, uri: String, startURI: String, state: String)

    /// What a browser shows that comes back from the login service, or what another caller gets by its `accept`.
    /// - Parameters:
    ///   - path: of the callback.
    ///   - followsToEnd: whether a redirect to the page of the login's end is followed, as a browser does.
    package func callback(
        _ query: String, at path: String = "/login/callback", cookie: String? = nil, accept: String? = browserAccept,
        followsToEnd: Bool = true
    ) async -> Answer {
        let answer = await call(
            .get, "\(path)?\(query)", key: nil, fields: Self.fields(cookie: cookie, accept: accept))
        return followsToEnd ? await following(answer) : answer
    }

    /// The same for `response_mode=form_post`.
    package func formPost(
        _ form: String, at path: String = "/login/callback", cookie: String? = nil,
        type: String = "application/x-www-form-urlencoded"
    ) async -> Answer {
        var fields = Self.fields(cookie: cookie, accept: Self.browserAccept)
        fields.append("Content-Type", type)
        return await following(await call(.post, path, key: nil, body: form, fields: fields))
    }

    /// The page of a login's end, where an answer leads a browser there; else the answer.
    package func following(_ answer: Answer) async -> Answer {
        guard answer.status == 303, let location = answer.fields["Location"]?.text else { return answer }
        let path = Self.path(of: location)
        guard path.hasPrefix("/login/ended/") else { return answer }
        return await call(.get, path, key: nil, fields: Self.fields(cookie: nil, accept: Self.browserAccept))
    }

    /// A browser that opens the start address of a login.
    package func start(
        _ login: Login, cookie: String? = nil, accept: String? = browserAccept, fields: Fields = [:]
    ) async -> Answer {
        var fields = fields
        for field in Self.fields(cookie: cookie, accept: accept).all {
            fields.append(field.name.text, field.value.text)
        }
        return await call(.get, Self.path(of: login.startURI), key: nil, fields: fields)
    }

    /// A browser whose user presses a button of a page of the broker's.
    /// - Parameters:
    ///   - path: where the page's form goes.
    ///   - origin: the fields by which a browser says from where a form comes.
    package func press(
        _ decision: String = "continue", at path: String, cookie: String? = nil, accept: String? = browserAccept,
        origin: Fields = ["Sec-Fetch-Site": "same-origin"]
    ) async -> Answer {
        var fields = Self.fields(cookie: cookie, accept: accept)
        fields.append("Content-Type", "application/x-www-form-urlencoded")
        for field in origin.all { fields.append(field.name.text, field.value.text) }
        return await call(.post, path, key: nil, body: "decision=\(decision)", fields: fields)
    }

    /// A URI without its origin.
    package static func path(of uri: String) -> String {
        "/" + uri.split(separator: "/", maxSplits: 3)[2...].joined(separator: "/")
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

    /// Writes a login's record as a version would that does not know some of its members.
    package func rewriteLogin(_ id: String, tenant: String = "t1", leavingOut names: [String]) async throws {
        guard let name = TenantName(tenant),
            let record = try await vault.read(RecordID(.login, name, key: id)),
            case .object(var members) = try JSONValue(parsing: record.content.revealedBytes)
        else { preconditionFailure("no login \(id)") }
        for name in names { members[WireText(name)] = nil }
        var json = JSONWriter()
        json.value(.object(members))
        try await vault.commit([
            .replace(
                OpenRecord(
                    id: record.id, version: record.version + 1, content: SecretBytes(json.bytes),
                    lookup: record.lookup, expires: record.expires), version: record.version)
        ])
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
