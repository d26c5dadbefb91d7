/// Why an exchange brought no complete answer.
///
/// Carries no text from the peer, so that nothing a server sends can travel to a log or a caller through an error.
package enum TransportError: Error, Equatable, Sendable {
    /// Why a server's identity was not accepted. A retry does not help until the server or the configuration changes.
    package enum UntrustedReason: Equatable, Sendable {
        /// No chain from the certificate to a trusted root: unknown or missing issuer, an issuer that is no
        /// certification authority, a bad signature, a key or digest that is too weak.
        case chain
        /// A certificate of the chain is past its validity.
        case expired
        /// A certificate of the chain is not valid yet.
        case notYetValid
        /// The certificate does not name the host.
        case hostName
        /// The certificate is not meant for TLS servers.
        case purpose
        /// The chain is good and none of its keys is pinned.
        case pin
        /// No version of TLS, cipher suite or application protocol that both sides accept: the server offers less than
        /// TLS 1.2 with forward secrecy and authenticated encryption, or has refused the client's offer with an alert that
        /// says so.
        case noCommonProtocol
    }

    /// What a deadline cut short.
    package enum Step: Equatable, Sendable {
        /// Waiting for one of the origin's connections to become free.
        case connectionSlot
        case nameResolution
        case connect
        case tlsHandshake
        case sendRequest
        /// Waiting for the first byte of the answer.
        case firstByte
        /// The rest of the answer.
        case response
    }

    /// The text is not a URL of the strict form. The configuration must be mended.
    case invalidURL
    /// A field of the request cannot be written in HTTP or is one that the client writes itself. A fault of the caller.
    case invalidRequest
    /// `http://`, and the configuration does not allow it. The configuration must be mended.
    case insecureTarget
    /// The host has no address on the public internet, and the configuration allows no other.
    case forbiddenAddress
    /// The host name does not exist or has no address. Retrying soon does not help.
    case nameNotFound
    /// The resolver did not answer. Retrying may help.
    case nameResolutionFailed
    /// No address of the host accepted a connection. Retrying may help.
    case connectFailed
    /// The server is not who it should be. No byte of the request was sent.
    case untrusted(UntrustedReason)
    /// The handshake failed for another reason: another alert, bytes that are not TLS, an end in the middle. No byte of
    /// the request was sent. Retrying may help.
    case tlsFailed
    /// A deadline passed. Retrying may help, where `requestMayHaveBeenProcessed` permits it.
    case timedOut(Step, requestSent: Bool)
    /// The connection ended before the answer did.
    case connectionLost(requestSent: Bool)
    /// The server's bytes are not one well-formed answer to the request.
    case malformedResponse
    /// The answer exceeds the configured size. Retrying does not help.
    case responseTooLarge
    /// The task was cancelled, or the client was closed before the request was started.
    case cancelled

    /// Whether the server may have acted on the request. When false, sending it again cannot make it happen twice.
    package var requestMayHaveBeenProcessed: Bool {
        switch self {
        case .timedOut(_, let requestSent), .connectionLost(let requestSent): requestSent
        case .malformedResponse, .responseTooLarge, .cancelled: true
        case .invalidURL, .invalidRequest, .insecureTarget, .forbiddenAddress, .nameNotFound, .nameResolutionFailed,
            .connectFailed, .untrusted, .tlsFailed:
            false
        }
    }

    /// Whether the server may not have come to the request yet, and still act on it: nothing told that it has.
    package var requestMayBeUnderWay: Bool {
        switch self {
        case .timedOut(_, let requestSent), .connectionLost(let requestSent): requestSent
        case .cancelled: true
        default: false
        }
    }
}
