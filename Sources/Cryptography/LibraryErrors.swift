import COpenSSL

/// Runs `body` with an empty OpenSSL error queue, and empties the queue again.
///
/// OpenSSL keeps one queue per thread. A later call on the same thread, on a TLS connection for example, would take a
/// leftover entry for its own failure. The texts of the entries can quote a peer and are not passed on; a caller that
/// needs an error code reads it inside `body`.
package func withCleanErrorQueue<R, E: Error>(_ body: () throws(E) -> R) throws(E) -> R {
    clearErrorQueue()
    defer { clearErrorQueue() }
    return try body()
}

/// Empties OpenSSL's error queue of this thread; see `withCleanErrorQueue`. It looks first, because the queue is nearly always
/// empty and clearing it visits every slot that it has.
package func clearErrorQueue() {
    if ERR_peek_error() != 0 { ERR_clear_error() }
}
