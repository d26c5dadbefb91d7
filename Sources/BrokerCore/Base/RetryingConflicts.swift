package import CredentialStore

/// Runs `body` again after a conflict, up to 32 times. Each run must read before it writes. The first run may use a cached
/// record instead, if a write over any other version is a conflict.
///
/// One writer succeeds in each round, so only a record with very many writers fails 32 times.
package func retryingConflicts<R>(
    _ body: () async throws(StoreError) -> R
) async throws(StoreError) -> R {
    for _ in 1..<32 {
        do throws(StoreError) {
            return try await body()
        } catch .conflict {
            continue
        }
    }
    return try await body()
}
