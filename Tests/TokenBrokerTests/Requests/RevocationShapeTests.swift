import BrokerCore
import BrokerTesting
import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

/// Revocations at addresses that are not as RFC 7009 says.
@Suite(.timeLimit(.minutes(1))) struct `A revocation of a provider's own form` {
    private static let basic = "Basic " + Base64.encode(Array("c1:s1".utf8))

    /// What a logout sends for a session of these tokens.
    private static func request(
        _ tenant: String, refresh: String? = "r1", answer: ScriptedTransport.Step = .json(200, ""),
        outcome: String = "revoked"
    ) async throws -> ScriptedTransport.Seen {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", tenant)
        await broker.set("a1", refresh: refresh)
        broker.transport.enqueue(answer)
        let ended = await broker.call(.delete, "/credentials?revoke=true", tenant: "t1")
        #expect(ended.fields["Token-Revocation"]?.text == outcome)
        return try #require(broker.transport.seen.last)
    }

    struct Row: Sendable, CustomTestStringConvertible {
        let provider: String
        var method = "POST"
        let url: String
        /// The value of `Authorization`; nil for none.
        var authorization: String?
        /// All parameters of the body or the query.
        var form: [String: String] = [:]
        var more = ""

        var testDescription: String { provider }
    }

    @Test(arguments: [
        Row(
            provider: "github", method: "DELETE", url: "https://api.github.com/applications/c1/token",
            authorization: basic, form: ["access_token": "a1"]),
        Row(
            provider: "github-app", method: "DELETE", url: "https://api.acme.ghe.com/applications/c1/token",
            authorization: basic, form: ["access_token": "a1"], more: #", "parameters": {"domain": "acme.ghe.com"}"#),
        Row(provider: "slack", url: "https://slack.com/api/auth.revoke", authorization: "Bearer a1"),
        Row(provider: "dropbox", url: "https://api.dropboxapi.com/2/auth/token/revoke", authorization: "Bearer a1"),
        Row(
            provider: "notion", url: "https://api.notion.com/v1/oauth/revoke", authorization: basic,
            form: ["token": "a1"]),
        Row(
            provider: "quickbooks", url: "https://developer.api.intuit.com/v2/oauth2/tokens/revoke",
            authorization: basic, form: ["token": "r1"]),
        Row(
            provider: "tiktok", url: "https://open.tiktokapis.com/v2/oauth/revoke/",
            form: ["token": "a1", "client_key": "c1", "client_secret": "s1"]),
        Row(
            provider: "miro", url: "https://api.miro.com/v2/oauth/revoke",
            form: ["accessToken": "a1", "clientId": "c1", "clientSecret": "s1"]),
        Row(
            provider: "webflow", url: "https://webflow.com/oauth/revoke_authorization",
            form: ["access_token": "a1", "client_id": "c1", "client_secret": "s1"]),
        Row(
            provider: "monday", url: "https://auth.monday.com/oauth_ms/oauth/revoke",
            form: ["token": "r1", "client_id": "c1", "client_secret": "s1"]),
        // As RFC 7009 says.
        Row(
            provider: "google", url: "https://oauth2.googleapis.com/revoke",
            form: ["token": "r1", "token_type_hint": "refresh_token", "client_id": "c1", "client_secret": "s1"]),
    ])
    func `is as the profile says`(row: Row) async throws {
        let request = try await Self.request(
            #"{"provider": "\#(row.provider)", "client_id": "c1", "client_secret": "s1"\#(row.more)}"#)
        #expect(request.method.name == row.method)
        #expect(request.url == row.url)
        #expect(request.fields["Authorization"]?.text == row.authorization)
        #expect(request.form == row.form)
        if row.provider == "notion" { #expect(request.fields["Notion-Version"] != nil) }
    }

    @Test func `has the token in its address where the provider wants it there`() async throws {
        let request = try await Self.request(#"{"provider": "zoho", "client_id": "c1", "client_secret": "s1"}"#)
        #expect(request.url.hasSuffix("/oauth/v2/token/revoke?token=r1"))
        #expect(request.fields["Authorization"] == nil)
    }

    private static func oauth2(_ revocation: String) -> String {
        #"""
        {"provider": "oauth2", "client_id": "c 1", "client_secret": "s1", "revocation": \#(revocation),
         "endpoints": {"authorization": "https://op.example/auth", "token": "https://op.example/token",
                       "revocation": "https://op.example/revoke?v=1"}}
        """#
    }

    @Test(arguments: [
        (#"{"format": "json"}"#, "r1" as String?, "POST", ["token": "r1"]),
        (#"{"format": "json"}"#, nil, "POST", ["token": "a1"]),
        (#"{"format": "json", "token": "access"}"#, "r1", "POST", ["token": "a1"]),
        (#"{"method": "DELETE", "format": "form", "token": "refresh"}"#, "r1", "DELETE", ["token": "r1"]),
    ])
    func `is as the tenant says`(
        revocation: String, refresh: String?, method: String, form: [String: String]
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.oauth2(revocation))
        await broker.set("a1", refresh: refresh, clientID: "c 1")
        broker.transport.enqueue(.json(204, ""))
        let ended = await broker.call(.delete, "/credentials?revoke=true", tenant: "t1")
        #expect(ended.fields["Token-Revocation"] == "revoked")
        let request = try #require(broker.transport.seen.last)
        #expect(request.method.name == method && request.url == "https://op.example/revoke?v=1")
        for (name, value) in form { #expect(request.form[name] == value) }
        #expect(request.form["token_type_hint"] == nil)
        #expect(await broker.call(.get, "/tenants/t1").text.contains(#""revocation":{"method":"\#(method)""#))
    }

    @Test(arguments: [
        (#"{"method": "PUT"}"#, "/revocation/method"), (#"{"format": "xml"}"#, "/revocation/format"),
        (#"{"format": "none"}"#, "/revocation/token_in"),
        (#"{"format": "none", "token_in": "body"}"#, "/revocation/token_in"),
        (#"{"token_in": "header"}"#, "/revocation/token_in"), (#"{"token": "id"}"#, "/revocation/token"),
        (#"{"parameter_names": {"scope": "s"}}"#, "/revocation/parameter_names/scope"),
        (#"{"parameter_names": {"token": "a b"}}"#, "/revocation/parameter_names/token"),
        (#"{"endpoint": "https://a.example"}"#, "/revocation/endpoint"), (#""DELETE""#, "/revocation"),
    ])
    func `is refused with its place`(revocation: String, pointer: String) async throws {
        let answer = await (try await BrokerHarness()).call(.put, "/tenants/t1", body: Self.oauth2(revocation))
        #expect(answer.status == 400, "\(answer.text)")
        #expect(answer.text.contains(#""pointer":"\#(pointer)""#), "\(answer.text)")
    }
}
