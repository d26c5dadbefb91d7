import CPostgres

/// The result of a statement: rows of values in PostgreSQL's binary form, and the number of affected rows.
///
/// Copies share libpq's memory, which is freed with the last copy. Several threads may read it (libpq, "Behavior in
/// Threaded Programs").
package struct PostgresResult: Sendable {
    private let handle: ResultHandle

    init(_ handle: ResultHandle) {
        self.handle = handle
    }

    /// The number of rows that were returned.
    package var rowCount: Int { handle.rowCount }

    /// The number of rows that were inserted, updated, deleted or selected; 0 for other commands.
    package var affectedRows: Int { handle.affectedRows }

    package var rows: some RandomAccessCollection<Row> & Sendable {
        (0..<rowCount).lazy.map { @Sendable row in Row(result: self, index: row) }
    }

    /// The first row; nil when there is none.
    package var first: Row? { rowCount == 0 ? nil : Row(result: self, index: 0) }

    /// One row. Columns count from 0 in the order of the statement. A number that the statement does not have is a
    /// programming error and stops the process. A column of an unexpected type comes from a changed schema and throws
    /// `.unexpectedResult`.
    package struct Row: Sendable {
        fileprivate let result: PostgresResult
        fileprivate let index: Int

        /// A `bytea`; nil for NULL.
        package func bytes(_ column: Int) throws(PostgresError) -> [UInt8]? {
            guard let type = typeUnlessNull(column) else { return nil }
            guard type == PostgresType.bytes else { throw .unexpectedResult("a column is not bytea") }
            return unsafe withField(column) { unsafe Array($0) }
        }

        /// A `text`, `varchar` or `name`; nil for NULL.
        package func text(_ column: Int) throws(PostgresError) -> String? {
            guard let type = typeUnlessNull(column) else { return nil }
            guard type == PostgresType.text || type == PostgresType.varyingText || type == PostgresType.name else {
                throw .unexpectedResult("a column is not text")
            }
            return unsafe withField(column) { unsafe String(decoding: $0, as: UTF8.self) }
        }

        /// A `bigint`, `integer` or `smallint`; nil for NULL.
        package func integer(_ column: Int) throws(PostgresError) -> Int64? {
            guard let type = typeUnlessNull(column) else { return nil }
            let integer = unsafe withField(column) { field -> Int64? in
                switch (type, field.count) {
                case (PostgresType.integer, 8), (PostgresType.integer4, 4), (PostgresType.integer2, 2):
                    unsafe field.reduce(field[0] >= 0x80 ? -1 : 0) { $0 << 8 | Int64($1) }
                default: nil
                }
            }
            guard let integer else { throw .unexpectedResult("a column is not an integer") }
            return integer
        }

        /// A `bigint[]` of one dimension, with nil for each NULL element; nil for NULL.
        package func integers(_ column: Int) throws(PostgresError) -> [Int64?]? {
            guard let type = typeUnlessNull(column) else { return nil }
            guard type == PostgresType.integers, let elements = unsafe withField(column, { unsafe Self.integers($0) })
            else {
                throw .unexpectedResult("a column is not an array of bigint")
            }
            return elements
        }

        /// A `boolean`; nil for NULL.
        package func boolean(_ column: Int) throws(PostgresError) -> Bool? {
            guard let type = typeUnlessNull(column) else { return nil }
            let boolean = unsafe withField(column) { field -> Bool? in
                unsafe type == PostgresType.boolean && field.count == 1 ? field[0] != 0 : nil
            }
            guard let boolean else { throw .unexpectedResult("a column is not boolean") }
            return boolean
        }

        private func typeUnlessNull(_ column: Int) -> UInt32? {
            precondition(
                column >= 0 && column < result.handle.columnCount, "the statement has no column \(column)")
            return result.handle.isNull(row: index, column: column)
                ? nil : result.handle.type(ofColumn: column)
        }

        private func withField<R>(_ column: Int, _ body: (UnsafeRawBufferPointer) -> R) -> R {
            unsafe result.handle.withField(row: index, column: column, body)
        }

        /// The elements of a `bigint[]` in the binary form that `PostgresValue.texts` describes; nil for another array.
        private static func integers(_ bytes: UnsafeRawBufferPointer) -> [Int64?]? {
            var place = 0
            func next() -> Int? {
                guard bytes.count - place >= 4 else { return nil }
                defer { place += 4 }
                return unsafe Int(UInt32(bigEndian: bytes.loadUnaligned(fromByteOffset: place, as: UInt32.self)))
            }
            guard let dimensions = next(), next() != nil, next() == Int(PostgresType.integer) else { return nil }
            if dimensions == 0 { return place == bytes.count ? [] : nil }
            guard dimensions == 1, let count = next(), next() != nil, count <= (bytes.count - place) / 4 else {
                return nil
            }
            var elements: [Int64?] = []
            elements.reserveCapacity(count)
            for _ in 0..<count {
                switch next() {
                case 0xffff_ffff: elements.append(nil)
                case 8 where bytes.count - place >= 8:
                    elements.append(
                        unsafe Int64(bigEndian: bytes.loadUnaligned(fromByteOffset: place, as: Int64.self)))
                    place += 8
                default: return nil
                }
            }
            return place == bytes.count ? elements : nil
        }
    }
}

/// The owner of one `PGresult`.
@safe final class ResultHandle: Sendable {
    enum Status {
        case succeeded
        case failed
        /// Not run, because an earlier statement of the pipeline failed.
        case passedOver
        /// The synchronization point at the end of a pipeline.
        case pipelineEnd
        /// Neither rows nor the end of a command: an empty command, COPY, or an answer that libpq cannot read.
        case unusable
    }

    // `nonisolated(unsafe)`: nothing changes a result after `PQgetResult` has returned it.
    nonisolated(unsafe) private let result: OpaquePointer

    /// Takes over the result that `PQgetResult` returned.
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

    /// The SQLSTATE of the server's error: five digits and capital letters. Nil for an error of libpq, and for a
    /// malformed state.
    var sqlstate: String? {
        // PG_DIAG_SQLSTATE is the character 'C', which Swift does not import as a number.
        let state = unsafe PQresultErrorField(result, CInt(UInt8(ascii: "C"))).map { unsafe String(cString: $0) }
        guard let state, state.utf8.count == 5,
            state.utf8.allSatisfy({ (0x30...0x39).contains($0) || (0x41...0x5a).contains($0) })
        else { return nil }
        return state
    }

    var rowCount: Int { unsafe Int(PQntuples(result)) }

    var columnCount: Int { unsafe Int(PQnfields(result)) }

    var affectedRows: Int {
        // PQcmdTuples returns an empty string for commands without a number.
        unsafe PQcmdTuples(result).flatMap { unsafe Int(String(cString: $0)) } ?? 0
    }

    func type(ofColumn column: Int) -> UInt32 { unsafe PQftype(result, CInt(column)) }

    func isNull(row: Int, column: Int) -> Bool {
        unsafe PQgetisnull(result, CInt(row), CInt(column)) != 0
    }

    /// Lends the field's bytes in libpq's memory; none for NULL.
    func withField<R>(row: Int, column: Int, _ body: (UnsafeRawBufferPointer) -> R) -> R {
        let (row, column) = (CInt(row), CInt(column))
        return unsafe body(
            UnsafeRawBufferPointer(
                start: PQgetvalue(result, row, column), count: Int(PQgetlength(result, row, column))))
    }
}
