import BrokerCore
import CredentialStore
import Cryptography
import ExternalText
import OAuth

/// What is read of the content of sealed records, once they are open. Builds before and after this one have written some of
/// them, and what is in them came from callers and providers.
enum RecordReaders {
    private static let tenant = TenantName("acme") ?? .broker

    /// The first octet says which kind of record the rest is of.
    static func read(_ bytes: [UInt8]) {
        guard let first = bytes.first else { return }
        let reader = readers[Int(first) % readers.count]
        let content = Array(bytes.dropFirst())
        guard let written = reader(content) else { return }
        let again = reader(written)
        require(
            again == written,
            "\(first): \(WireText(written).text) became \(again.map { WireText($0).text } ?? "nothing")")
    }

    /// Each reads content, and returns what this build writes for it; nil where it does not read it.
    private static let readers: [@Sendable ([UInt8]) -> [UInt8]?] = [
        { CredentialRecord(decoding: $0)?.encoded },
        { QuarantinedCredentials(decoding: $0)?.encoded },
        { RenewalTrouble(decoding: $0)?.encoded },
        { PendingRevocation(decoding: $0)?.encoded },
        { UnsettledCode(decoding: $0)?.encoded },
        { TenantConfiguration(decoding: $0)?.encoded },
        { content in (try? CallerKey(record(.apiKey, content)))?.encoded },
        { content in (try? AppClient(record(.client, content)))?.encoded },
        { content in
            (try? AppSession(record(.session, content)))?.record(end: .latest).content.revealedBytes
        },
        { content in
            let id = RecordID(.code, tenant, key: "code")
            return (try? AppCode(record(.code, content)))?.record(id, version: 1).content.revealedBytes
        },
        { content in
            (try? BiometricKey(record(.biometricKey, content)))?.record(tenant, version: 1).content.revealedBytes
        },
        { content in
            let before = record(.login, content)
            return (try? PendingLogin(before))?.record(replacing: before).content.revealedBytes
        },
        { content in
            let before = record(.device, content)
            return (try? PendingDeviceLogin(before))?.record(replacing: before).content.revealedBytes
        },
        { content in JournalEntry(record(.unpublished, content))?.encoded },
        { content in
            let change = PendingSessionEnding(record(.sessionEnding, content))?.insertion(in: tenant, version: 1)
            guard case .insert(let record)? = change else { return nil }
            return record.content.revealedBytes
        },
    ]

    private static func record(_ kind: RecordKind, _ content: [UInt8]) -> OpenRecord {
        OpenRecord(id: RecordID(kind, tenant, key: "key"), version: 1, content: SecretBytes(content))
    }
}
