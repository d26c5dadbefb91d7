import Glibc
package import Reactor

/// An error of a file store. No case carries content.
package enum FileStoreError: Error, Equatable, Sendable, CustomStringConvertible {
    /// The file system refused a call. Whether a retry helps depends on its errno.
    case system(path: String, SystemError)
    /// The directory does not belong to the user that runs this process.
    case foreignOwner(directory: String)
    /// Users other than its owner have some access to the directory.
    case exposed(directory: String)
    /// Another process, or another store in this one, has the directory open.
    case alreadyOpen(directory: String)
    /// The directory contains other files and no store.
    case notAStore(directory: String)
    /// The directory was written by a later version of this program.
    case newerFormat(directory: String)
    /// The directory was written by a version whose format this version cannot convert.
    case olderFormat(directory: String)
    /// The file of a secret belongs to another user, or other users can write to it, so its content cannot be trusted.
    case exposedSecret(path: String)
    /// The content of a file is not what was written. Retrying cannot help; an operator must look.
    case damaged(String)

    package var description: String {
        switch self {
        case .system(let path, let error): "cannot use \(path): \(error)"
        case .foreignOwner(let directory): "\(directory) belongs to another user"
        case .exposed(let directory): "\(directory) can be accessed by other users; allow its owner only (chmod 700)"
        case .alreadyOpen(let directory): "\(directory) is in use by another process"
        case .notAStore(let directory): "\(directory) is not empty, and contains no store of credentials"
        case .newerFormat(let directory): "\(directory) was written by a later version"
        case .olderFormat(let directory):
            "\(directory) was written by a version whose format this version cannot convert"
        case .exposedSecret(let path):
            "\(path) belongs to another user or can be written by others; give it to this user and allow its owner only "
                + "(chmod 600)"
        case .damaged(let text): text
        }
    }

    /// Whether the disk or a quota has no room left.
    var isFullDisk: Bool {
        if case .system(_, let error) = self { return error.number == ENOSPC || error.number == EDQUOT }
        return false
    }

    var storeError: StoreError {
        switch self {
        case .damaged(let text): .damaged(text)
        case .newerFormat, .olderFormat, .notAStore, .exposedSecret: .damaged(description)
        case .system, .foreignOwner, .exposed, .alreadyOpen: .unavailable
        }
    }
}
