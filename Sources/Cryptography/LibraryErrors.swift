internal import COpenSSL

/// OpenSSL queues its errors per thread, where a left-over entry would be taken for the failure of a later call (that
/// of a TLS connection on the same thread, for example). So the queue is empty before an operation and after it. Its texts
/// can quote a peer and go no further; callers read the codes that they need inside `body`.
package func withCleanErrorQueue<R, E: Error>(_ body: () throws(E) -> R) throws(E) -> R {
    clearErrors()
    defer { clearErrors() }
    return try body()
}

/// Clearing goes through all that the queue has room for; most often a look shows that it is empty.
private func clearErrors() {
    if ERR_peek_error() != 0 { ERR_clear_error() }
}
