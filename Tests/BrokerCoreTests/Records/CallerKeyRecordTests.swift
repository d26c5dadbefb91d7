import CredentialStore
import Cryptography
import OAuth
import Testing

@testable import BrokerCore

@Suite struct `The record of an API key` {
    private func read(_ json: String) -> CallerKey? {
        let id = RecordID(.apiKey, TenantName("acme")!, key: "id")
        return try? CallerKey(OpenRecord(id: id, version: 1, content: SecretBytes(utf8: json)))
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
