import COpenSSL

/// What stands between an `SSL` and its channel: the records that have arrived, and those to send. OpenSSL reads and writes
/// them by the functions of a BIO.
///
/// OpenSSL has memory BIOs of its own, one for each direction. They keep their buffers while a connection is idle, and a warm
/// answer takes more of the processor's time with them.
@safe final class RecordBIO {
    private struct Records {
        var arrived: [UInt8] = []
        /// Where what OpenSSL has not read begins in `arrived`.
        var start = 0
        var unsent: [UInt8] = []

        /// Writes some of what has arrived to `target`, at most `count` bytes.
        @unsafe mutating func read(into target: UnsafeMutableRawPointer, _ count: Int) -> Int {
            let read = min(count, arrived.count - start)
            unsafe arrived.span.extracting(start..<start + read).withUnsafeBytes {
                if let source = $0.baseAddress { unsafe target.copyMemory(from: source, byteCount: read) }
            }
            start += read
            if start == arrived.count { (arrived, start) = ([], 0) }
            return read
        }
    }

    // Allocated separately, so that OpenSSL can be lent it, and because Swift checks exclusive access at run time for each
    // property of a class.
    private let records: UnsafeMutablePointer<Records>

    init() {
        unsafe records = .allocate(capacity: 1)
        unsafe records.initialize(to: Records())
    }

    deinit {
        unsafe records.deinitialize(count: 1)
        unsafe records.deallocate()
    }

    /// Whether OpenSSL has not read all that has arrived.
    var hasArrived: Bool { unsafe records.pointee.start < records.pointee.arrived.count }

    func receive(_ bytes: Span<UInt8>) {
        unsafe bytes.withUnsafeBufferPointer { unsafe records.pointee.arrived.append(contentsOf: $0) }
    }

    /// Appends the bytes to send, in order, and keeps none of them.
    func takeUnsent(into bytes: inout [UInt8]) {
        if unsafe records.pointee.unsent.isEmpty { return }
        if bytes.isEmpty {
            unsafe bytes = records.pointee.unsent
        } else {
            unsafe bytes += records.pointee.unsent
        }
        unsafe records.pointee.unsent = []
    }

    // MARK: As a BIO

    /// The functions of such BIOs; nil when memory was short. No thread changes them after they are made.
    private nonisolated(unsafe) static let functions: OpaquePointer? = {
        let type = BIO_get_new_index() | BIO_TYPE_SOURCE_SINK
        guard let functions = unsafe BIO_meth_new(type, "records") else { return nil }
        unsafe BIO_meth_set_read(functions) { bio, target, count in
            unsafe copenssl_bio_clear_retry(bio)
            guard let target = unsafe target, count > 0 else { return 0 }
            let records = unsafe RecordBIO.records(of: bio)
            let read = unsafe records.pointee.read(into: target, Int(count))
            if read > 0 { return CInt(read) }
            // More can arrive: OpenSSL does not take this for the end.
            unsafe copenssl_bio_retry_read(bio)
            return -1
        }
        unsafe BIO_meth_set_write(functions) { bio, source, count in
            unsafe copenssl_bio_clear_retry(bio)
            guard let source = unsafe source, count > 0 else { return 0 }
            let bytes = unsafe UnsafeRawBufferPointer(start: source, count: Int(count))
            unsafe RecordBIO.records(of: bio).pointee.unsent.append(contentsOf: bytes)
            return count
        }
        // OpenSSL flushes after the messages of a handshake. What else it asks for is optional.
        unsafe BIO_meth_set_ctrl(functions) { _, command, _, _ in command == BIO_CTRL_FLUSH ? 1 : 0 }
        return unsafe functions
    }()

    @unsafe private static func records(of bio: OpaquePointer?) -> UnsafeMutablePointer<Records> {
        unsafe BIO_get_data(bio).assumingMemoryBound(to: Records.self)
    }

    /// A BIO of these records, which must outlive it. Nil when memory is short.
    @unsafe func makeBIO() -> OpaquePointer? {
        guard let functions = unsafe Self.functions, let bio = unsafe BIO_new(functions) else { return nil }
        unsafe BIO_set_data(bio, records)
        unsafe BIO_set_init(bio, 1)
        return unsafe bio
    }
}
