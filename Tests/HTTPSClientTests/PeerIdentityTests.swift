import BrokerTesting
import ExternalText
import Glibc
import HTTPCodec
import HTTPSClient
import Reactor
import Testing

@Suite(.serialized) struct `Identity of the server` {
    @Test func `a good certificate is accepted and the request arrives whole`() async throws {
        let server = try await TLSTestServer([.serve(answer("{}"))])
        try await withClient { client in
            let response = try await client.post(server.url("/token?a=b"), "grant_type=x")
            #expect(response.status.code == 200)
            #expect(response.fields["content-type"] == "application/json")
            #expect(response.text == "{}")
        }
        let report = try await server.report(afterEnds: 1)
        #expect(report.serverNames == ["localhost"])
        #expect(
            report.requests == [
                "POST /token?a=b HTTP/1.1\r\nHost: localhost:\(server.port)\r\n"
                    + "Content-Type: application/x-www-form-urlencoded\r\nAccept-Encoding: identity\r\n"
                    + "Content-Length: 12\r\n\r\ngrant_type=x"
            ])
    }

    // H063
    @Test(
        arguments: [
            (.good, "LocalHost"), (.good, "127.0.0.1"), (.wildcard, "a.example.test"), (.rsa, "localhost"),
            (.backup, "good.example.test"),
        ] as [(TLSTestCertificates.Name, String)])
    func `a certificate that names the host is accepted`(certificate: TLSTestCertificates.Name, host: String)
        async throws
    {
        let server = try await TLSTestServer(tls: .init(certificate), [.serve(answer("{}"))])
        try await withClient { client in
            let response = try await client.post(server.url(host: host))
            #expect(response.text == "{}")
        }
    }

    // H062 H063
    @Test(
        arguments: [
            (.wrongHost, "localhost", .hostName),
            (.wrongHost, "127.0.0.1", .hostName),
            (.commonNameOnly, "localhost", .hostName),
            (.wildcard, "a.b.example.test", .hostName),
            (.wildcard, "example.test", .hostName),
            (.wildcard, "localhost", .hostName),
            (.partialWildcard, "abc.example.test", .hostName),
            (.doubleWildcard, "a.b.example.test", .hostName),
            (.addressAsName, "127.0.0.1", .hostName),
            (.nulInName, "localhost", .hostName),
            (.expired, "localhost", .expired),
            (.expiredIssuer, "localhost", .expired),
            (.notYetValid, "localhost", .notYetValid),
            (.clientPurpose, "localhost", .purpose),
            (.selfSigned, "localhost", .chain),
            (.unknownRoot, "localhost", .chain),
            (.issuedByLeaf, "localhost", .chain),
            (.pathTooLong, "localhost", .chain),
            (.missingIntermediate, "localhost", .chain),
            (.weakKey, "localhost", .chain),
        ] as [(TLSTestCertificates.Name, String, TransportError.UntrustedReason)])
    func `a server with an unsuitable certificate gets no byte of the request`(
        certificate: TLSTestCertificates.Name, host: String, reason: TransportError.UntrustedReason
    ) async throws {
        let server = try await TLSTestServer(tls: .init(certificate), [.hold])
        let failure = try await withClient { client in await client.failure(server.url(host: host)) }
        #expect(failure == .untrusted(reason))
        #expect(failure?.requestMayHaveBeenProcessed == false)
        let report = try await server.report(afterEnds: 1)
        #expect(report.connections == 1)
        #expect(report.bytes == 0)
    }

    // H062
    @Test(arguments: ["TLSv1_2", "TLSv1_3"])
    func `a bad certificate is refused in each protocol version`(version: String) async throws {
        let server = try await TLSTestServer(tls: .init(.expired, onlyVersion: version), [.hold])
        let failure = try await withClient { client in await client.failure(server.url()) }
        #expect(failure == .untrusted(.expired))
        #expect(try await server.report(afterEnds: 1).bytes == 0)
    }

    // H062
    @Test func `a root that is not configured is not trusted`() async throws {
        let server = try await TLSTestServer([.hold])
        let failure = try await withClient([set(\.trustedCAFile, String?.none)]) { client in
            await client.failure(server.url())
        }
        #expect(failure == .untrusted(.chain))
        #expect(try await server.report(afterEnds: 1).bytes == 0)
    }

    @Test func `the system's roots are read before the first handshake and not at the start`() async throws {
        let server = try await TLSTestServer([.serve(answer("{}")), .serve(answer("{}"))])
        let (address, root) = (server.url(), TLSTestCertificates.shared.root)
        // OpenSSL reads the paths from the environment, which no other thread may read meanwhile.
        await #expect(processExitsWith: .success) { [address = address as String, root = root as String] in
            let file = "/tmp/token-broker-roots.\(getpid())"
            unsafe setenv("SSL_CERT_FILE", file, 1)
            unsafe setenv("SSL_CERT_DIR", "/nonexistent", 1)
            try await withClient([set(\.trustedCAFile, String?.none)]) { client in
                // The file of roots exists only from now on.
                #expect(unsafe symlink(root, file) == 0)
                defer { unsafe unlink(file) }
                async let other = client.post(address)
                let texts = try await [client.post(address).text, other.text]
                #expect(texts == ["{}", "{}"])
            }
        }
        #expect(try await server.report(afterEnds: 2).requests.count == 2)
    }

    @Test func `a file of roots that cannot be read is a configuration error`() throws {
        let loop = try EventLoop(name: "test-client")
        defer { loop.shutDown() }
        var configuration = HTTPSClientConfiguration()
        configuration.trustedCAFile = "/nonexistent/root.pem"
        let resolver = try NameResolver()
        #expect(throws: HTTPSClientConfigurationError.trustedCAFile("/nonexistent/root.pem")) {
            try HTTPSClient(configuration: configuration, loop: loop, resolver: resolver)
        }
        configuration.trustedCAFile = TLSTestCertificates.shared.key(.good)
        #expect(throws: HTTPSClientConfigurationError.trustedCAFile(TLSTestCertificates.shared.key(.good))) {
            try HTTPSClient(configuration: configuration, loop: loop, resolver: resolver)
        }
    }

    @Test func `an address is not sent as a server name`() async throws {
        let server = try await TLSTestServer([.serve(answer("{}"))])
        try await withClient { client in _ = try await client.post(server.url(host: "127.0.0.1")) }
        #expect(try await server.report(afterEnds: 1).serverNames == ["-"])
    }
}

@Suite(.serialized) struct `Versions and suites of TLS` {
    // H064
    @Test(
        arguments: [
            .init(onlyVersion: "TLSv1_3"),
            .init(onlyVersion: "TLSv1_2", ciphers: "ECDHE-ECDSA-AES128-GCM-SHA256"),
            .init(onlyVersion: "TLSv1_2", ciphers: "ECDHE-ECDSA-CHACHA20-POLY1305"),
            .init(.rsa, onlyVersion: "TLSv1_2", ciphers: "ECDHE-RSA-AES256-GCM-SHA384"),
            .init(applicationProtocols: ["h2", "http/1.1"]),
        ] as [TLSTestServer.TLS])
    func `suites with forward secrecy and authenticated encryption are accepted`(tls: TLSTestServer.TLS) async throws {
        let server = try await TLSTestServer(tls: tls, [.serve(answer("{}"))])
        try await withClient { client in
            let response = try await client.post(server.url())
            #expect(response.text == "{}")
        }
    }

    // H064
    @Test(
        arguments: [
            .init(onlyVersion: "TLSv1"),
            .init(onlyVersion: "TLSv1_1"),
            .init(onlyVersion: "TLSv1_2", ciphers: "ECDHE-ECDSA-AES128-SHA256:ECDHE-ECDSA-AES128-SHA"),
            .init(.rsa, onlyVersion: "TLSv1_2", ciphers: "AES128-GCM-SHA256:AES256-GCM-SHA384"),
            .init(.rsa, onlyVersion: "TLSv1_2", ciphers: "ECDHE-RSA-AES128-SHA"),
        ] as [TLSTestServer.TLS])
    func `other suites and versions are refused in the handshake`(tls: TLSTestServer.TLS) async throws {
        let server = try await TLSTestServer(tls: tls, [.hold])
        let failure = try await withClient { client in await client.failure(server.url()) }
        #expect(failure == .untrusted(.noCommonProtocol))
        #expect(try await server.report(afterEnds: 1).bytes == 0)
    }

    @Test(
        arguments: [
            // handshake_failure, protocol_version, insufficient_security, no_application_protocol
            (40, .untrusted(.noCommonProtocol)), (70, .untrusted(.noCommonProtocol)),
            (71, .untrusted(.noCommonProtocol)), (120, .untrusted(.noCommonProtocol)),
            // unexpected_message, internal_error, user_canceled: a later attempt may succeed after these alerts.
            (10, .tlsFailed), (80, .tlsFailed), (90, .tlsFailed),
        ] as [(UInt8, TransportError)])
    func `an alert about the client's offer and a transient alert give different errors`(
        alert: UInt8, expected: TransportError
    )
        async throws
    {
        let server = try await TLSTestServer([
            .withoutHandshake, .readSome, .sendBytes([0x15, 0x03, 0x03, 0x00, 0x02, 0x02, alert]), .close,
        ])
        let failure = try await withClient { client in await client.failure(server.url()) }
        #expect(failure == expected)
        #expect(failure?.requestMayHaveBeenProcessed == false)
    }

    @Test(
        arguments: [
            [.withoutHandshake, .send("HTTP/1.1 400 Bad Request\r\n\r\n"), .hold],
            [.withoutHandshake, .sendBytes([0x16, 0x03, 0x03, 0xff, 0xff]), .hold],
            [.withoutHandshake, .cut],
            [.withoutHandshake, .readSome, .reset],
        ] as [[TLSTestServer.Step]])
    func `a server that does not speak TLS fails the handshake`(script: [TLSTestServer.Step]) async throws {
        let server = try await TLSTestServer(script)
        let failure = try await withClient { client in await client.failure(server.url()) }
        #expect(failure == .tlsFailed)
    }

    @Test(arguments: ["TLSv1_2", "TLSv1_3"])
    func `a second connection resumes the session of the first`(version: String) async throws {
        let server = try await TLSTestServer(
            tls: .init(onlyVersion: version), [.read, .send(answer("1", fields: "Connection: close\r\n")), .close])
        try await withClient { client in
            for _ in 0..<3 { _ = try await client.post(server.url()) }
            #expect(await client.counters == .init(connectionsOpened: 3, connectionsReused: 0, sessionsResumed: 2))
        }
        #expect(try await server.report(afterEnds: 3).resumed == 2)
    }
}
