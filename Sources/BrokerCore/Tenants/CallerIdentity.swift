package import Cryptography
package import ExternalText
import HTTPSClient
import OAuth

/// Who a caller proves to be, in place of a secret that it was given: a name in its certificate, or the subject of a token that an
/// issuer of workloads' tokens has signed.
package struct CallerIdentity: Hashable, Sendable, CustomStringConvertible {
    /// As operators write it: `dns:service.example`, `spiffe://domain/path` or `jwt:https://issuer#subject`.
    private let written: WireText
    /// For the subject of a token, how many bytes of `written` behind `jwtPrefix` are the issuer's.
    private var issuerCount: Int?

    /// The longest text, in bytes.
    package static let longest = 2560
    /// What a text has to be.
    package static let rule =
        "must be dns: and a DNS name in lower case without a wildcard, or a SPIFFE ID with a path, such as "
        + "spiffe://example.org/service, or jwt: with an issuer, # and the subject of its tokens"
    /// The most identities of one certificate.
    package static let mostOfCertificate = 16
    /// The longest SPIFFE ID, in bytes (SPIFFE-ID §2.3), and the longest trust domain (§2.1).
    private static let longestSPIFFEID = 2048
    private static let longestTrustDomain = 255
    /// The longest issuer and the longest subject of a token, in bytes. The subject of a service account of Kubernetes has
    /// up to 339.
    package static let longestIssuer = 1024
    private static let longestSubject = 512

    /// Nil when `text` is no identity.
    package init?(_ text: WireText) {
        if text.starts(with: Self.dnsPrefix) {
            self.init(dnsName: Array(text.utf8.dropFirst(Self.dnsPrefix.count)))
            // A text in upper case names the same service, and would be shown otherwise than it was given.
            guard written == text else { return nil }
        } else if text.starts(with: Self.jwtPrefix) {
            let parts = text.dropping(Self.jwtPrefix.count).split(at: "#", limit: 2)
            guard parts.count == 2 else { return nil }
            self.init(issuer: parts[0], subject: parts[1])
        } else {
            self.init(spiffeID: Array(text.utf8))
        }
    }

    private static let dnsPrefix: WireText = "dns:"
    private static let spiffePrefix: WireText = "spiffe://"
    private static let jwtPrefix: WireText = "jwt:"

    package var description: String { written.text }

    /// The digest by which an API key with this identity is found.
    ///
    /// It is that of a text which begins with a NUL. No secret does, since a bearer token has none, so that no secret has this
    /// digest. The text of a token's subject has the length of the issuer before it, so that no two pairs have the same one.
    package var digest: SHA256.Words {
        var canonical: [UInt8] = [0]
        if let issuerCount {
            let pair = written.utf8.dropFirst(Self.jwtPrefix.count)
            canonical += Self.jwtPrefix.utf8
            canonical += "\(issuerCount):".utf8
            canonical += pair.prefix(issuerCount)
            canonical += pair.dropFirst(issuerCount + 1)
        } else {
            canonical += written.utf8
        }
        return SHA256.words(canonical.span)
    }

    // MARK: Subjects of tokens

    /// Nil for an issuer that is no address without a query and a fragment, or is longer than `longestIssuer`, and for a subject
    /// that is empty, too long, or has other characters than the printable ones of ASCII.
    package init?(issuer: WireText, subject: WireText) {
        guard Self.isIssuer(issuer), (1...Self.longestSubject).contains(subject.count),
            subject.utf8.allSatisfy({ (0x20...0x7e).contains($0) })
        else { return nil }
        written = WireText("\(Self.jwtPrefix)\(issuer)#\(subject)")
        issuerCount = issuer.count
    }

    /// Whether a text can be the issuer of tokens: the address of https, or in development of http, without a query and a
    /// fragment (OpenID Connect Core §2).
    package static func isIssuer(_ text: WireText) -> Bool {
        text.count <= longestIssuer && text.utf8.allSatisfy { (0x21...0x7e).contains($0) } && !text.contains("?")
            && !text.contains("#") && (text.starts(with: "https://") || text.starts(with: "http://"))
            && URLTarget(text.text) != nil
    }

    // MARK: Names in certificates

    /// The identities that the alternative names of a certificate stand for, those that count first first: the SPIFFE ID, then
    /// the DNS names in their order. Names of another form are left out, and so are those beyond `mostOfCertificate`. A
    /// certificate with a SPIFFE ID must have no other URI (X509-SVID §2), or it has no identity.
    /// - Parameters:
    ///   - uris: as they stand in the certificate. They may have any bytes.
    ///   - dnsNames: likewise.
    package static func all(uris: [[UInt8]], dnsNames: [[UInt8]]) -> [CallerIdentity] {
        var found: [CallerIdentity] = []
        if uris.contains(where: hasSPIFFEScheme) {
            guard uris.count == 1, let identity = CallerIdentity(spiffeID: uris[0]) else { return [] }
            found.append(identity)
        }
        for name in dnsNames where found.count < mostOfCertificate {
            if let identity = CallerIdentity(dnsName: name), !found.contains(identity) { found.append(identity) }
        }
        return found
    }

    /// Schemes have no case (RFC 3986 §3.1). A SPIFFE ID in another case is malformed, and no other URI.
    private static func hasSPIFFEScheme(_ uri: [UInt8]) -> Bool {
        WireText(Array(uri.prefix(7))).equalsIgnoringCase("spiffe:")
    }

    /// Nil for what is no host name (RFC 1123 §2.1). Upper case is read as lower case (RFC 4343).
    private init?(dnsName: [UInt8]) {
        guard (1...253).contains(dnsName.count) else { return nil }
        let name = dnsName.map { (UInt8(ascii: "A")...UInt8(ascii: "Z")).contains($0) ? $0 | 0x20 : $0 }
        let labels = name.split(separator: UInt8(ascii: "."), omittingEmptySubsequences: false)
        let hyphen = UInt8(ascii: "-")
        for label in labels {
            guard (1...63).contains(label.count), label.first != hyphen, label.last != hyphen,
                label.allSatisfy({ $0.isLowercaseLetter || $0.isDigit || $0 == hyphen })
            else { return nil }
        }
        // An address is no name.
        guard labels.last.map({ !$0.allSatisfy(\.isDigit) }) ?? false else { return nil }
        written = WireText(Array(Self.dnsPrefix.utf8) + name)
    }

    /// Nil for what is no SPIFFE ID of a workload (SPIFFE-ID §2): `spiffe://`, a trust domain, and a path.
    private init?(spiffeID: [UInt8]) {
        let prefix = Self.spiffePrefix.utf8
        guard spiffeID.count <= Self.longestSPIFFEID, spiffeID.starts(with: prefix) else { return nil }
        let parts = spiffeID[prefix.count...].split(separator: UInt8(ascii: "/"), omittingEmptySubsequences: false)
        let (domain, segments) = (parts[0], parts.dropFirst())
        guard (1...Self.longestTrustDomain).contains(domain.count), !segments.isEmpty,
            domain.allSatisfy({ $0.isLowercaseLetter || $0.isDigit || Self.isMark($0) })
        else { return nil }
        for segment in segments {
            let isRelative = segment.count <= 2 && segment.allSatisfy { $0 == UInt8(ascii: ".") }
            guard !isRelative, segment.allSatisfy({ Self.isLetter($0) || $0.isDigit || Self.isMark($0) }) else {
                return nil
            }
        }
        written = WireText(spiffeID)
    }

    private static func isLetter(_ byte: UInt8) -> Bool { (byte | 0x20).isLowercaseLetter }

    private static func isMark(_ byte: UInt8) -> Bool {
        byte == UInt8(ascii: ".") || byte == UInt8(ascii: "-") || byte == UInt8(ascii: "_")
    }
}
