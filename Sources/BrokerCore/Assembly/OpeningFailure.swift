package import CredentialStore
package import HTTPSClient
import OAuth
package import Reactor

/// Why the store of a broker, or what else it runs on, cannot be opened. Everything that was opened before is closed.
package enum OpeningFailure: Error, Sendable, CustomStringConvertible {
    /// The system grants no thread or descriptor. Retrying helps once it has some.
    case system(SystemError)
    /// The files of the embedded store, or its keys, cannot be used; see `EmbeddedStore.Failure`.
    case files(EmbeddedStore.Failure)
    /// The database cannot be used. Retrying helps where the error is `.unavailable`.
    /// - Parameter reason: what the database reported last, in words for operators; nil where it reported nothing.
    case database(StoreError, reason: String?)
    /// The task was cancelled while it waited for the database.
    case cancelled
    /// The keys do not open the store's records, or the store failed meanwhile; see `VaultError`.
    case keys(VaultError)
    /// The directory of the journal cannot be used.
    case journalFiles(FileStoreError)
    /// The keys do not open the journal's entries, or the journal failed meanwhile.
    case journalKeys(VaultError)
    /// The HTTPS client cannot be made. An operator must correct the configuration.
    case client(HTTPSClientConfigurationError)
    /// The value that holds the records cannot be used. Retrying helps where the error is `.unavailable`.
    case value(StoreError)
    /// The store's time cannot be read. Retrying helps where the error is `.unavailable`.
    case time(StoreError)

    package var description: String {
        switch self {
        case .system(let error): "\(error)"
        case .files(let error): "\(error)"
        case .database(let error, nil): "the database cannot be used: \(error)"
        case .database(_, let reason?): "the database cannot be used: \(reason)"
        case .cancelled: "the task was cancelled before the database answered"
        case .keys(let error): "\(error)"
        case .journalFiles(let error): "\(error)"
        case .journalKeys(let error): "\(error)"
        case .client(let error): "\(error)"
        case .value(.damaged(let reason)): "the program's storage cannot be used: \(reason)"
        case .value: "the program's storage does not answer"
        case .time(let error): "the store's time cannot be read: \(error)"
        }
    }

    /// Whether files of the embedded store or of the journal are damaged, so that an examination of them helps.
    package var isDamageOfFiles: Bool {
        switch self {
        case .files(.store(.damaged)), .journalFiles(.damaged), .keys(.store(.damaged)), .journalKeys(.store(.damaged)):
            true
        default: false
        }
    }
}
