import BrokerTesting
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import Reactor
import Testing
import TokenBroker

/// Runs `body` against a broker's service on a socket.
func withSocket(
    scope: Service.Scope = .all, _ body: (BrokerHarness, String, HTTPRawClient) async throws -> Void
) async throws {
    let broker = try await BrokerHarness()
    await broker.makeTenant()
    let key = await broker.makeKey("t1", #"{"name": "k", "permissions": ["credentials:read", "login"]}"#)
    let loopback = SocketAddress(ip: .v4([127, 0, 0, 1]), port: 0)
    var configuration = ServerConfiguration(address: loopback, loopCount: 1)
    configuration.limits.bodyBytes = 1 << 20
    let server = try Server(configuration: configuration, handler: Service(broker.broker, scope: scope))
    do {
        try await body(broker, key, try HTTPRawClient(server.address))
        await server.close()
    } catch {
        await server.close()
        throw error
    }
}

private func head(_ line: String, key: String?, length: Int, _ fields: String...) -> String {
    "\(line) HTTP/1.1\r\nHost: a\r\nContent-Length: \(length)\r\n"
        + (key.map { "Authorization: Bearer \($0)\r\n" } ?? "") + fields.map { $0 + "\r\n" }.joined() + "\r\n"
}

@Suite(.timeLimit(.minutes(1))) struct `A request with a body` {
    private static let json = "Content-Type: application/json"
    private static let waits = "Expect: 100-continue"

    // H007 H018
    @Test(
        arguments: [
            ("POST /login/initialize", "none", [json], 401, "unauthorized"),
            ("POST /login/initialize", "tb_unknown", [json], 401, "unauthorized"),
            ("PUT /credentials", "key", [json], 403, "forbidden"),
            ("PUT /tenants/t2", "key", [json], 403, "forbidden"),
            ("POST /nowhere", "none", [json], 404, "not_found"),
            ("POST /credentials", "key", [json], 405, "method_not_allowed"),
            ("POST /login/initialize", "key", ["Content-Type: text/plain"], 415, "unsupported_media_type"),
            ("POST /login/initialize", "key", [], 415, "unsupported_media_type"),
            ("POST /login/callback", "none", [json], 415, "unsupported_media_type"),
            ("POST /login/initialize", "key", [json, "Content-Encoding: gzip"], 415, "unsupported_media_type"),
            (
                "POST /login/callback", "none",
                ["Content-Type: application/x-www-form-urlencoded", "Content-Encoding: br"], 415,
                "unsupported_media_type"
            ),
        ] as [(String, String, [String], Int, String)])
    func `is refused for its head before its body is asked for`(
        line: String, caller: String, fields: [String], status: Int, code: String
    ) async throws {
        try await withSocket { broker, key, client in
            let secret: String? = caller == "none" ? nil : caller == "key" ? key : caller
            let lines = (fields + [Self.waits]).map { $0 + "\r\n" }.joined()
            try await client.send(
                "\(line) HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n"
                    + (secret.map { "Authorization: Bearer \($0)\r\n" } ?? "") + lines + "\r\n")
            let response = try await client.response(to: .post)
            #expect(response.status.code == status)
            #expect(try JSONValue(parsing: response.body)["code"] == .string(code))
            #expect(response.fields["Connection"] == "close")
            #expect(try await client.rest() == "")
            // It is told of once, like every request.
            let logged = broker.log.filter { $0.contains(#""event":"request_failed""#) }
            #expect(logged.count == 1 && logged[0].contains(#""code":"\#(code)""#))
        }
    }

    @Test(arguments: ["gzip", "identity, gzip", "GZIP", "aes128gcm"])
    func `is not taken in a coding`(coding: String) async throws {
        try await withSocket { _, key, client in
            try await client.send(
                head("POST /login/initialize", key: key, length: 2, Self.json, "Content-Encoding: \(coding)"))
            let response = try await client.response(to: .post)
            #expect(response.status == .unsupportedMediaType)
            #expect(response.fields.values("Accept-Encoding") == ["identity"])
        }
    }

    @Test(arguments: ["Content-Encoding: identity", "Content-Encoding: Identity", "Content-Encoding:", "X: y"])
    func `is taken without one`(field: String) async throws {
        try await withSocket { _, key, client in
            try await client.send(head("POST /login/initialize", key: key, length: 2, Self.json, field) + "{}")
            #expect(try await client.response(to: .post).status == .created)
        }
    }

    @Test func `of a type that is not taken says nothing of codings`() async throws {
        try await withSocket { _, key, client in
            try await client.send(head("POST /login/initialize", key: key, length: 2, "Content-Type: text/plain"))
            let response = try await client.response(to: .post)
            #expect(response.status == .unsupportedMediaType)
            #expect(!response.fields.contains("Accept-Encoding"))
        }
    }

    @Test func `is refused where its key was deleted while the body was on its way`() async throws {
        try await withSocket { broker, key, client in
            try await client.send(head("POST /login/initialize", key: key, length: 2, Self.json, Self.waits))
            #expect(try await client.receive(through: "\r\n\r\n") == "HTTP/1.1 100 Continue\r\n\r\n")
            let keys = await broker.call(.get, "/tenants/t1/api-keys").json["api_keys"]?.array ?? []
            let id = try #require(keys.first?["id"]?.text)
            #expect(await broker.call(.delete, "/tenants/t1/api-keys/\(id)").status == 204)
            try await client.send("{}")
            #expect(try await client.response(to: .post).status == .unauthorized)
        }
    }

    @Test(arguments: [(65_536, 410), (65_537, 413)])
    func `that needs no key may have 64 KiB`(length: Int, status: Int) async throws {
        try await withSocket { _, _, client in
            let form = "state=unknown&code=c&x="
            try await client.send(
                head(
                    "POST /login/callback", key: nil, length: length, "Content-Type: application/x-www-form-urlencoded",
                    "Accept: application/json"))
            if status == 410 {
                try await client.send(form + String(repeating: "x", count: length - form.utf8.count))
            }
            let response = try await client.response(to: .post)
            #expect(response.status.code == status)
        }
    }

    @Test func `in chunks without any needs no type`() async throws {
        try await withSocket { _, key, client in
            try await client.send(
                "POST /login/initialize HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer \(key)\r\n"
                    + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
            #expect(try await client.response(to: .post).status == .created)
            try await client.send(
                "POST /login/initialize HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer \(key)\r\n"
                    + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n")
            #expect(try await client.response(to: .post).status == .unsupportedMediaType)
        }
    }
}
