package import HTTPCodec

/// Takes the body of a response as it comes.
///
/// Nothing more is read from the connection while it works, so that the server must wait when it is slow. Its closures are called
/// one after another on the client's event loop, which they must not block: what takes long is awaited elsewhere.
package final class ResponseReceiver: Sendable {
    /// The longest time without a byte of the body, while the receiver waits for one. What the receiver itself takes does not
    /// count.
    package let idleLimit: Duration
    /// Called once, before the body. Returns whether the body is wanted.
    package let onHead: @Sendable (Status, Fields) async -> Bool
    /// Called with what has come, 16 KiB or less, and never with nothing. Returns whether more is wanted. Where it is not, the
    /// connection is closed.
    package let onBody: @Sendable ([UInt8]) async -> Bool

    package init(
        idleLimit: Duration, onHead: @escaping @Sendable (Status, Fields) async -> Bool = { _, _ in true },
        onBody: @escaping @Sendable ([UInt8]) async -> Bool
    ) {
        self.idleLimit = idleLimit
        self.onHead = onHead
        self.onBody = onBody
    }
}
