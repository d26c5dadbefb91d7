internal import CResources
internal import ExternalText
package import JSON
internal import Synchronization

/// The profiles that the program carries. One is read when it is first asked for, so that those which no tenant uses cost nothing.
package enum ShippedProfiles {
    /// The names, in their order.
    package static let names: [String] = (0..<cresources_profile_count()).map {
        unsafe String(cString: cresources_profiles()[$0].name)
    }

    /// The document of a profile; nil for a name that is not shipped.
    package static func document(_ name: String) -> JSONValue? {
        guard let index = names.firstIndex(of: name) else { return nil }
        // A table of constants.
        let profile = unsafe cresources_profiles()[index]
        let bytes = unsafe [UInt8](UnsafeBufferPointer(start: profile.bytes, count: profile.size))
        return try? JSONValue(parsing: bytes)
    }

    /// Those that were asked for, by name.
    private static let read = Mutex<[String: ProviderPreset]>([:])

    /// The profile of that name; nil for a name that is not shipped.
    static func named(_ name: WireText) -> ProviderPreset? {
        if let known = read.withLock({ $0[name.text] }) { return known }
        guard let document = document(name.text) else { return nil }
        var reader = ObjectReader(document)
        let profile = ProviderPreset(&reader)
        reader.refuseUnknown()
        // The tests read all of them.
        precondition(reader.faultCount == 0, "the profile \(name.text) has faults: \(reader.faults.told)")
        return read.withLock { read in
            if let other = read[name.text] { return other }
            read[name.text] = profile
            return profile
        }
    }
}
