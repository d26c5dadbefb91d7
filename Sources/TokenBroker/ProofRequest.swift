import BrokerCore
import Cryptography
import ExternalText
import HTTPCodec
import JSON
import OAuth

/// A caller's wish for a proof of the key that its token is bound to (RFC 9449 §7): the request to the API that the proof is for, in
/// the fields `DPoP-Htm` and `DPoP-Htu`, and `DPoP-Nonce` where the API has sent a nonce.
struct ProofRequest {
    private let method: WireText
    private let uri: WireText
    private let nonce: WireText?

    /// The longest method, in bytes.
    private static let longestMethod = 32
    /// The longest address, in bytes.
    private static let longestURI = 4096

    /// - Returns: nil where no proof is asked for. A nonce alone asks for none.
    /// - Throws: `invalid_request` for one of the two fields alone, and for values that no proof can have.
    init?(_ fields: Fields) throws(BrokerError) {
        let method = try Self.value("DPoP-Htm", fields)
        let uri = try Self.value("DPoP-Htu", fields)
        let nonce = try Self.value("DPoP-Nonce", fields)
        if let nonce, !DPoPProof.isNonce(nonce) {
            throw BrokerError(
                .invalidRequest,
                "DPoP-Nonce must have 1 to \(DPoPKey.longestNonce) visible ASCII characters without quote and backslash."
            )
        }
        if method == nil, uri == nil { return nil }
        guard let method, let uri else {
            throw BrokerError(.invalidRequest, "DPoP-Htm and DPoP-Htu ask for a proof together: send both or none.")
        }
        guard (1...Self.longestMethod).contains(method.count), method.utf8.allSatisfy(Self.isOfToken) else {
            throw BrokerError(
                .invalidRequest, "DPoP-Htm must be the method of a request, of 1 to \(Self.longestMethod) bytes.")
        }
        guard Self.isAddress(uri) else {
            throw BrokerError(
                .invalidRequest,
                "DPoP-Htu must be an absolute http or https URI without user information, of at most \(Self.longestURI) bytes."
            )
        }
        self.method = method
        self.uri = uri
        self.nonce = nonce
    }

    /// A proof for the access token; nil for one that is bound to no key, and for none.
    /// - Throws: `internal_error` where the key cannot sign.
    func proof(for held: HeldCredentials?, at now: Timestamp) throws(BrokerError) -> WireText? {
        try held?.proof(for: method.text, uri, nonce: nonce, at: now)
    }

    /// An answer of `GET /credentials` with the proof as its last member.
    static func adding(_ proof: WireText, to body: [UInt8]) -> [UInt8] {
        body.dropLast() + [UInt8(ascii: ",")] + JSONWriter.object { $0.member("dpop", proof.text) }.dropFirst()
    }

    private static func value(_ name: String, _ fields: Fields) throws(BrokerError) -> WireText? {
        let values = fields.values(name)
        guard values.count <= 1 else { throw BrokerError(.invalidRequest, "\(name) occurs more than once.") }
        return values.first
    }

    /// RFC 9110 §5.6.2.
    private static func isOfToken(_ byte: UInt8) -> Bool {
        byte.isLowercaseLetter || byte.isUppercaseLetter || byte.isDigit || "!#$%&'*+-.^_`|~".utf8.contains(byte)
    }

    private static func isAddress(_ uri: WireText) -> Bool {
        guard uri.count <= longestURI, uri.utf8.allSatisfy({ $0 > 0x20 && $0 < 0x7f }) else { return false }
        let parts = uri.split(at: ":", limit: 2)
        guard parts.count == 2, parts[0].equalsIgnoringCase("https") || parts[0].equalsIgnoringCase("http"),
            parts[1].starts(with: "//")
        else { return false }
        let authority = parts[1].utf8.dropFirst(2).prefix { !"/?#".utf8.contains($0) }
        return !authority.isEmpty && authority.first != UInt8(ascii: ":") && !authority.contains(UInt8(ascii: "@"))
    }
}
