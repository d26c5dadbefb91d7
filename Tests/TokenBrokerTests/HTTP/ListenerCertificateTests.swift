import BrokerCore
import BrokerTesting
import FoundationEssentials
import OAuth
import Synchronization
import TLS
import Testing
import TokenBroker

@testable import HTTPSClient

@Suite(.timeLimit(.minutes(1))) struct `The listener's certificate` {
    private final class Lines: Sendable {
        private let all = Mutex<[String]>([])

        func append(_ line: [UInt8]) { all.withLock { $0.append(String(decoding: line, as: UTF8.self)) } }

        func take() -> [String] {
            all.withLock { lines in
                defer { lines = [] }
                return lines
            }
        }
    }

    private let directory = StoreFixtureDirectory()
    private let time = ManualTime(skipsSleeps: false)
    private let lines = Lines()

    private var files: ListenerCertificate.Files {
        ListenerCertificate.Files(certificate: directory.path + "/tls.crt", key: directory.path + "/tls.key")
    }

    private func write(certificate: TLSTestCertificates.Name? = nil, key: TLSTestCertificates.Name? = nil) throws {
        let manager = FileManager.default
        try manager.createDirectory(atPath: directory.path, withIntermediateDirectories: true)
        let sources = TLSTestCertificates.shared
        for (source, target) in [
            (certificate.map(sources.chain), files.certificate), (key.map(sources.key), files.key),
        ] {
            guard let source else { continue }
            try? manager.removeItem(atPath: target)
            try manager.copyItem(atPath: source, toPath: target)
        }
    }

    private func make(clientAuthorities: String? = nil) throws -> ListenerCertificate {
        let lines = self.lines
        var files = files
        files.clientAuthorities = clientAuthorities
        return try ListenerCertificate(files, time: time, log: Log(threshold: .info, time: time) { lines.append($0) })
    }

    @Test func `is read again when its files change`() async throws {
        try write(certificate: .expired, key: .expired)
        let certificate = try make()
        #expect(certificate.expires.description.hasPrefix("2020-02-01T00:00:00"))
        #expect(await certificate.check() == .unchanged)
        try write(certificate: .good, key: .good)
        #expect(await certificate.check() == .reloaded)
        #expect(await certificate.check() == .unchanged)
        #expect(certificate.expires.description.hasPrefix("2099-01-01T00:00:00"))
        let told = lines.take()
        #expect(told.count == 2)
        #expect(told.allSatisfy { $0.contains(#""event":"tls_certificate_loaded""#) })
        #expect(told.last?.contains(#""expires":"2099-01-01T00:00:00"#) == true, "\(told)")
    }

    @Test func `stays in use while new files cannot be used, and the log says so once for each content`() async throws {
        try write(certificate: .good, key: .good)
        let certificate = try make()
        _ = lines.take()
        // A renewal writes one file after the other.
        try write(certificate: .rsa)
        #expect(await certificate.check() == .refused(.otherKey(files.key)))
        #expect(await certificate.check() == .unchanged)
        #expect(certificate.expires.description.hasPrefix("2099-01-01T00:00:00"))
        var told = lines.take()
        #expect(told.count == 1)
        #expect(told.first?.contains(#""event":"tls_certificate_refused""#) == true, "\(told)")
        #expect(told.first?.contains(#""variable":"TOKEN_BROKER_TLS_KEY""#) == true, "\(told)")

        try Data("spoilt".utf8).write(to: URL(filePath: files.certificate))
        #expect(await certificate.check() == .refused(.certificateFile(files.certificate)))
        try FileManager.default.removeItem(atPath: files.certificate)
        #expect(await certificate.check() == .refused(.certificateFile(files.certificate)))
        told = lines.take()
        #expect(told.count == 2)
        #expect(told.allSatisfy { $0.contains(#""variable":"TOKEN_BROKER_TLS_CERTIFICATE""#) }, "\(told)")

        try write(certificate: .rsa, key: .rsa)
        #expect(await certificate.check() == .reloaded)
        #expect(lines.take().first?.contains("tls_certificate_loaded") == true)
    }

    @Test
    func `is read again with the authorities of clients, of which the earlier ones stay where the new cannot be used`()
        async throws
    {
        try write(certificate: .good, key: .good)
        let authorities = directory.path + "/clients.crt"
        let clients = ClientCertificates.shared
        func writeAuthorities(_ sources: [String]) throws {
            let parts = try sources.map { try Data(contentsOf: URL(filePath: $0)) }
            try parts.reduce(Data(), +).write(to: URL(filePath: authorities))
        }
        func count(_ certificate: ListenerCertificate) -> Int? { certificate.context.clientAuthorities?.count }
        try writeAuthorities([clients.authority])
        let certificate = try make(clientAuthorities: authorities)
        #expect(count(certificate) == 1)
        #expect(lines.take().first?.contains(#""client_authorities":1"#) == true)
        try writeAuthorities([clients.authority, clients.otherAuthority])
        #expect(await certificate.check() == .reloaded)
        #expect(count(certificate) == 2)
        #expect(lines.take().first?.contains(#""client_authorities":2"#) == true)

        // No certificate, one that is no authority's, and one too many.
        let most = TLSClientAuthorities.most
        for sources in [
            [], [clients.key(.dns)], [clients.authority, clients.chain(.dns)],
            Array(repeating: clients.authority, count: most + 1),
        ] {
            try writeAuthorities(sources)
            #expect(await certificate.check() == .refused(.clientAuthorities(authorities)))
            #expect(await certificate.check() == .unchanged)
            #expect(count(certificate) == 2)
            let told = lines.take()
            #expect(told.count == 1 && told[0].contains(#""variable":"TOKEN_BROKER_TLS_CLIENT_CA""#), "\(told)")
        }
        try FileManager.default.removeItem(atPath: authorities)
        #expect(await certificate.check() == .refused(.clientAuthorities(authorities)))
        time.advance(by: ListenerCertificate.longestUse)
        // New keys of tickets, for the authorities of before.
        #expect(await certificate.check() == .refused(.clientAuthorities(authorities)))
        #expect(count(certificate) == 2)
        try writeAuthorities(Array(repeating: clients.authority, count: most - 1))
        #expect(await certificate.check() == .reloaded)
        #expect(count(certificate) == most - 1)
        try writeAuthorities(Array(repeating: clients.authority, count: most))
        #expect(await certificate.check() == .reloaded)
        #expect(count(certificate) == most)
    }

    @Test(arguments: [(-1, ListenerCertificate.Finding.unchanged), (0, .reloaded), (1, .reloaded)])
    func `is read again after half a day, for new keys of tickets`(
        difference: Int, finding: ListenerCertificate.Finding
    ) async throws {
        try write(certificate: .good, key: .good)
        let certificate = try make()
        _ = lines.take()
        time.advance(by: ListenerCertificate.longestUse + .milliseconds(difference))
        #expect(await certificate.check() == finding)
        #expect(await certificate.check() == .unchanged)
        #expect(lines.take() == [])
    }

    /// A client that has made its handshake with the present certificate, and has a ticket.
    /// - Parameter earlier: a client whose session is to be resumed. It must be alive: OpenSSL forgets the session of a
    ///   connection that is let go of before its end.
    private func connect(
        to certificate: ListenerCertificate, resuming earlier: TLSSession? = nil
    ) throws -> TLSSession {
        let context = try TLSContext(roots: TrustedRoots(file: TLSTestCertificates.shared.root))
        let session = try earlier.map { try #require($0.resumableSession()) }
        let client = try #require(context.makeSession(for: PeerIdentity(host: "localhost"), resuming: session))
        let server = try #require(certificate.context.makeChannel())
        var isComplete = false
        for _ in 0..<4 where !isComplete {
            let isVerified = try client.handshake(pins: nil)
            let sent = client.takeOutput()
            if !sent.isEmpty { try server.receive(sent.span) }
            isComplete = server.handshake() == .complete && isVerified
            var records: [UInt8] = []
            server.takeOutput(into: &records)
            if !records.isEmpty { try client.receive(records.span) }
        }
        #expect(isComplete)
        // The ticket comes behind the handshake.
        var buffer = [UInt8](repeating: 0, count: 100)
        #expect(try client.decrypt(into: &buffer) == .needsInput)
        return client
    }

    @Test func `makes new keys of tickets after half a day, also while its files cannot be used`() async throws {
        try write(certificate: .good, key: .good)
        let certificate = try make()
        var client = try connect(to: certificate)
        #expect(!client.isResumed)
        for _ in 0..<2 {
            time.advance(by: ListenerCertificate.longestUse / 2)
            // Another content each time: a change does not put the new keys off.
            try Data("spoilt at \(time.now)".utf8).write(to: URL(filePath: files.certificate))
            #expect(await certificate.check() == .refused(.certificateFile(files.certificate)))
            client = try connect(to: certificate, resuming: client)
            #expect(client.isResumed)
            time.advance(by: ListenerCertificate.longestUse / 2)
            #expect(await certificate.check() == .refused(.certificateFile(files.certificate)))
            #expect(await certificate.check() == .unchanged)
            client = try connect(to: certificate, resuming: client)
            #expect(!client.isResumed)
            #expect(certificate.expires.description.hasPrefix("2099-01-01T00:00:00"))
        }
    }

    @Test func `is followed every five seconds, until the task ends`() async throws {
        try write(certificate: .expired, key: .expired)
        let certificate = try make()
        let following = Task { await certificate.follow() }
        await time.sleepers(of: [.exactly(ListenerCertificate.interval)])
        try write(certificate: .good, key: .good)
        let begun = time.sleepsBegun
        time.advance(by: .milliseconds(4999))
        #expect(certificate.expires.description.hasPrefix("2020-02-01"))
        time.advance(by: .milliseconds(1))
        await time.sleep(after: begun)
        #expect(certificate.expires.description.hasPrefix("2099-01-01"))
        following.cancel()
        await following.value
    }
}
