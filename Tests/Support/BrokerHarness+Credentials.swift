import ExternalText
package import HTTPCodec
import JSON
import OAuth
import Testing

extension BrokerHarness {
    /// `GET /credentials` with the admin key.
    package func get(_ query: String = "", tenant: String = "t1", fields: Fields = [:]) async -> Answer {
        await call(.get, "/credentials" + (query.isEmpty ? "" : "?" + query), tenant: tenant, fields: fields)
    }

    /// `PUT /credentials` with the admin key; fails the test when they are refused. Returns their entity tag.
    @discardableResult
    package func set(
        _ access: String, refresh: String? = nil, lifetime: Duration = .seconds(3600), tenant: String = "t1",
        storageKey: String = "default", clientID: String = "c1", members: String = #""level": "user", "#
    ) async -> String {
        let refreshMember = refresh.map { #", "refresh_token": "\#($0)""# } ?? ""
        let answer = await call(
            .put, "/credentials", tenant: tenant,
            body: """
                {"storage_key": "\(storageKey)", "credentials": {\(members)"client_id": "\(clientID)", \
                "token": "\(access)", "expires": "\(time.now.advanced(by: lifetime))"}\(refreshMember)}
                """)
        #expect(answer.status == 200, "credentials refused: \(answer.text)")
        return answer.fields["ETag"]?.text ?? ""
    }
}

extension BrokerHarness.Answer {
    package var token: String? { json["token"]?.text }
    package var level: String? { json["level"]?.text }
    package var tag: String { fields["ETag"]?.text ?? "" }
    /// The number in a tag of credentials that hold a token.
    package var version: Int64 { Int64(tag.filter { $0 != "\"" }.prefix { $0 != "-" }) ?? -1 }
    package var retryAfter: Int? { (fields["Retry-After"]?.text).flatMap { Int($0) } }
    /// The pointers of a problem's errors, sorted.
    package var pointers: [String] { json["errors"]?.array?.compactMap { $0["pointer"]?.text }.sorted() ?? [] }
}
