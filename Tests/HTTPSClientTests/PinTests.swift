import BrokerTesting
import HTTPCodec
import HTTPSClient
import Reactor
import Synchronization
import Testing

@Suite(.serialized) struct Pins {
    @Test(arguments: ["good", "intermediate", "root"])
    func `a pin on any certificate of the verified chain is enough`(pinned: String) async throws {
        let server = try await TLSTestServer([.serve(answer("{}"))])
        let pins = try PinSet(parsing: [try await TLSTestCertificates.pin(of: pinned)])
        try await withClient { client in
            let response = try await client.post(server.url(), pins: pins)
            #expect(response.text == "{}")
        }
    }

    // H065
    @Test func `a pinned backup key is accepted without a change of pins`() async throws {
        let pins = try PinSet(parsing: [
            try await TLSTestCertificates.pin(of: "good"), try await TLSTestCertificates.pin(of: "backup"),
        ])
        for certificate in [TLSTestCertificates.Name.good, .backup] {
            let server = try await TLSTestServer(tls: .init(certificate), [.serve(answer("{}"))])
            try await withClient { client in
                let response = try await client.post(server.url(), pins: pins)
                #expect(response.text == "{}")
            }
        }
    }

    // H065
    @Test(arguments: [(["good"], 0), (["good", "backup"], 0), (["root", "backup"], 0), (["backup", "good"], 1)])
    func `a chain with a backup key and not the first pinned key is reported once an hour`(
        pinned: [String], count: Int
    ) async throws {
        let server = try await TLSTestServer([.read, .send(answer("1", fields: "Connection: close\r\n")), .close])
        var texts: [String] = []
        for name in pinned { texts.append(try await TLSTestCertificates.pin(of: name)) }
        let pins = try PinSet(parsing: texts)
        let reports = Mutex<[URLTarget.Origin]>([])
        let url = try #require(URLTarget(server.url()))
        try await withClient([{ $0.onBackupPin = { origin in reports.withLock { $0.append(origin) } } }]) { client in
            _ = try await client.post(server.url(), pins: pins)
            _ = try await client.post(server.url(), pins: pins)
        }
        #expect(reports.withLock { $0 } == [URLTarget.Origin](repeating: url.origin, count: count))
    }

    @Test func `the pins of a server are read without a request`() async throws {
        let server = try await TLSTestServer([.hold])
        let url = try #require(URLTarget(server.url()))
        let chain = try await withClient { client in try await client.certificates(of: url.origin) }
        var pins: [String] = []
        for name in ["good", "intermediate", "root"] { pins.append(try await TLSTestCertificates.pin(of: name)) }
        #expect(chain.map(\.pin) == pins)
        #expect(chain.allSatisfy { $0.secondsUntilExpiry > 0 && !$0.subject.isEmpty })
        #expect(try await server.report(afterEnds: 1).bytes == 0)
    }

    @Test func `a chain that is not trusted shows no pins`() async throws {
        let server = try await TLSTestServer(tls: .init(.unknownRoot), [.hold])
        let url = try #require(URLTarget(server.url()))
        let failure = await withKnownFailure { try await withClient { try await $0.certificates(of: url.origin) } }
        #expect(failure == .untrusted(.chain))
    }

    private func withKnownFailure<R>(_ body: () async throws -> R) async -> TransportError? {
        do {
            _ = try await body()
            return nil
        } catch {
            return error as? TransportError
        }
    }

    // H065
    @Test(arguments: ["TLSv1_2", "TLSv1_3"])
    func `a good chain without a pinned key gets no byte of the request`(version: String) async throws {
        let server = try await TLSTestServer(tls: .init(onlyVersion: version), [.hold])
        let pins = try PinSet(parsing: [try await TLSTestCertificates.pin(of: "backup")])
        let failure = try await withClient { client in await client.failure(server.url(), pins: pins) }
        #expect(failure == .untrusted(.pin))
        let report = try await server.report(afterEnds: 1)
        #expect(report.connections == 1)
        #expect(report.bytes == 0)
    }

    // H065
    @Test(
        arguments: [
            (.unknownRoot, .chain), (.selfSigned, .chain), (.wrongHost, .hostName), (.expired, .expired),
        ] as [(TLSTestCertificates.Name, TransportError.UntrustedReason)])
    func `a pinned key does not make a bad certificate acceptable`(
        certificate: TLSTestCertificates.Name, reason: TransportError.UntrustedReason
    ) async throws {
        let server = try await TLSTestServer(tls: .init(certificate), [.hold])
        let pins = try PinSet(parsing: [try await TLSTestCertificates.pin(of: certificate.rawValue)])
        let failure = try await withClient { client in await client.failure(server.url(), pins: pins) }
        #expect(failure == .untrusted(reason))
        #expect(try await server.report(afterEnds: 1).bytes == 0)
    }

    @Test func `a connection that was opened without pins is not used for a request with pins`() async throws {
        let server = try await TLSTestServer([.serve(answer("{}"))], [.hold])
        let others = try PinSet(parsing: [try await TLSTestCertificates.pin(of: "backup")])
        try await withClient { client in
            _ = try await client.post(server.url(), "first")
            #expect(await client.failure(server.url(), pins: others) == .untrusted(.pin))
            // The TLS session of the first connection is not used either, since it would skip the certificates.
            #expect(await client.counters == .init(connectionsOpened: 1, connectionsReused: 0, sessionsResumed: 0))
        }
        let report = try await server.report(afterEnds: 2)
        #expect(report.connections == 2)
        #expect(report.requests.count == 1)
    }

    @Test func `a session is resumed under the same pins only`() async throws {
        let server = try await TLSTestServer([.read, .send(answer("1", fields: "Connection: close\r\n")), .close])
        let pins = try PinSet(parsing: [try await TLSTestCertificates.pin(of: "good")])
        try await withClient { client in
            _ = try await client.post(server.url())
            _ = try await client.post(server.url(), pins: pins)
            _ = try await client.post(server.url(), pins: pins)
            #expect(await client.counters.sessionsResumed == 1)
        }
    }

    // K39
    @Test func `pins are refused on a plain connection`() async throws {
        let server = try await TLSTestServer(tls: nil, [.hold])
        let pins = try PinSet(parsing: [try await TLSTestCertificates.pin(of: "good")])
        try await withClient { client in
            #expect(await client.failure("http://localhost:\(server.port)/", pins: pins) == .untrusted(.pin))
        }
    }

    @Test(arguments: [
        "sha256/++MBgDH5WGvL9Bcn5Be30cRcL0f5O+NyoXuWtQdX1aI=",
        "sha256/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        "sha256/" + String(repeating: "/", count: 42) + "8=",
    ])
    func `a pin is sha256 and the base64 of 32 bytes`(text: String) throws {
        #expect(throws: Never.self) { try PinSet(parsing: [text]) }
    }

    @Test(arguments: [
        "", "sha256/", "sha1/AAAAAAAAAAAAAAAAAAAAAAAAAAA=", "++MBgDH5WGvL9Bcn5Be30cRcL0f5O+NyoXuWtQdX1aI=",
        "SHA256/++MBgDH5WGvL9Bcn5Be30cRcL0f5O+NyoXuWtQdX1aI=", "sha256/++MBgDH5WGvL9Bcn5Be30cRcL0f5O+NyoXuWtQdX1aI",
        "sha256/++MBgDH5WGvL9Bcn5Be30cRcL0f5O+NyoXuWtQdX1aI==", " sha256/++MBgDH5WGvL9Bcn5Be30cRcL0f5O+NyoXuWtQdX1aI=",
        // Not canonical: the last character has bits that encode no byte.
        "sha256/++MBgDH5WGvL9Bcn5Be30cRcL0f5O+NyoXuWtQdX1aJ=",
        // A combining acute accent, which forms one character with the slash.
        "sha256/\u{301}++MBgDH5WGvL9Bcn5Be30cRcL0f5O+NyoXuWtQdX1aI=",
        // The URL alphabet.
        "sha256/--MBgDH5WGvL9Bcn5Be30cRcL0f5O-NyoXuWtQdX1aI=",
        // 31 and 33 bytes.
        "sha256/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==", "sha256/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    ])
    func `any other text is refused with its index in the list`(text: String) {
        let good = "sha256/++MBgDH5WGvL9Bcn5Be30cRcL0f5O+NyoXuWtQdX1aI="
        #expect(throws: PinSetError.malformed(index: 1)) { try PinSet(parsing: [good, text]) }
    }

    @Test func `an empty list is refused`() {
        #expect(throws: PinSetError.empty) { try PinSet(parsing: []) }
    }

    @Test func `the order of pins and their repetition make no difference`() throws {
        let (a, b) = (
            "sha256/++MBgDH5WGvL9Bcn5Be30cRcL0f5O+NyoXuWtQdX1aI=", "sha256/f0KW/FtqTjs108NpYj42SrGvOB2PpxIVM8nWxjPqJGE="
        )
        #expect(try PinSet(parsing: [a, b]) == PinSet(parsing: [b, a, b]))
        #expect(try PinSet(parsing: [a]) != PinSet(parsing: [b]))
    }
}
