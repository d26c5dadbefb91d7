import CPostgres

/// The owner of one `PGconn`. No call waits for the network after `useNonBlocking`; before that, only messages of a few
/// hundred bytes are written.
///
/// A closed handle has a null connection, which every function of libpq accepts and reports as bad.
@safe struct PostgresHandle: ~Copyable {
    /// What to do before the next `connectPoll`.
    enum ConnectStep {
        case readable
        case writable
        case connected
        case failed
    }

    private var connection: OpaquePointer?

    /// A handle without a connection.
    init() {
        unsafe connection = nil
    }

    deinit { unsafe PQfinish(connection) }

    /// Closes the current connection and begins to connect. A name in `host` must not need a look-up, in which libpq
    /// would block.
    /// - Returns: false when connecting failed at once; `failure` has the reason.
    mutating func start(_ options: [PostgresOption]) -> Bool {
        close()
        // Keywords, then values.
        let strings = options.map(\.keyword) + options.map(\.value)
        unsafe connection = Self.withCStrings(strings) { pointers in
            let keywords = unsafe Array(pointers[..<options.count]) + [nil]
            let values = unsafe Array(pointers[options.count...]) + [nil]
            return unsafe PQconnectStartParams(keywords, values, 0)
        }
        // By default libpq prints notices on standard error.
        _ = unsafe PQsetNoticeReceiver(connection, { _, _ in }, nil)
        // Severity and SQLSTATE only, because the server's messages can quote statements and values.
        _ = unsafe PQsetErrorVerbosity(connection, PQERRORS_SQLSTATE)
        return unsafe PQstatus(connection) != CONNECTION_BAD
    }

    /// Closes the connection. Tells the server when that needs no waiting.
    mutating func close() {
        unsafe PQfinish(connection)
        unsafe connection = nil
    }

    /// The socket, or -1. Each `connectPoll` may replace it.
    var socket: CInt { unsafe PQsocket(connection) }

    func connectPoll() -> ConnectStep {
        switch unsafe PQconnectPoll(connection) {
        case PGRES_POLLING_READING: .readable
        case PGRES_POLLING_WRITING: .writable
        case PGRES_POLLING_OK: .connected
        default: .failed
        }
    }

    /// How far connecting has got.
    enum Progress {
        /// TCP is not connected yet.
        case connecting
        /// TCP is connected, and libpq has sent nothing.
        case connected
        /// libpq has begun to send.
        case speaking
    }

    var progress: Progress {
        switch unsafe PQstatus(connection) {
        case CONNECTION_STARTED, CONNECTION_NEEDED: .connecting
        case CONNECTION_MADE: .connected
        default: .speaking
        }
    }

    /// To be called when `connectPoll` has returned `.connected`.
    func useNonBlocking() -> Bool { unsafe PQsetnonblocking(connection, 1) == 0 }

    /// Whether the connection is open, as far as libpq has noticed.
    var isConnected: Bool { unsafe PQstatus(connection) == CONNECTION_OK }

    /// Whether no statement is in flight and no transaction is open.
    var isIdle: Bool { unsafe PQtransactionStatus(connection) == PQTRANS_IDLE }

    /// The error of `connectPoll` or `start`.
    var failure: PostgresError {
        let message = unsafe PQerrorMessage(connection).map { unsafe String(cString: $0) } ?? ""
        // With PQERRORS_SQLSTATE, a message of the server, and no other, ends in "… FATAL:  28P01\n".
        let line = message.split(separator: "\n").last ?? ""
        let state = line.utf8.suffix(5)
        let isState =
            line.utf8.dropLast(5).suffix(3).elementsEqual(":  ".utf8)
            && state.allSatisfy { ("0"..."9").contains(Character(Unicode.Scalar($0))) || (0x41...0x5a).contains($0) }
        // The message goes to the log, and an impostor may have written it.
        let printable = message.unicodeScalars.map { scalar -> Unicode.Scalar in
            scalar.value < 0x20 || scalar.value == 0x7f ? " " : scalar.isASCII ? scalar : "?"
        }
        return .connectionFailed(
            sqlstate: isState ? String(decoding: state, as: UTF8.self) : nil,
            detail: String(String.UnicodeScalarView(printable.prefix(400))))
    }

    /// Queues a statement for the server; false when the connection is unusable.
    func send(_ sql: String, parameters: [PostgresValue]) -> Bool {
        let types = parameters.map(\.type)
        return unsafe withParameters(parameters) { count, values, lengths, formats in
            // Passing the Swift string itself would copy it.
            unsafe sql.withCString { sql in
                unsafe PQsendQueryParams(connection, sql, count, types, values, lengths, formats, 1) == 1
            }
        }
    }

    /// Queues the preparation of a statement under a name.
    func sendPrepare(_ sql: String, as name: String, parameters: [PostgresValue]) -> Bool {
        let types = parameters.map(\.type)
        return unsafe PQsendPrepare(connection, name, sql, CInt(types.count), types) == 1
    }

    /// Queues the execution of a prepared statement.
    func sendPrepared(_ name: String, parameters: [PostgresValue]) -> Bool {
        unsafe withParameters(parameters) { count, values, lengths, formats in
            unsafe name.withCString { name in
                unsafe PQsendQueryPrepared(connection, name, count, values, lengths, formats, 1) == 1
            }
        }
    }

    enum FlushStep {
        case flushed
        /// Bytes remain. Wait until the socket is writable, and read meanwhile.
        case blocked
        case failed
    }

    /// Writes queued bytes as far as the socket takes them.
    func flush() -> FlushStep {
        switch unsafe PQflush(connection) {
        case 0: .flushed
        case 1: .blocked
        default: .failed
        }
    }

    /// Reads the bytes that have arrived; false when the connection is lost.
    func consumeInput() -> Bool { unsafe PQconsumeInput(connection) == 1 }

    /// Whether `takeResult` would have to wait.
    var isBusy: Bool { unsafe PQisBusy(connection) == 1 }

    /// The next result of the statement in flight; nil when there is none. Only while not `isBusy`.
    func takeResult() -> ResultHandle? {
        guard let result = unsafe PQgetResult(connection) else { return nil }
        return unsafe ResultHandle(adopting: result)
    }

    /// Begins a pipeline, in which further statements can be sent before the earlier ones are answered. The answers
    /// come in the order of the statements. Only while no statement is in flight.
    func beginPipeline() -> Bool { unsafe PQenterPipelineMode(connection) == 1 }

    /// Sends a synchronization point, which ends the pipeline. There the server commits the statements that are not in
    /// an explicit transaction, and there it resumes work after an error.
    func sendSync() -> Bool { unsafe PQpipelineSync(connection) == 1 }

    /// To be called after the result of the synchronization point.
    func endPipeline() -> Bool { unsafe PQexitPipelineMode(connection) == 1 }

    /// The earliest notification that has arrived and was not taken; nil when there is none.
    func takeNotification() -> PostgresNotification? {
        guard let notification = unsafe PQnotifies(connection) else { return nil }
        defer { unsafe PQfreemem(notification) }
        return unsafe PostgresNotification(
            channel: String(cString: notification.pointee.relname),
            payload: notification.pointee.extra.map { unsafe String(cString: $0) } ?? "")
    }

    /// Parses a connection string, URI or keywords; nil when libpq cannot. libpq's message is dropped, because it
    /// quotes the string.
    static func parse(_ connectionString: String) -> [PostgresOption]? {
        if connectionString.utf8.contains(0) { return nil }
        var message: UnsafeMutablePointer<CChar>?
        let list = unsafe PQconninfoParse(connectionString, &message)
        unsafe PQfreemem(message)
        guard let list = unsafe list else { return nil }
        return unsafe takeOptions(list)
    }

    /// The settings that libpq takes from the environment (PGHOST and so on) and from its build.
    static func defaults() -> [PostgresOption] {
        guard let list = unsafe PQconndefaults() else { return [] }
        return unsafe takeOptions(list)
    }

    private static func takeOptions(_ list: UnsafeMutablePointer<PQconninfoOption>) -> [PostgresOption] {
        defer { unsafe PQconninfoFree(list) }
        var options: [PostgresOption] = []
        var next = unsafe list
        // The list ends with an entry whose keyword is null.
        while let keyword = unsafe next.pointee.keyword {
            if let value = unsafe next.pointee.val {
                options.append(
                    unsafe PostgresOption(keyword: String(cString: keyword), value: String(cString: value)))
            }
            unsafe next += 1
        }
        return options
    }

    /// Lends the parameters in libpq's form: pointers to their bytes (null for NULL), their lengths, and for each the
    /// number 1, which stands for the binary format.
    private func withParameters<R>(
        _ parameters: [PostgresValue],
        _ body: (CInt, UnsafePointer<UnsafePointer<CChar>?>, UnsafePointer<CInt>, UnsafePointer<CInt>) -> R
    ) -> R {
        let count = parameters.count
        var bytes: [UInt8] = []
        bytes.reserveCapacity(parameters.reduce(1) { $0 + $1.binaryCount })
        for parameter in parameters { parameter.appendBinary(to: &bytes) }
        // libpq tells an empty value from NULL by its pointer, and an empty array has no address.
        bytes.append(0)
        return unsafe bytes.withUnsafeBytes { buffer in
            unsafe withUnsafeTemporaryAllocation(of: UnsafePointer<CChar>?.self, capacity: count) { values in
                unsafe withUnsafeTemporaryAllocation(of: CInt.self, capacity: 2 * count) { numbers in
                    var next = unsafe buffer.baseAddress!.assumingMemoryBound(to: CChar.self)
                    for index in 0..<count {
                        let length = parameters[index].binaryCount
                        unsafe values.initializeElement(at: index, to: parameters[index].isNull ? nil : next)
                        unsafe numbers.initializeElement(at: index, to: CInt(length))
                        unsafe numbers.initializeElement(at: count + index, to: 1)
                        unsafe next += length
                    }
                    return unsafe body(
                        CInt(count), values.baseAddress!, numbers.baseAddress!, numbers.baseAddress! + count)
                }
            }
        }
    }

    /// Lends `strings` as C strings, in one buffer that exists while `body` runs.
    private static func withCStrings<R>(_ strings: [String], _ body: ([UnsafePointer<CChar>?]) -> R) -> R {
        var bytes: [CChar] = []
        var starts: [Int] = []
        for string in strings {
            starts.append(bytes.count)
            bytes += string.utf8.map { CChar(bitPattern: $0) }
            bytes.append(0)
        }
        return unsafe bytes.withUnsafeBufferPointer { buffer in
            unsafe body(starts.map { unsafe buffer.baseAddress! + $0 })
        }
    }
}
