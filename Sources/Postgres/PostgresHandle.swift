internal import CPostgres

/// The owner of one `PGconn`, finished with it. None of its calls waits for the network once `useNonBlocking` was
/// called; before that, only messages of a few hundred bytes are written.
///
/// libpq accepts a null connection everywhere and answers that it is bad: that is what a finished handle is.
@safe struct PostgresHandle: ~Copyable {
    /// What `connectPoll` waits for.
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

    /// Begins to connect, in place of the connection that the handle has. Names in `host` must not need a look-up:
    /// libpq would block in it.
    /// - Returns: false when it failed at once; `failure` says why.
    mutating func start(_ options: [PostgresOption]) -> Bool {
        finish()
        // Keywords, then values.
        let strings = options.map(\.keyword) + options.map(\.value)
        unsafe connection = Self.withCStrings(strings) { pointers in
            let keywords = unsafe Array(pointers[..<options.count]) + [nil]
            let values = unsafe Array(pointers[options.count...]) + [nil]
            return unsafe PQconnectStartParams(keywords, values, 0)
        }
        // libpq's own habit is to print notices on standard error.
        _ = unsafe PQsetNoticeReceiver(connection, { _, _ in }, nil)
        // Severity and SQLSTATE only: the server's prose can quote statements and values.
        _ = unsafe PQsetErrorVerbosity(connection, PQERRORS_SQLSTATE)
        return unsafe PQstatus(connection) != CONNECTION_BAD
    }

    /// Ends the connection, telling the server if that takes no waiting.
    mutating func finish() {
        unsafe PQfinish(connection)
        unsafe connection = nil
    }

    /// The socket, or -1. It can be another one after each `connectPoll`.
    var socket: CInt { unsafe PQsocket(connection) }

    func connectPoll() -> ConnectStep {
        switch unsafe PQconnectPoll(connection) {
        case PGRES_POLLING_READING: .readable
        case PGRES_POLLING_WRITING: .writable
        case PGRES_POLLING_OK: .connected
        default: .failed
        }
    }

    /// How far a connection is that is being made.
    enum Progress {
        /// TCP is not connected yet.
        case connecting
        /// TCP is connected, and nothing was sent.
        case connected
        case speaking
    }

    var progress: Progress {
        switch unsafe PQstatus(connection) {
        case CONNECTION_STARTED, CONNECTION_NEEDED: .connecting
        case CONNECTION_MADE: .connected
        default: .speaking
        }
    }

    /// To be called once connected.
    func useNonBlocking() -> Bool { unsafe PQsetnonblocking(connection, 1) == 0 }

    /// Whether the connection stands, as far as has been noticed.
    var isConnected: Bool { unsafe PQstatus(connection) == CONNECTION_OK }

    /// Whether no statement is in flight and no transaction is open.
    var isIdle: Bool { unsafe PQtransactionStatus(connection) == PQTRANS_IDLE }

    /// What `connectPoll` or `start` failed with.
    var failure: PostgresError {
        let message = unsafe PQerrorMessage(connection).map { unsafe String(cString: $0) } ?? ""
        // The form is that of PQERRORS_SQLSTATE: "… FATAL:  28P01\n". Only a message of the server ends so.
        let line = message.split(separator: "\n").last ?? ""
        let state = line.utf8.suffix(5)
        let isState =
            line.utf8.dropLast(5).suffix(3).elementsEqual(":  ".utf8)
            && state.allSatisfy { ("0"..."9").contains(Character(Unicode.Scalar($0))) || (0x41...0x5a).contains($0) }
        // A server that is not ours may have written it, and it goes to the log.
        let printable = message.unicodeScalars.map { scalar -> Unicode.Scalar in
            scalar.value < 0x20 || scalar.value == 0x7f ? " " : scalar.isASCII ? scalar : "?"
        }
        return .connectionFailed(
            sqlstate: isState ? String(decoding: state, as: UTF8.self) : nil,
            detail: String(String.UnicodeScalarView(printable.prefix(400))))
    }

    /// Queues a statement for the server; false when the connection is unusable.
    func send(_ sql: String, _ parameters: [PostgresValue]) -> Bool {
        let types = parameters.map(\.type)
        return unsafe withParameters(parameters) { count, values, lengths, formats in
            // A string that is passed as it is would be copied.
            unsafe sql.withCString { sql in
                unsafe PQsendQueryParams(connection, sql, count, types, values, lengths, formats, 1) == 1
            }
        }
    }

    /// Queues the preparation of a statement under a name.
    func sendPrepare(_ name: String, _ sql: String, _ parameters: [PostgresValue]) -> Bool {
        let types = parameters.map(\.type)
        return unsafe PQsendPrepare(connection, name, sql, CInt(types.count), types) == 1
    }

    /// Queues a use of a prepared statement.
    func sendPrepared(_ name: String, _ parameters: [PostgresValue]) -> Bool {
        unsafe withParameters(parameters) { count, values, lengths, formats in
            unsafe name.withCString { name in
                unsafe PQsendQueryPrepared(connection, name, count, values, lengths, formats, 1) == 1
            }
        }
    }

    enum FlushStep {
        case flushed
        /// Some bytes remain: wait until the socket is writable, and read meanwhile.
        case blocked
        case failed
    }

    /// Writes what is queued, as far as the socket takes it.
    func flush() -> FlushStep {
        switch unsafe PQflush(connection) {
        case 0: .flushed
        case 1: .blocked
        default: .failed
        }
    }

    /// Reads what has arrived; false when the connection is gone.
    func consumeInput() -> Bool { unsafe PQconsumeInput(connection) == 1 }

    /// Whether `takeResult` would have to wait.
    var isBusy: Bool { unsafe PQisBusy(connection) == 1 }

    /// The next result of the statement in flight; nil when there are no more. Only while not `isBusy`.
    func takeResult() -> ResultHandle? {
        guard let result = unsafe PQgetResult(connection) else { return nil }
        return unsafe ResultHandle(adopting: result)
    }

    /// Begins a pipeline: what is sent from here on is answered in its order, and nothing need be answered before more
    /// is sent. Only while nothing is in flight.
    func beginPipeline() -> Bool { unsafe PQenterPipelineMode(connection) == 1 }

    /// Marks the end of the pipeline. There the server commits what is not in a transaction of its own, and there it
    /// takes up its work again after an error.
    func sendSync() -> Bool { unsafe PQpipelineSync(connection) == 1 }

    /// Once the result of the mark was taken.
    func endPipeline() -> Bool { unsafe PQexitPipelineMode(connection) == 1 }

    /// The next notification that has arrived, in the order in which they were sent; nil when there is none.
    func takeNotification() -> PostgresNotification? {
        guard let notification = unsafe PQnotifies(connection) else { return nil }
        defer { unsafe PQfreemem(notification) }
        return unsafe PostgresNotification(
            channel: String(cString: notification.pointee.relname),
            payload: notification.pointee.extra.map { unsafe String(cString: $0) } ?? "")
    }

    /// Reads a connection string, URI or keywords; nil when libpq cannot. Its message is not handed on, since it
    /// quotes the string.
    static func parse(_ connectionString: String) -> [PostgresOption]? {
        if connectionString.utf8.contains(0) { return nil }
        var message: UnsafeMutablePointer<CChar>?
        let list = unsafe PQconninfoParse(connectionString, &message)
        unsafe PQfreemem(message)
        guard let list = unsafe list else { return nil }
        return unsafe takeOptions(list)
    }

    /// What the environment (PGHOST and so on) and libpq's build say where a connection string is silent.
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

    /// Lends the parameters in the form libpq takes: where their bytes start (null for NULL), their lengths, and 1 for the
    /// binary format.
    private func withParameters<R>(
        _ parameters: [PostgresValue],
        _ body: (CInt, UnsafePointer<UnsafePointer<CChar>?>, UnsafePointer<CInt>, UnsafePointer<CInt>) -> R
    ) -> R {
        let count = parameters.count
        var bytes: [UInt8] = []
        bytes.reserveCapacity(parameters.reduce(1) { $0 + $1.binaryCount })
        for parameter in parameters { parameter.appendBinary(to: &bytes) }
        // An empty array has no address, and an empty value must have one: its pointer is what tells it from NULL.
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

    /// Lends `strings` as C strings; they lie in one buffer that lives as long as `body` runs.
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
