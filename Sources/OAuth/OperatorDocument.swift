import Containers
package import ExternalText
package import JSON
import Synchronization

/// Profiles that operators put while the broker runs, beside those that it carries.
extension ProviderPreset {
    /// The longest document of an operator's profile, as JSON without spaces, in bytes. Each tenant that uses the profile has
    /// it in its record.
    package static let longestDocument = 16_384

    /// Whether a profile may have this name: 1 to 63 of `a-z`, `0-9` and hyphen, with no hyphen first.
    package static func isName(_ name: WireText) -> Bool {
        (1...63).contains(name.count) && !name.starts(with: "-")
            && name.utf8.allSatisfy { $0.isLowercaseLetter || $0.isDigit || $0 == UInt8(ascii: "-") }
    }

    /// Reads the document that an operator puts, with all that the shipped files are held to when the program is built; what only
    /// people read of those may be left out.
    /// - Parameters:
    ///   - allowsHTTP: whether the broker may call addresses with `http://`.
    ///   - faults: gets what is wrong with it.
    /// - Returns: nil where there is a fault.
    package static func reading(
        _ document: JSONValue, allowsHTTP: Bool, _ faults: inout FaultList
    ) -> ProviderPreset? {
        let bytes = text(document)
        var reader = ObjectReader(document)
        // Before the profile is made, since the name of one without faults is kept.
        reader.add(ProfileRules.faults(of: document, allowsHTTP: allowsHTTP))
        let profile = ProviderPreset(&reader, document: bytes)
        reader.refuseUnknown()
        var places: Set<WireText> = []
        for fault in reader.faults.told where places.insert(WireText(fault.pointer)).inserted { faults.add(fault) }
        return reader.faultCount == 0 ? kept(profile, bytes) : nil
    }

    /// Reads a document that was stored. What a later build asks for does not apply to it.
    /// - Returns: nil where this build cannot read it.
    package static func stored(_ document: JSONValue) -> ProviderPreset? {
        let bytes = text(document)
        if let known = read.withLock({ $0[bytes] }) { return known }
        var reader = ObjectReader(document)
        let profile = ProviderPreset(&reader, document: bytes)
        reader.refuseUnknown()
        return reader.faultCount == 0 ? kept(profile, bytes) : nil
    }

    /// The text of a document: the same for documents that say the same.
    private static func text(_ document: JSONValue) -> [UInt8] {
        var json = JSONWriter()
        json.value(document)
        return json.bytes
    }

    /// Those that were read lately, by their documents: tenants that use one share one object.
    private static let read = Mutex(BoundedTable<[UInt8], ProviderPreset>(capacity: 512))

    private static func kept(_ profile: ProviderPreset, _ bytes: [UInt8]) -> ProviderPreset {
        read.withLock { read in
            if let known = read[bytes] { return known }
            read.setNewest(profile, forKey: bytes)
            return profile
        }
    }
}
