import COpenSSL
import Reactor

/// Owns an `SSL_SESSION`, with which a later connection can skip the exchange of certificates.
///
/// The server proves with the session's secrets that it is the server that was verified before. The chain is not
/// verified again, so the session must not be used after the first certificate of that chain has expired. The pool
/// keeps a session under one origin and one set of pins.
@safe final class ResumableSession {
    let session: OpaquePointer
    let verifiedUntil: MonotonicInstant

    /// Takes ownership of one reference to `session`.
    @unsafe init(adopting session: OpaquePointer, verifiedUntil: MonotonicInstant) {
        unsafe self.session = unsafe session
        self.verifiedUntil = verifiedUntil
    }

    deinit {
        unsafe SSL_SESSION_free(session)
    }
}
