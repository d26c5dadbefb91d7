import HTTPCodec

extension TransportError {
    /// What has happened, and what to change where that is known, as a sentence for a person.
    /// - Parameter roots: the variable that names a file with further root certificates.
    package func sentence(roots: StaticString) -> String {
        switch self {
        case .invalidURL, .invalidRequest: "The address is not a usable URL."
        case .insecureTarget: "The address begins with http:// and may not be called."
        case .forbiddenAddress: "The address is not on the public internet and may not be called."
        case .certificateWithoutTLS: "A certificate can be shown at an https address only."
        case .nameNotFound: "The host name does not exist or has no address."
        case .nameResolutionFailed: "The name servers did not answer."
        case .connectFailed: "No address of the host accepted a connection."
        case .proxyRefused(let status): "The proxy opens no connection to the host: it answered \(status.code)."
        case .untrusted(.chain):
            "The certificate does not lead to a trusted root; one of your own belongs into \(roots)."
        case .untrusted(.expired): "The certificate has expired."
        case .untrusted(.notYetValid): "The certificate is not valid yet."
        case .untrusted(.hostName): "The certificate does not name this host."
        case .untrusted(.purpose): "The certificate is not meant for TLS servers."
        case .untrusted(.pin):
            "No key of the chain is pinned: pinned_certificates is out of date, or something else answers there."
        case .untrusted(.noCommonProtocol): "The server offers nothing that is as good as TLS 1.2 with forward secrecy."
        case .tlsFailed: "The TLS handshake failed."
        case .timedOut: "The time for an answer ran out."
        case .connectionLost: "The connection ended before the answer did."
        case .malformedResponse: "The answer is not well-formed HTTP."
        case .responseTooLarge: "The answer is too long."
        case .cancelled: "The request was broken off."
        }
    }

    /// The same behind a colon: without a capital at its beginning and a full stop at its end.
    package func clause(roots: StaticString) -> String {
        // Each sentence begins with a letter of ASCII.
        let bytes = sentence(roots: roots).utf8.dropLast()
        return String(decoding: bytes.prefix(1).map { $0 | 0x20 } + bytes.dropFirst(), as: UTF8.self)
    }
}
