import Cryptography
import ExternalText
import Glibc
import Reactor

/// A file by which a platform gives a client what it shows its provider. It is read at each use, because the platform writes it
/// anew without a word.
enum ClientFile {
    /// The longest content, in bytes.
    static let longest = 65_536

    /// The secret in a file, without the line ends behind it.
    /// - Parameter directories: where the file must be; nil for anywhere.
    /// - Throws: `illegal_configuration` where there is none. Blocks while the file is read.
    static func secret(at path: WireText, below directories: [String]?) throws(BrokerError) -> SecretBytes {
        let bytes = try read(path, "client_secret_file", directories)
        if bytes.contains(where: { $0 < 0x20 || $0 == 0x7f }) {
            throw unusable("client_secret_file", "has other content than one line")
        }
        return SecretBytes(bytes)
    }

    /// The JWT in a file, without the line ends behind it.
    /// - Parameter directories: where the file must be; nil for anywhere.
    /// - Throws: `illegal_configuration` where there is none. Blocks while the file is read.
    static func assertion(at path: WireText, below directories: [String]?) throws(BrokerError) -> WireText {
        let bytes = try read(path, "client_assertion_file", directories)
        // Three parts in base64url (RFC 7515 §7.1), so that no other file is sent to a provider by a mistake.
        let parts = bytes.split(separator: UInt8(ascii: "."), omittingEmptySubsequences: false)
        guard parts.count == 3, parts.allSatisfy({ !$0.isEmpty && $0.allSatisfy(isOfBase64URL) }) else {
            throw unusable("client_assertion_file", "has other content than a JWT")
        }
        return WireText(String(decoding: bytes, as: UTF8.self))
    }

    private static func isOfBase64URL(_ byte: UInt8) -> Bool {
        switch byte {
        case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"),
            UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "-"), UInt8(ascii: "_"):
            true
        default: false
        }
    }

    private static func read(
        _ path: WireText, _ member: String, _ directories: [String]?
    ) throws(BrokerError) -> [UInt8] {
        var bytes: [UInt8]
        do throws(SystemError) {
            bytes = try SmallFile.readRegular(path.text, limit: longest, below: directories)
        } catch {
            throw switch error.number {
            case ENOENT, ENOTDIR: unusable(member, "does not exist")
            case EFBIG: unusable(member, "is longer than \(longest) bytes")
            case EXDEV: unusable(member, "is in none of the directories of TOKEN_BROKER_CLIENT_FILE_DIRECTORIES")
            case EINVAL: unusable(member, "is not a regular file")
            default: unusable(member, "cannot be read")
            }
        }
        while let last = bytes.last, last == 0x0a || last == 0x0d { bytes.removeLast() }
        if bytes.isEmpty { throw unusable(member, "is empty") }
        return bytes
    }

    private static func unusable(_ member: String, _ what: String) -> BrokerError {
        BrokerError(
            .illegalConfiguration,
            "The file that \(member) of the tenant names \(what). Users stay logged in meanwhile.")
    }
}
