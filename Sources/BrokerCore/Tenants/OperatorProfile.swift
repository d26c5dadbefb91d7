import CredentialStore
import Cryptography
package import ExternalText
package import JSON
package import OAuth

/// A provider's profile that an operator has put, as it was when it was read.
package struct OperatorProfile: Sendable {
    package let profile: ProviderPreset
    /// As the operator has put it.
    package let document: JSONValue
    package let version: Int64
    /// Whether it was deleted. Its record stays for a while, so that every tenant that has it is found.
    let isRemoved: Bool

    package var name: WireText { WireText(profile.name) }

    /// Throws `.damaged` where this build cannot read the record.
    init(_ record: OpenRecord) throws(StoreError) {
        guard let json = try? JSONValue(parsing: record.content.revealedBytes), let document = json["document"],
            let profile = ProviderPreset.stored(document)
        else { throw .damaged("the profile \(record.id.key) cannot be read by this version") }
        self.profile = profile
        self.document = document
        version = record.version
        isRemoved = json[Self.removedMember] != nil
    }

    static func id(_ name: WireText) -> RecordID { RecordID(.provider, .broker, key: name.text) }

    /// The content of a record, as JSON.
    static func content(_ document: JSONValue, isRemoved: Bool) -> [UInt8] {
        JSONWriter.object { json in
            json.member("document", document)
            if isRemoved { json.member(removedMember.text, true) }
        }
    }

    private static let removedMember: WireText = "removed"
}
