package import HTTPCodec

/// Why an exchange ended without a complete response.
///
/// It holds no text from the peer, so that text from a server cannot reach a log or a caller through an error.
package enum TransportError: Error, Equatable, Sendable {
    /// Why a server's identity was not accepted. Retrying does not help until the server or the configuration changes.
    package enum UntrustedReason: Equatable, Sendable {
        /// There is no valid chain from the certificate to a trusted root: an issuer is unknown, missing or not a
        /// certification authority, a signature is wrong, or a key or digest is too weak.
        case chain
        /// A certificate of the chain has expired.
        case expired
        /// A certificate of the chain is not valid yet.
        case notYetValid
        /// The certificate does not name the host.
        case hostName
        /// The certificate is not meant for TLS servers.
        case purpose
        /// The chain is valid and contains no pinned key.
        case pin
        /// No TLS version, cipher suite or application protocol suits both sides: the server offers less than TLS 1.2
        /// with forward secrecy and authenticated encryption, or its alert refused the client's offer.
        case noCommonProtocol
    }

    /// The step during which a deadline passed.
    package enum Step: Equatable, Sendable {
        /// Waiting for a free connection to the origin.
        case connectionSlot
        case nameResolution
        case connect
        case tlsHandshake
        case sendRequest
        /// Waiting for the first byte of the response.
        case firstByte
        /// Receiving the rest of the response.
        case response
    }

    /// The text is not a URL in the strict form. An operator must correct the configuration.
    case invalidURL
    /// A field of the request cannot be written in HTTP, or the client writes this field itself. The caller has a bug.
    case invalidRequest
    /// The URL begins with `http://`, which the configuration does not allow. An operator must correct the
    /// configuration.
    case insecureTarget
    /// The request shows a certificate, which it cannot at a URL that begins with `http://`. An operator must correct the
    /// configuration.
    case certificateWithoutTLS
    /// The host has no address on the public internet, and the configuration does not allow its addresses. An operator
    /// must correct the configuration.
    case forbiddenAddress
    /// The host name does not exist or has no address. Retrying soon does not help.
    case nameNotFound
    /// The resolver did not answer. Retrying may help.
    case nameResolutionFailed
    /// No address of the host accepted a connection. Retrying may help.
    case connectFailed
    /// The proxy answered the request for a tunnel with this status instead of 2xx: 407 where it wants another user or password,
    /// 403 where it allows no tunnel to this server, 502 to 504 where it does not reach the server. No byte of the request was
    /// sent. Retrying may help with a status from 500.
    case proxyRefused(Status)
    /// The server did not prove its identity. No byte of the request was sent.
    case untrusted(UntrustedReason)
    /// The handshake failed for another reason: another alert, bytes that are not TLS, or an early end of the
    /// connection. No byte of the request was sent. Retrying may help.
    case tlsFailed
    /// A deadline passed. Retrying may help where `requestMayHaveBeenProcessed` permits it.
    case timedOut(Step, requestSent: Bool)
    /// The connection ended before the response was complete. Retrying may help where `requestMayHaveBeenProcessed`
    /// permits it.
    case connectionLost(requestSent: Bool)
    /// The received bytes are not one well-formed response to the request.
    case malformedResponse
    /// The response exceeds the configured size. Retrying does not help.
    case responseTooLarge
    /// The task was cancelled, or the client was closed before it sent the request.
    case cancelled

    /// Whether the server may have acted on the request. If false, sending the request again cannot execute it twice.
    package var requestMayHaveBeenProcessed: Bool {
        switch self {
        case .timedOut(_, let requestSent), .connectionLost(let requestSent): requestSent
        case .malformedResponse, .responseTooLarge, .cancelled: true
        case .invalidURL, .invalidRequest, .insecureTarget, .certificateWithoutTLS, .forbiddenAddress, .nameNotFound,
            .nameResolutionFailed, .connectFailed, .proxyRefused, .untrusted, .tlsFailed:
            false
        }
    }

    /// Whether the server may still act on the request later: no response shows that it has processed it.
    package var requestMayBeUnderWay: Bool {
        switch self {
        case .timedOut(_, let requestSent), .connectionLost(let requestSent): requestSent
        case .cancelled: true
        default: false
        }
    }
}
