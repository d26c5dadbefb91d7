import CredentialStore
import Cryptography
import OAuth
import Testing

@testable import BrokerCore

@Suite struct `The record of an API key` {
    private func read(
        _ json: String, _ key: String = "id", tenant: TenantName = TenantName("acme")!
    ) -> CallerKey? {
        let id = RecordID(.apiKey, tenant, key: key)
        return try? CallerKey(OpenRecord(id: id, version: 7, content: SecretBytes(utf8: json)))
    }

    @Test(arguments: [
        (#"["a","b*"]"#, ["a", "b*"]), (#"["a",5,"b c","*",null]"#, ["a"]), (#"["a**"]"#, []), ("[]", []),
    ])
    func `with a pattern of another form is read as one for less`(patterns: String, read: [String]) {
        let key = self.read(#"{"name":"n","permissions":["login"],"created":1,"storage_keys":\#(patterns)}"#)
        #expect(key?.storageKeys?.patterns.map(\.description) == read)
    }

    @Test(
        arguments: [
            ("", 1, nil), (#","generation":2,"rotated":5,"earlier_expires":9"#, 2, 9),
            (#","generation":3,"rotated":5"#, 3, nil),
        ] as [(String, Int64, Int64?)])
    func `tells of the last rotation, and is written as it was read`(members: String, generation: Int64, end: Int64?) {
        let json = #"{"name":"n","permissions":["login"],"storage_keys":["a*"],"created":1\#(members)}"#
        for name in ["0123", "0123.earlier"] {
            let key = read(json, name)
            #expect(key?.id == "0123" && key?.version == 7)
            #expect(key?.secret.generation == generation)
            #expect(
                key?.earlierSecretExpires(at: Timestamp(milliseconds: 8)) == end.map { Timestamp(milliseconds: $0) })
            #expect(key?.earlierSecretExpires(at: Timestamp(milliseconds: 9)) == nil)
            #expect(key.map { String(decoding: $0.encoded, as: UTF8.self) } == json)
        }
    }

    @Test(arguments: [
        (#""identity":"dns:a.example""#, "dns:a.example"), (#""identity":"spiffe://e/a""#, "spiffe://e/a"),
        (#""name2":5"#, nil), (#""identity":"dns:*""#, "unreadable"), (#""identity":5"#, "unreadable"),
        (#""identity":null"#, "unreadable"), (#""identity":"later:a""#, "unreadable"),
    ])
    func `with an identity of another form is not read as one with a secret`(member: String, identity: String?) {
        let json = #"{"name":"n",\#(member),"permissions":["login"],"created":1}"#
        let key = read(json)
        #expect((key != nil) == (identity != "unreadable"))
        guard let key else { return }
        #expect(key.identity?.description == identity)
        if identity != nil { #expect(String(decoding: key.encoded, as: UTF8.self) == json) }
        #expect(key.with(key.secret, expires: nil, version: 8).identity == key.identity)
    }

    /// The member `tenants`, and what is read of it, with the secret and in a tenant; an empty text for what is not read.
    @Test(
        arguments: [
            (#","tenants":["a","b"]"#, "a b", "a b"), (#","tenants":["a"]"#, "a", "a"), ("", "", nil),
            (#","tenants":[]"#, "", ""), (#","tenants":["a","B"]"#, "", ""), (#","tenants":["a","-"]"#, "", ""),
            (#","tenants":["a",5]"#, "", ""), (#","tenants":"a""#, "", ""), (#","tenants":null"#, "", ""),
        ] as [(String, String, String?)])
    func `with tenants of another form is not read as one of one tenant`(member: String, secret: String, share: String?)
    {
        let json = #"{"name":"n","permissions":["login"]\#(member),"created":1}"#
        for (tenant, tenants) in [(TenantName.broker, secret), (TenantName("acme")!, share)] {
            let key = read(json, tenant: tenant)
            #expect((key != nil) == (tenants != ""))
            guard let key else { continue }
            #expect(key.tenants?.map(\.description).joined(separator: " ") == tenants)
            #expect(String(decoding: key.encoded, as: UTF8.self) == json)
            #expect(key.with(key.secret, expires: nil, version: 8).tenants == key.tenants)
            #expect(key.isWithoutTenant == (tenant == .broker))
        }
    }

    @Test(arguments: [
        (#""storage_keys":["a"]"#, true), (#""storage_keys":[]"#, true), (#""name":"n""#, true),
        (#""storage_keys":{"pattern":"a*"}"#, false), (#""storage_keys":"a""#, false), (#""storage_keys":null"#, false),
        (#""expires":5"#, true), (#""expires":"5""#, false), (#""expires":1.5"#, false), (#""expires":null"#, false),
    ])
    func `with a limit of another form is not read as one without a limit`(member: String, isRead: Bool) {
        let name = member.hasPrefix(#""name""#) ? "" : #""name":"n","#
        let key = read(#"{\#(name)"permissions":["login"],"created":1,\#(member)}"#)
        #expect((key != nil) == isRead)
        if isRead { #expect((key?.storageKeys != nil) == member.hasPrefix(#""storage_keys""#)) }
        if isRead { #expect((key?.expires != nil) == member.hasPrefix(#""expires""#)) }
    }
}
