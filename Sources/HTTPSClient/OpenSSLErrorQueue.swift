internal import COpenSSL

/// OpenSSL's per-thread queue of errors.
enum OpenSSLErrorQueue {
    /// Runs `body` between an empty queue and an empty queue.
    ///
    /// What another operation left would be taken for this one's failure by SSL_get_error(3), and what this one leaves
    /// by the next on the thread. Its texts can quote the peer, so they go no further; callers read the codes they
    /// need inside `body`.
    static func isolating<R>(_ body: () -> R) -> R {
        clear()
        defer { clear() }
        return body()
    }

    /// Clearing goes through all that the queue has room for; most often a look shows that it is empty.
    private static func clear() {
        if ERR_peek_error() != 0 { ERR_clear_error() }
    }
}
