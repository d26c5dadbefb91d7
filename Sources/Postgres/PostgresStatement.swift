/// The text of one SQL command, with `$1`, `$2`, … for its parameters.
package struct PostgresStatement: Sendable, Hashable, CustomStringConvertible {
    let sql: String
    /// Whether a connection keeps the statement prepared under its name.
    let isPrepared: Bool
    /// The name of the prepared statement. It is a hash of the text: behind a pooler that was not configured, another
    /// client may have prepared statements in the same session, and one name must not stand for two statements.
    let name: String

    /// Takes a literal, so that no value can become part of the text; values are passed as parameters.
    /// - Parameter isPrepared: saves parsing and planning for a statement that is run often. Default false.
    package init(_ sql: StaticString, isPrepared: Bool = false) {
        self.init(trusted: sql.description, isPrepared: isPrepared)
    }

    /// Takes text that is composed at run time. The text must not contain anything from outside the program.
    package init(trusted sql: String, isPrepared: Bool = false) {
        let sql = Self.forPrimary(sql)
        self.sql = sql
        self.isPrepared = isPrepared
        // FNV-1a, 64 bits. It distinguishes the statements of this program and need not resist an attacker.
        let hash = sql.utf8.reduce(0xcbf2_9ce4_8422_2325 as UInt64) { ($0 ^ UInt64($1)) &* 0x100_0000_01b3 }
        name = "token_broker_" + String(hash, radix: 16)
    }

    /// Marks a query for pgpool-II, which would else have a standby answer it where it balances load. To a server the mark
    /// is a comment.
    private static func forPrimary(_ sql: String) -> String {
        sql.utf8.starts(with: "SELECT".utf8) || sql.utf8.starts(with: "WITH".utf8) ? "/*NO LOAD BALANCE*/ " + sql : sql
    }

    /// Does not contain the statement, so that interpolation cannot put it into an error or log line.
    package var description: String { "an SQL statement" }
}

/// A statement with its parameters.
package struct PostgresCommand: Sendable, CustomStringConvertible {
    package let statement: PostgresStatement
    package let parameters: [PostgresValue]

    package init(_ statement: PostgresStatement, _ parameters: [PostgresValue] = []) {
        self.statement = statement
        self.parameters = parameters
    }

    /// Contains neither the statement nor its values.
    package var description: String { "an SQL command" }
}

/// A parameter of a statement. The case gives the type, also for NULL.
package enum PostgresValue: Sendable, Equatable, CustomStringConvertible {
    /// `text`. The server refuses U+0000 in it (SQLSTATE 22021).
    case text(String?)
    /// `bytea`.
    case bytes([UInt8]?)
    /// `bigint`.
    case integer(Int64?)
    /// `text[]` of one dimension, up to a million elements.
    case texts([String])

    /// Does not contain the value, so that interpolation cannot put it into an error or log line.
    package var description: String { "an SQL value" }

    /// The object identifier of the type, from PostgreSQL's `pg_type.dat`.
    var type: UInt32 {
        switch self {
        case .text: PostgresType.text
        case .bytes: PostgresType.bytes
        case .integer: PostgresType.integer
        case .texts: PostgresType.texts
        }
    }

    var isNull: Bool {
        switch self {
        case .text(nil), .bytes(nil), .integer(nil): true
        case .text, .bytes, .integer, .texts: false
        }
    }

    /// How many bytes `appendBinary` appends.
    var binaryCount: Int {
        switch self {
        case .text(let text): text?.utf8.count ?? 0
        case .bytes(let bytes): bytes?.count ?? 0
        case .integer(let integer): integer == nil ? 0 : 8
        case .texts(let texts): texts.reduce(20) { $0 + 4 + $1.utf8.count }
        }
    }

    /// Appends PostgreSQL's binary form; nothing for NULL. The text form would not do, because libpq ends a text
    /// parameter at its first zero byte.
    func appendBinary(to bytes: inout [UInt8]) {
        switch self {
        case .text(let text): bytes.append(contentsOf: (text ?? "").utf8)
        case .bytes(let value): bytes.append(contentsOf: value ?? [])
        case .integer(let integer):
            guard let integer else { return }
            for shift in stride(from: 56, through: 0, by: -8) {
                bytes.append(UInt8(truncatingIfNeeded: integer >> shift))
            }
        case .texts(let texts): Self.appendBinary(texts, to: &bytes)
        }
    }

    /// Appends an array in the form that `array_recv` in PostgreSQL's `arrayfuncs.c` reads: the number of dimensions, a
    /// flag for NULLs, the type of the elements; the length and first index of the dimension; each element after its
    /// length.
    private static func appendBinary(_ texts: [String], to bytes: inout [UInt8]) {
        func append(_ number: UInt32) {
            for shift in stride(from: 24, through: 0, by: -8) {
                bytes.append(UInt8(truncatingIfNeeded: number >> shift))
            }
        }
        append(1)
        append(0)
        append(PostgresType.text)
        append(UInt32(texts.count))
        append(1)
        for text in texts {
            append(UInt32(text.utf8.count))
            bytes.append(contentsOf: text.utf8)
        }
    }
}

/// The built-in types that this module reads and writes; PostgreSQL, `pg_type.dat`.
enum PostgresType {
    static let boolean: UInt32 = 16
    static let bytes: UInt32 = 17
    static let name: UInt32 = 19
    static let integer: UInt32 = 20
    static let integer2: UInt32 = 21
    static let integer4: UInt32 = 23
    static let text: UInt32 = 25
    static let texts: UInt32 = 1009
    static let integers: UInt32 = 1016
    static let varyingText: UInt32 = 1043
}
