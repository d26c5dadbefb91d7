import ExternalText
import HTTPCodec
import HTTPSClient
import OAuth

/// Describes, for operators and callers, an answer of a provider that should have been a JSON document. The text has the status,
/// the media type and the origin of a redirection, and nothing else that the provider wrote.
enum ReceivedAnswer {
    private static let longestText = 100

    /// - Parameter missing: what the JSON document lacks.
    /// - Returns: a clause that continues the sentence after the address: "answered with status 404".
    static func words(_ response: ClientResponse, to client: ClientConfiguration, lacking missing: String) -> String {
        let status = "answered with status \(response.status.code)"
        let secrets = SentSecrets(client.secrets)
        if let redirect = redirect(response, answering: secrets) { return redirect }
        guard response.status == .ok else { return status }
        guard let type = mediaType(response.fields["Content-Type"], secrets) else {
            return status + " and without a usable Content-Type, and the content \(missing)"
        }
        let isPage = ["text/html", "application/xhtml+xml"].contains(type)
        return status + (isPage ? " and a page (\(type))" : " and \(type), and the content \(missing)")
    }

    /// The same clause for a redirect; nil for another answer.
    static func redirect(_ response: ClientResponse, answering sent: SentSecrets) -> String? {
        guard (300..<400).contains(response.status.code) else { return nil }
        let target = origin(of: response.fields["Location"], sent).map { " to \($0)" } ?? ""
        return "answered with status \(response.status.code), a redirect\(target), and the broker follows none"
    }

    /// The origin of a redirection; nil where there is none, where it is on the same host, and where it may not be shown.
    private static func origin(of location: WireText?, _ sent: SentSecrets) -> String? {
        guard let location else { return nil }
        // The text after `#` is not part of the origin.
        guard let target = URLTarget(location.split(at: "#", limit: 2)[0].text) else { return nil }
        let origin = "\(target.scheme.rawValue)://\(target.origin.authority)"
        return mayBeRepeated(WireText(origin), sent) ? origin : nil
    }

    private static func mediaType(_ field: WireText?, _ sent: SentSecrets) -> String? {
        guard let type = field?.split(at: ";", limit: 2)[0].trimmed.lowercased, mayBeRepeated(type, sent) else {
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

    private static func mayBeRepeated(_ text: WireText, _ sent: SentSecrets) -> Bool {
        text.count <= longestText && !sent.areRepeated(in: text)
    }
}
