import BrokerCore
import BrokerTesting
import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Reactor
import Testing
import TokenBroker

/// What an operator is told of a certificate that cannot be shown, or that no provider accepts.
@Suite(.timeLimit(.minutes(1))) struct `The certificate of a tenant` {
    private static func pem(_ name: ClientCertificates.Name) throws -> String {
        let certificates = ClientCertificates.shared
        let bytes =
            try SmallFile.read(certificates.chain(name), limit: 65_536)
            + SmallFile.read(certificates.key(name), limit: 65_536)
        return String(decoding: bytes, as: UTF8.self)
    }

    private static func tenant(_ name: ClientCertificates.Name) throws -> String {
        #"""
        {"provider": "oidc", "client_id": "c1", "token_endpoint_auth_method": "tls_client_auth",
         "endpoints": {"authorization": "https://id.example/a", "token": "https://id.example/t"},
         "client_certificate": "\#(try pem(name).replacing("\n", with: #"\n"#))"}
        """#
    }

    @Test func `is named as the cause where an address has no TLS`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", try Self.tenant(.dns))
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        broker.transport.always(.failure(.certificateWithoutTLS))
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (424, "illegal_configuration"))
        #expect(answer.text.contains("client_certificate") && answer.text.contains("https://"), "\(answer.text)")
        #expect(!answer.text.contains("ALLOW_HTTP_PROVIDERS"))
        #expect(broker.transport.seen.count == 1)
        let check = await broker.call(.post, "/tenants/t1/check")
        #expect(check.text.contains("client_certificate is shown in TLS only"), "\(check.text)")
    }

    @Test(arguments: [(ClientCertificates.Name.expired, false), (.dns, true)])
    func `is checked for its end, and refused for nothing`(name: ClientCertificates.Name, isWell: Bool) async throws {
        let broker = try await BrokerHarness()
        let made = await broker.call(.put, "/tenants/t1", body: try Self.tenant(name))
        #expect(made.status == 201, "\(made.text)")
        broker.transport.always(
            .decide { seen in
                let error = seen.form["grant_type"] == "client_credentials" ? "unauthorized_client" : "invalid_grant"
                return .json(400, #"{"error": "\#(error)"}"#)
            })
        let checks = await broker.call(.post, "/tenants/t1/check")
        let client = checks.json["checks"]?.array?.first { $0["name"]?.text == "client_authentication" }
        #expect(client?["ok"] == .bool(isWell), "\(checks.text)")
        let detail = client?["detail"]?.text ?? ""
        #expect(detail.contains("client_certificate has expired at 2020-02-01T00:00:00Z") == !isWell, "\(detail)")
        #expect(detail.contains("A made-up code was sent"), "\(detail)")
    }
}
