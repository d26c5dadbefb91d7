import CResources
package import ExternalText
package import JSON
import Synchronization

/// The profiles that the program carries. One is read when it is first asked for, so that those which no tenant uses cost nothing.
package enum ShippedProfiles {
    /// The names, in their order.
    package static let names: [String] = (0..<cresources_profile_count()).map {
        unsafe String(cString: cresources_profiles()[$0].name)
    }

    private static let indices = Dictionary(
        uniqueKeysWithValues: names.enumerated().map { (WireText($0.element), $0.offset) })

    /// The longest name, in bytes.
    private static let longestName = 63

    /// The document of a profile; nil for a name that is not shipped.
    package static func document(_ name: WireText) -> JSONValue? {
        guard name.count <= longestName, let index = indices[name] else { return nil }
        // A table of constants.
        let profile = unsafe cresources_profiles()[index]
        let bytes = unsafe [UInt8](UnsafeBufferPointer(start: profile.bytes, count: profile.size))
        return try? JSONValue(parsing: bytes)
    }

    /// Those that were asked for, by name.
    private static let read = Mutex<[WireText: ProviderPreset]>([:])

    /// The profile of that name; nil for a name that is not shipped.
    static func named(_ name: WireText) -> ProviderPreset? {
        guard name.count <= longestName else { return nil }
        if let known = read.withLock({ $0[name] }) { return known }
        guard let document = document(name) else { return nil }
        var reader = ObjectReader(document)
        let profile = ProviderPreset(&reader)
        reader.refuseUnknown()
        // The tests read all of them.
        precondition(reader.faultCount == 0, "the profile \(name.text) has faults: \(reader.faults.told)")
        return read.withLock { read in
            if let other = read[name] { return other }
            read[name] = profile
            return profile
        }
    }
}
