package import Cryptography
package import ExternalText
internal import HTTPCodec

/// The secrets of a request. What its receiver repeats of them in an error's name is not shown to callers, operators and
/// browsers, none of whom may have them.
package struct SentSecrets: Sendable {
    /// Each secret in the forms in which it could be repeated.
    private let forms: [[UInt8]]

    /// Runs of that many bytes are enough to be told as a part of a longer secret.
    private static let shortestRun = 12

    /// What a request has besides its secrets. A parameter that is not among them counts as a secret.
    private static let publicNames: Set<WireText> = [
        "grant_type", "redirect_uri", "scope", "client_id", "client_unique_key", "token_type_hint",
    ]

    /// Those of a request without any.
    package static let none = SentSecrets([[UInt8]]())

    package init(_ secrets: [[UInt8]]) {
        forms = secrets.filter { !$0.isEmpty }
            .flatMap { secret in
                [
                    secret, Array(FormEncoding.percentEncode(String(decoding: secret, as: UTF8.self)).utf8),
                    // The other base64 alphabet is the same in all that `ErrorText` lets pass.
                    Array(Base64URL.encode(secret).utf8),
                ]
            }
    }

    package init(_ secrets: [SecretBytes]) {
        self.init(secrets.map(\.revealedBytes))
    }

    /// Those of a form that was sent.
    /// - Parameter authorization: the value of the request's `Authorization`.
    package init(form: [UInt8], authorization: WireText?) {
        let pairs = (try? FormEncoding.decode(form.span)) ?? []
        var secrets = pairs.filter { !Self.publicNames.contains($0.name) }.map { Array($0.value.utf8) }
        if let credentials = authorization?.split(at: " ", limit: 2).last {
            secrets.append(Array(credentials.utf8.prefix { $0 != UInt8(ascii: "=") }))
            // RFC 7617 §2 with RFC 6749 §2.3.1: the secret is what stands behind the first colon, percent-encoded.
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

    /// Whether the text has a secret in it, in any of its forms, or of a long one any twelve bytes in a row. Takes time in
    /// proportion to the secrets' length.
    package func areRepeated(in text: WireText) -> Bool {
        let text = Array(text.utf8)
        let runs = Set(Self.runs(of: text))
        return forms.contains { form in
            if form.count > Self.shortestRun { return Self.runs(of: form).contains(where: runs.contains) }
            return text.indices.contains { text[$0...].starts(with: form) }
        }
    }

    /// Every run of `shortestRun` bytes as a number.
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
