package import Cryptography
package import ExternalText
import HTTPCodec

/// The secrets of a request to a provider. An error code in which the provider repeats one of them must not be shown to
/// callers, operators or browsers.
package struct SentSecrets: Sendable {
    /// Each secret in the encodings in which it could be repeated.
    private let forms: [[UInt8]]

    /// A text that shares this many consecutive bytes with a longer secret counts as repeating it.
    private static let shortestRun = 12

    /// The parameters that are not secret. All other parameters count as secrets.
    private static let publicNames: Set<WireText> = [
        "grant_type", "redirect_uri", "scope", "client_id", "client_unique_key", "token_type_hint",
        "client_assertion_type",
    ]

    /// For a request without secrets.
    package static let none = SentSecrets([[UInt8]]())

    package init(_ secrets: [[UInt8]]) {
        forms = secrets.filter { !$0.isEmpty }
            .flatMap { secret in
                [
                    secret, Array(FormEncoding.percentEncode(String(decoding: secret, as: UTF8.self)).utf8),
                    // The two base64 alphabets do not differ in the characters that `ErrorText` permits.
                    Array(Base64URL.encode(secret).utf8),
                ]
            }
    }

    package init(_ secrets: [SecretBytes]) {
        self.init(secrets.map(\.revealedBytes))
    }

    /// The secrets of a form and of the header that was sent with it.
    /// - Parameter authorization: the value of the request's `Authorization`; nil without that field.
    package init(form: [UInt8], authorization: WireText?) {
        let pairs = (try? FormEncoding.decode(form.span)) ?? []
        var secrets = pairs.filter { !Self.publicNames.contains($0.name) }.map { Array($0.value.utf8) }
        if let credentials = authorization?.split(at: " ", limit: 2).last {
            secrets.append(Array(credentials.utf8.prefix { $0 != UInt8(ascii: "=") }))
            // RFC 7617 §2 with RFC 6749 §2.3.1: the percent-encoded secret follows the first colon.
            if let decoded = Base64.decode(credentials.text) {
                let encoded = Array(decoded.drop { $0 != UInt8(ascii: ":") }.dropFirst())
                secrets.append(encoded)
                if let secret = try? FormEncoding.percentDecode(encoded.span, plusIsSpace: true) {
                    secrets.append(Array(secret.utf8))
                }
            }
        }
        self.init(secrets)
    }

    /// Whether the text contains a secret in one of its encodings, or twelve consecutive bytes of a longer secret. The
    /// time is proportional to the length of the secrets.
    package func areRepeated(in text: WireText) -> Bool {
        let text = Array(text.utf8)
        let runs = Set(Self.runs(of: text))
        return forms.contains { form in
            if form.count > Self.shortestRun { return Self.runs(of: form).contains(where: runs.contains) }
            return text.indices.contains { text[$0...].starts(with: form) }
        }
    }

    /// Each run of `shortestRun` consecutive bytes, as a number.
    private static func runs(of bytes: [UInt8]) -> [UInt128] {
        let mask = UInt128.max >> UInt128(128 - 8 * shortestRun)
        var runs: [UInt128] = []
        var run: UInt128 = 0
        for (index, byte) in bytes.enumerated() {
            run = (run << 8 | UInt128(byte)) & mask
            if index + 1 >= shortestRun { runs.append(run) }
        }
        return runs
    }
}
