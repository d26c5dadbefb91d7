import JSON
import Reactor

/// Files that a command line names.
enum GivenFile {
    /// The text of a file, without the mark of its encoding at the beginning and the line break at its end.
    /// - Throws: `refused` for one that cannot be read, is longer than `limit` bytes or is no UTF-8.
    static func text(_ path: String, limit: Int) throws(CommandError) -> String {
        var bytes: [UInt8]
        do throws(SystemError) {
            bytes = try SmallFile.read(path, limit: limit)
        } catch {
            throw CommandError(.refused, "\(path) cannot be read: \(error)")
        }
        if bytes.starts(with: [0xef, 0xbb, 0xbf]) { bytes.removeFirst(3) }
        if bytes.last == 0x0a { bytes.removeLast() }
        if bytes.last == 0x0d { bytes.removeLast() }
        guard let text = String(validating: bytes, as: UTF8.self) else {
            throw CommandError(.refused, "\(path) is no text in UTF-8")
        }
        return text
    }

    /// The first line of a file that holds a key; nil where there is none.
    static func firstLine(of path: String) -> String? {
        guard let bytes = try? SmallFile.read(path, limit: 4096) else { return nil }
        let line = String(decoding: bytes.prefix { $0 != 0x0a && $0 != 0x0d }, as: UTF8.self)
        return line.isEmpty ? nil : line
    }

    /// The object that a file holds as JSON; `-` is standard input.
    /// - Throws: `refused`.
    static func object(_ path: String, limit: Int, _ invocation: Invocation) throws(CommandError) -> JSONValue {
        let text = try textOrInput(path, limit: limit, invocation)
        do throws(JSONValue.Fault) {
            let value = try JSONValue(parsing: Array(text.utf8))
            if case .object = value { return value }
            throw JSONValue.Fault.malformed
        } catch {
            let reason = error == .malformed ? "" : ": \(error)"
            throw CommandError(.refused, "\(path) is not one JSON object in UTF-8\(reason)")
        }
    }

    /// The text of a file, or of standard input for `-`.
    static func textOrInput(_ path: String, limit: Int, _ invocation: Invocation) throws(CommandError) -> String {
        guard path == "-" else { return try text(path, limit: limit) }
        guard let bytes = invocation.terminal.input(limit: limit) else {
            throw CommandError(.refused, "standard input is longer than \(limit) bytes, or cannot be read")
        }
        guard let text = String(validating: bytes, as: UTF8.self) else {
            throw CommandError(.refused, "standard input is no text in UTF-8")
        }
        return text
    }
}
