internal import ExternalText
internal import HTTPCodec
internal import HTTPSClient
internal import OAuth

/// Describes, for operators and callers, an answer of a provider that should have been a JSON document. The text has the status,
/// the media type and the origin of a redirection, and nothing else that the provider wrote.
enum ReceivedAnswer {
    private static let longestText = 100

    /// - Parameter missing: what the JSON document lacks.
    /// - Returns: a clause that continues the sentence after the address: "answered with status 404".
    static func words(_ response: ClientResponse, to client: ClientConfiguration, lacking missing: String) -> String {
        let status = "answered with status \(response.status.code)"
        if (300..<400).contains(response.status.code) {
            let target = origin(of: response.fields["Location"], client).map { " to \($0)" } ?? ""
            return status + ", a redirect\(target), and the broker follows none"
        }
        guard response.status == .ok else { return status }
        guard let type = mediaType(response.fields["Content-Type"], client) else {
            return status + " and without a usable Content-Type, and the content \(missing)"
        }
        let isPage = ["text/html", "application/xhtml+xml"].contains(type)
        return status + (isPage ? " and a page (\(type))" : " and \(type), and the content \(missing)")
    }

    /// The origin of a redirection; nil where there is none, where it is on the same host, and where it may not be shown.
    private static func origin(of location: WireText?, _ client: ClientConfiguration) -> String? {
        guard let location else { return nil }
        // The text after `#` is not part of the origin.
        guard let target = URLTarget(location.split(at: "#", limit: 2)[0].text) else { return nil }
        let origin = "\(target.scheme.rawValue)://\(target.origin.authority)"
        return mayBeRepeated(WireText(origin), client) ? origin : nil
    }

    private static func mediaType(_ field: WireText?, _ client: ClientConfiguration) -> String? {
        guard let type = field?.split(at: ";", limit: 2)[0].trimmed.lowercased, mayBeRepeated(type, client) else {
            return nil
        }
        let parts = type.split(at: "/", limit: 2)
        let isType = parts.count == 2 && parts.allSatisfy { !$0.utf8.isEmpty && $0.utf8.allSatisfy(isNameByte) }
        return isType ? type.text : nil
    }

    /// RFC 6838 §4.2.
    private static func isNameByte(_ byte: UInt8) -> Bool {
        switch byte {
        case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "0")...UInt8(ascii: "9"): true
        case UInt8(ascii: "."), UInt8(ascii: "+"), UInt8(ascii: "-"), UInt8(ascii: "_"): true
        default: false
        }
    }

    private static func mayBeRepeated(_ text: WireText, _ client: ClientConfiguration) -> Bool {
        text.count <= longestText && !SentSecrets([client.clientSecret].compactMap(\.self)).areRepeated(in: text)
    }
}
