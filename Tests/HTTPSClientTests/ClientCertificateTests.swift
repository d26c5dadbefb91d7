import BrokerTesting
import Cryptography
import HTTPCodec
import HTTPSClient
import Reactor
import Testing

/// A client that shows servers who it is (RFC 8705).
@Suite(.serialized) struct `A certificate of a client` {
    private static func file(_ path: String) throws -> [UInt8] { try SmallFile.read(path, limit: 1 << 20) }

    /// The text with the chain and the key of a client.
    private static func pem(_ name: ClientCertificates.Name, keyOf other: ClientCertificates.Name? = nil) throws
        -> [UInt8]
    {
        let certificates = ClientCertificates.shared
        return try file(certificates.chain(name)) + file(certificates.key(other ?? name))
    }

    private static func certificate(_ name: ClientCertificates.Name) throws -> ClientCertificate {
        ClientCertificate(pem: SecretBytes(try pem(name)))
    }

    private static func send(
        _ certificate: ClientCertificate?, to server: TLSTestServer, by client: HTTPSClient
    ) async throws {
        var request = ClientRequest(method: .post, url: try #require(URLTarget(server.url())))
        request.certificate = certificate
        _ = try await client.send(request)
    }

    private static func tls(_ version: String? = nil) -> TLSTestServer.TLS {
        .init(onlyVersion: version, clientAuthority: ClientCertificates.shared.authority)
    }

    @Test(arguments: ["TLSv1_2", "TLSv1_3"])
    func `is shown to a server that asks, with what leads to its root`(version: String) async throws {
        let server = try await TLSTestServer(tls: Self.tls(version), [.serve(answer("{}"))])
        try await withClient { client in
            try await Self.send(Self.certificate(.deep), to: server, by: client)
        }
        #expect(try await server.report(afterRequests: 1).clients == ["deep"])
    }

    @Test func `shares no connection with requests that show another one, or none`() async throws {
        let server = try await TLSTestServer(tls: Self.tls(), [.serve(answer("{}"))])
        let certificates = [try Self.certificate(.dns), nil, try Self.certificate(.spiffe)]
        try await withClient { client in
            for certificate in certificates { try await Self.send(certificate, to: server, by: client) }
            #expect(await client.counters == .init(connectionsOpened: 3, connectionsReused: 0, sessionsResumed: 0))
            // The same certificate, read again, has its own connection.
            for certificate in [try Self.certificate(.dns), nil, try Self.certificate(.spiffe)] {
                try await Self.send(certificate, to: server, by: client)
            }
            #expect(await client.counters == .init(connectionsOpened: 3, connectionsReused: 3, sessionsResumed: 0))
        }
        #expect(try await server.report(afterRequests: 6).clients == ["dns", "-", "spiffe"])
    }

    @Test func `shares no TLS session with requests that show another one, or none`() async throws {
        let server = try await TLSTestServer(
            tls: Self.tls("TLSv1_2"), [.read, .send(answer("1", fields: "Connection: close\r\n")), .close])
        try await withClient { client in
            for certificate in [try Self.certificate(.dns), nil, try Self.certificate(.spiffe)] {
                try await Self.send(certificate, to: server, by: client)
            }
            #expect(await client.counters.sessionsResumed == 0)
            try await Self.send(Self.certificate(.dns), to: server, by: client)
            #expect(await client.counters.sessionsResumed == 1)
        }
    }

    @Test func `is not sent without TLS`() async throws {
        let server = try await TLSTestServer(tls: nil, [.serve(answer("{}"))])
        var request = ClientRequest(method: .get, url: try #require(URLTarget("http://localhost:\(server.port)/")))
        request.certificate = try Self.certificate(.dns)
        try await withClient { [request] client in
            _ = await #expect(throws: TransportError.certificateWithoutTLS) { try await client.send(request) }
        }
    }

    @Test func `is usable with its chain and its key in any order`() throws {
        #expect(ClientCertificate.fault(in: SecretBytes(try Self.pem(.deep))) == nil)
        let certificates = ClientCertificates.shared
        let keyFirst = try Self.file(certificates.key(.dns)) + Self.file(certificates.chain(.dns))
        #expect(ClientCertificate.fault(in: SecretBytes(keyFirst)) == nil)
        let padded = keyFirst + [UInt8](repeating: 0x0a, count: ClientCertificate.longest - keyFirst.count)
        #expect(ClientCertificate.fault(in: SecretBytes(padded)) == nil)
        #expect(ClientCertificate.fault(in: SecretBytes(padded + [0x0a])) != nil)
    }

    @Test func `is refused without a certificate, without a key, with another key, and with a weak one`() throws {
        let certificates = ClientCertificates.shared
        let servers = TLSTestCertificates.shared
        let texts: [[UInt8]] = [
            [], Array("certificate".utf8), try Self.file(certificates.chain(.dns)),
            try Self.file(certificates.key(.dns)),
            try Self.pem(.dns, keyOf: .spiffe),
            try Self.file(servers.chain(.weakKey)) + Self.file(servers.key(.weakKey)),
        ]
        for (index, text) in texts.enumerated() {
            let fault = ClientCertificate.fault(in: SecretBytes(text))
            #expect(fault != nil, "text \(index)")
        }
    }
}
