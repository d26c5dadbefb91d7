import CPostgres

/// The library libpq, which the process loads when it reads the first connection string.
enum PostgresLibrary {
    /// The first call blocks while it reads files.
    /// - Throws: `.misconfigured` when libpq is not installed or too old.
    static func load() throws(PostgresError) {
        if let reason = unsafe cpostgres_load() { throw .misconfigured(unsafe String(cString: reason)) }
    }
}
