internal import COpenSSL
internal import Reactor

/// Owns an `SSL_SESSION` with which a later connection can skip the certificates.
///
/// The server proves by the session's secrets that it is the one that was verified. Since the chain is not looked at
/// again, the session ends when the first certificate of that chain expires. It belongs to one origin and one set of
/// pins, under which its owner keeps it.
@safe final class ResumableSession {
    let session: OpaquePointer
    let verifiedUntil: MonotonicInstant

    /// Takes over one reference to `session`.
    @unsafe init(adopting session: OpaquePointer, verifiedUntil: MonotonicInstant) {
        unsafe self.session = unsafe session
        self.verifiedUntil = verifiedUntil
    }

    deinit {
        unsafe SSL_SESSION_free(session)
    }
}
