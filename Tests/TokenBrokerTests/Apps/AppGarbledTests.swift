import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing

/// Refresh tokens of apps that were altered on their way.
@Suite struct `Garbled tokens of apps` {
    private static let tenant = TenantName("t1")!

    private static func broker() async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.makeClient()
        return broker
    }

    /// The ways in which a token is garbled.
    enum Garbling: String, CaseIterable, Sendable {
        case generation, random, code, lastOctet, lastCharacter, handle, shorter, longer

        func apply(to token: String) -> String {
            var bytes = Array(token.utf8)
            let secret = bytes.firstIndex(of: UInt8(ascii: "."))! + 1
            switch self {
            case .generation: Self.alter(&bytes[secret + 4])
            case .random: Self.alter(&bytes[secret + 12])
            case .code: Self.alter(&bytes[secret + 30])
            case .lastOctet: Self.alter(&bytes[bytes.count - 2])
            // The last character has two bits that mean nothing: another spelling of the same octets.
            case .lastCharacter:
                let alphabet = Array("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_".utf8)
                bytes[bytes.count - 1] = alphabet[alphabet.firstIndex(of: bytes[bytes.count - 1])! ^ 1]
            case .handle: Self.alter(&bytes[40])
            case .shorter: bytes.removeLast()
            case .longer: bytes.append(UInt8(ascii: "A"))
            }
            return String(decoding: bytes, as: UTF8.self)
        }

        private static func alter(_ character: inout UInt8) {
            character = character == UInt8(ascii: "A") ? UInt8(ascii: "B") : UInt8(ascii: "A")
        }
    }

    @Test(arguments: Garbling.allCases)
    func `a garbled token is refused at the token endpoint, and the session goes on`(_ garbling: Garbling) async throws
    {
        let broker = try await Self.broker()
        let first = await broker.appSession()
        let token = try #require(await broker.refresh(first).json["refresh_token"]?.text)
        broker.time.advance(by: .seconds(60))
        for genuine in [token, first] {
            let garbled = garbling.apply(to: genuine)
            #expect(garbled != genuine)
            let answer = await broker.refresh(garbled)
            #expect((answer.status, answer.json["error"]?.text) == (400, "invalid_grant"))
        }
        #expect(await broker.refresh(token).status == 200)
        #expect(try await broker.events(named: "session.ended", of: Self.tenant).isEmpty)
    }

    @Test(arguments: Garbling.allCases)
    func `a garbled token is answered 200 at the revocation endpoint, and the session goes on`(
        _ garbling: Garbling
    ) async throws {
        let broker = try await Self.broker()
        let token = await broker.appSession()
        let answer = await broker.app("/oauth2/revoke", [("client_id", "app"), ("token", garbling.apply(to: token))])
        #expect(answer.status == 200)
        #expect(await broker.refresh(token).status == 200)
        #expect(try await broker.events(named: "session.ended", of: Self.tenant).isEmpty)
    }

    @Test(arguments: [true, false])
    func `the token at hand and one that it has replaced end their session at the revocation endpoint`(
        isPresent: Bool
    ) async throws {
        let broker = try await Self.broker()
        let first = await broker.appSession()
        let second = try #require(await broker.refresh(first).json["refresh_token"]?.text)
        _ = await broker.app("/oauth2/revoke", [("client_id", "app"), ("token", isPresent ? second : first)])
        #expect(await broker.refresh(second).status == 400)
        let causes = try await broker.events(named: "session.ended", of: Self.tenant).map { $0["cause"]?.text }
        #expect(causes == ["revoked"])
    }

    @Test func `a garbled token lets no app in, and the session goes on`() async throws {
        let broker = try await Self.broker()
        await broker.makeClient(
            "app", of: "t1",
            #"""
            {"redirect_uris": ["https://app.example/cb"], "storage_key": "default", "x_app2app_enabled": true}
            """#)
        let token = await broker.appSession()
        let answer = await broker.app(
            "/oauth2/token",
            [
                ("grant_type", "urn:authgear:params:oauth:grant-type:app2app"), ("client_id", "app"), ("jwt", "x"),
                ("refresh_token", Garbling.code.apply(to: token)), ("redirect_uri", BrokerHarness.appRedirect),
                ("code_challenge", BrokerHarness.appChallenge), ("code_challenge_method", "S256"),
            ])
        #expect((answer.status, answer.json["error"]?.text) == (400, "invalid_grant"))
        #expect(await broker.refresh(token).status == 200)
    }

    /// A token as builds issued it that had no authentication code: its secret is random to the end.
    private static func issueWithoutCode(_ broker: BrokerHarness) async throws -> String {
        let token = await broker.appSession()
        let handle = String(token.prefix { $0 != "." })
        let secret = try SecureRandom.bytes(32)
        let sealed = try #require(try await broker.store.list(.session, tenant: tenant, after: nil, limit: 1).first)
        let open = try broker.vault.open(sealed)
        let json = try JSONValue(parsing: open.content.revealedBytes)
        let known = try #require(json["secret_digest"]?.text)
        let digest = Base64URL.encode(SHA256.digest(secret))
        let changed = open.content.revealedText.replacing(known, with: digest)
        try await broker.vault.commit([
            .replace(
                OpenRecord(
                    id: open.id, version: open.version + 1, content: SecretBytes(utf8: changed), lookup: open.lookup,
                    expires: open.expires, due: open.due), version: open.version)
        ])
        broker.time.advance(by: .seconds(120))
        return "\(handle).\(Base64URL.encode(secret))"
    }

    @Test
    func `a token of a build without authentication codes goes on, and one like it that was never issued ends nothing`()
        async throws
    {
        let broker = try await Self.broker()
        let old = try await Self.issueWithoutCode(broker)
        let other = Base64URL.encode(try SecureRandom.bytes(32))
        let invented = "\(old.prefix { $0 != "." }).\(other)"
        #expect(await broker.refresh(invented).status == 400)
        let next = try #require(await broker.refresh(old).json["refresh_token"]?.text)
        #expect(await broker.refresh(invented).status == 400)
        #expect(await broker.refresh(next).status == 200)
    }

    @Test
    func `a token of a build without authentication codes ends its session when it comes again after it was replaced`()
        async throws
    {
        let broker = try await Self.broker()
        let old = try await Self.issueWithoutCode(broker)
        let next = try #require(await broker.refresh(old).json["refresh_token"]?.text)
        broker.time.advance(by: .seconds(11))
        #expect(await broker.refresh(old).status == 400)
        #expect(await broker.refresh(next).status == 400)
        let causes = try await broker.events(named: "session.ended", of: Self.tenant).map { $0["cause"]?.text }
        #expect(causes == ["replay"])
    }

    @Test
    func
        `a token that was issued under a master key which is not the first any more ends its session when it is replayed`()
        async throws
    {
        let store = MemoryRecordStore()
        let time = ManualTime()
        let one = try await BrokerHarness(store: store, time: time)
        await one.makeTenant()
        await one.makeClient()
        let first = await one.appSession()
        var token = first
        for _ in 0..<20 { token = await one.refresh(token).json["refresh_token"]?.text ?? "" }
        time.advance(by: .seconds(120))
        let keys = try Keyring.generate(id: "k2") + "," + BrokerHarness.masterKeys
        let two = try await BrokerHarness(store: store, time: time, masterKeys: keys)
        token = try #require(await two.refresh(token).json["refresh_token"]?.text)
        #expect(await two.refresh(first).status == 400)
        #expect(await two.refresh(token).status == 400)
    }
}
