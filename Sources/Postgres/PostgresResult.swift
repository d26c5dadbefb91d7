internal import CPostgres

/// What a statement returned: rows as values, in PostgreSQL's binary form, and how many rows it touched.
package struct PostgresResult: Sendable, Equatable {
    /// How many rows were returned.
    package let rowCount: Int
    /// How many rows were inserted, updated, deleted or selected; 0 for commands that have no such number.
    package let affectedRows: Int

    /// The types of the columns.
    private let types: [UInt32]
    /// Every field's bytes, one after the other.
    private let bytes: [UInt8]
    /// Where each field lies in `bytes`, row by row; nil for NULL.
    private let fields: [Range<Int>?]

    init(copying result: borrowing ResultHandle) {
        rowCount = result.rowCount
        affectedRows = result.affectedRows
        types = (0..<result.columnCount).map { result.type(ofColumn: $0) }
        var bytes: [UInt8] = []
        var fields: [Range<Int>?] = []
        fields.reserveCapacity(rowCount * types.count)
        for row in 0..<rowCount {
            for column in types.indices {
                let start = bytes.count
                fields.append(result.appendField(row: row, column: column, to: &bytes) ? start..<bytes.count : nil)
            }
        }
        self.bytes = bytes
        self.fields = fields
    }

    package var rows: some RandomAccessCollection<Row> & Sendable {
        (0..<rowCount).lazy.map { @Sendable row in Row(result: self, index: row) }
    }

    /// The only row; nil when there is none.
    package var first: Row? { rowCount == 0 ? nil : Row(result: self, index: 0) }

    /// One row. Columns are counted from 0 in the order of the statement; naming one that the statement does not have
    /// is our own mistake and stops the process. A column of another type than asked for is the schema's, and throws
    /// `.unexpectedResult`.
    package struct Row: Sendable {
        fileprivate let result: PostgresResult
        fileprivate let index: Int

        /// A `bytea`; nil for NULL.
        package func bytes(_ column: Int) throws(PostgresError) -> [UInt8]? {
            guard let (type, range) = field(column) else { return nil }
            guard type == PostgresType.bytes else { throw .unexpectedResult("a column is not bytea") }
            return Array(result.bytes[range])
        }

        /// A `text`, `varchar` or `name`; nil for NULL.
        package func text(_ column: Int) throws(PostgresError) -> String? {
            guard let (type, range) = field(column) else { return nil }
            guard [PostgresType.text, PostgresType.varyingText, PostgresType.name].contains(type) else {
                throw .unexpectedResult("a column is not text")
            }
            return String(decoding: result.bytes[range], as: UTF8.self)
        }

        /// A `bigint`, `integer` or `smallint`; nil for NULL.
        package func integer(_ column: Int) throws(PostgresError) -> Int64? {
            guard let (type, range) = field(column) else { return nil }
            let isNegative = result.bytes[range].first.map { $0 >= 0x80 } ?? false
            switch (type, range.count) {
            case (PostgresType.integer, 8), (PostgresType.integer4, 4), (PostgresType.integer2, 2):
                return result.bytes[range].reduce(isNegative ? -1 : 0) { $0 << 8 | Int64($1) }
            default:
                throw .unexpectedResult("a column is not an integer")
            }
        }

        /// A `bigint[]` of one dimension, with nil for each NULL in it; nil where it is NULL itself.
        package func integers(_ column: Int) throws(PostgresError) -> [Int64?]? {
            guard let (type, range) = field(column) else { return nil }
            guard type == PostgresType.integers, let elements = result.integers(range) else {
                throw .unexpectedResult("a column is not an array of bigint")
            }
            return elements
        }

        /// A `boolean`; nil for NULL.
        package func boolean(_ column: Int) throws(PostgresError) -> Bool? {
            guard let (type, range) = field(column) else { return nil }
            guard type == PostgresType.boolean, range.count == 1 else {
                throw .unexpectedResult("a column is not boolean")
            }
            return result.bytes[range.lowerBound] != 0
        }

        private func field(_ column: Int) -> (type: UInt32, range: Range<Int>)? {
            precondition(result.types.indices.contains(column), "the statement has no column \(column)")
            return result.fields[index * result.types.count + column].map { (result.types[column], $0) }
        }
    }
}

extension PostgresResult {
    /// The elements of an array in the form that `PostgresValue.texts` is sent in; nil where it is none of bigint.
    fileprivate func integers(_ range: Range<Int>) -> [Int64?]? {
        var place = range.lowerBound
        func next() -> Int? {
            guard range.upperBound - place >= 4 else { return nil }
            defer { place += 4 }
            return Int(bytes[place..<place + 4].reduce(0 as UInt32) { $0 << 8 | UInt32($1) })
        }
        guard let dimensions = next(), next() != nil, next() == Int(PostgresType.integer) else { return nil }
        if dimensions == 0 { return place == range.upperBound ? [] : nil }
        guard dimensions == 1, let count = next(), next() != nil, count <= (range.upperBound - place) / 4 else {
            return nil
        }
        var elements: [Int64?] = []
        elements.reserveCapacity(count)
        for _ in 0..<count {
            switch next() {
            case 0xffff_ffff: elements.append(nil)
            case 8 where range.upperBound - place >= 8:
                let element = bytes[place..<place + 8].reduce(0 as UInt64) { $0 << 8 | UInt64($1) }
                elements.append(Int64(bitPattern: element))
                place += 8
            default: return nil
            }
        }
        return place == range.upperBound ? elements : nil
    }
}

/// The owner of one `PGresult`, cleared with it.
@safe struct ResultHandle: ~Copyable {
    enum Status {
        case succeeded
        case failed
        /// Not run, because an earlier statement of the pipeline failed.
        case passedOver
        /// The mark at the end of a pipeline.
        case pipelineEnd
        /// Neither rows nor a command's end: an empty command, COPY, or an answer that libpq cannot read.
        case unusable
    }

    private let result: OpaquePointer

    /// Takes over what `PQgetResult` returned.
    init(adopting result: OpaquePointer) {
        unsafe self.result = result
    }

    deinit { unsafe PQclear(result) }

    var status: Status {
        switch unsafe PQresultStatus(result) {
        case PGRES_COMMAND_OK, PGRES_TUPLES_OK: .succeeded
        case PGRES_FATAL_ERROR: .failed
        case PGRES_PIPELINE_ABORTED: .passedOver
        case PGRES_PIPELINE_SYNC: .pipelineEnd
        default: .unusable
        }
    }

    /// What the server called its error; nil for errors that libpq itself met.
    var sqlstate: String? {
        // PG_DIAG_SQLSTATE is the character 'C', which Swift does not import as a number.
        unsafe PQresultErrorField(result, CInt(UInt8(ascii: "C"))).map { unsafe String(cString: $0) }
    }

    var rowCount: Int { unsafe Int(PQntuples(result)) }

    var columnCount: Int { unsafe Int(PQnfields(result)) }

    var affectedRows: Int {
        // An empty string for commands without a number; the string lives in the result.
        unsafe PQcmdTuples(result).flatMap { unsafe Int(String(cString: $0)) } ?? 0
    }

    func type(ofColumn column: Int) -> UInt32 { unsafe PQftype(result, CInt(column)) }

    /// Appends the field's bytes; false for NULL.
    func appendField(row: Int, column: Int, to bytes: inout [UInt8]) -> Bool {
        let (row, column) = (CInt(row), CInt(column))
        if unsafe PQgetisnull(result, row, column) != 0 { return false }
        let length = unsafe Int(PQgetlength(result, row, column))
        // libpq keeps the field at this address, `length` bytes long, until the result is cleared.
        if let start = unsafe PQgetvalue(result, row, column) {
            unsafe bytes.append(contentsOf: UnsafeRawBufferPointer(start: start, count: length))
        }
        return true
    }
}
