import FoundationEssentials
import Glibc
import Reactor

/// A directory for the profiles of a test's browsers and for whatever else they leave, removed with all of it.
///
/// Its path is short: Chromium makes a Unix-domain socket some levels below it, and the address of one holds 107 bytes.
final class BrowserDirectory: Sendable {
    let path: String

    init() throws(SystemError) {
        var template = "/tmp/browser-XXXXXX".utf8.map { CChar(bitPattern: $0) } + [0]
        guard unsafe mkdtemp(&template) != nil else { throw SystemError.last("mkdtemp") }
        path = String(decoding: template.dropLast().map { UInt8(bitPattern: $0) }, as: UTF8.self)
    }

    deinit {
        // Where `remove` has been here already, nothing is left.
        try? FileManager.default.removeItem(atPath: path)
    }

    func remove() throws {
        try FileManager.default.removeItem(atPath: path)
    }
}
