internal import CPostgres

/// libpq itself, which the process loads when it first reads a connection string, and not before.
enum PostgresLibrary {
    /// Blocks for the reading of files, the first time.
    /// - Throws: `.misconfigured` where libpq is not installed or too old.
    static func load() throws(PostgresError) {
        if let reason = unsafe cpostgres_load() { throw .misconfigured(unsafe String(cString: reason)) }
    }
}
