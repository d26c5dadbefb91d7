import Cryptography
import Reactor

/// What an import sends for one line or one entry of its input, or why it sends nothing.
struct ImportItem: Sendable, Equatable {
    enum Content: Sendable, Equatable {
        case line([UInt8])
        case refused(String)
    }

    /// From 1: of the line, or of the entry.
    let number: Int
    /// How the file calls the entry; nil for a line.
    var name: String? = nil
    var storageKey: String? = nil
    let content: Content
    var notes: [String] = []
}

/// What an import reads: a file, in pieces and more than once, or bytes that have come by a pipe.
struct ImportInput: Sendable {
    private enum Content: Sendable {
        case file(InputFile)
        case bytes([UInt8])
    }

    private let content: Content
    /// The path; `-` for standard input.
    let name: String
    let size: Int

    /// How much is read at a time, in bytes.
    private static let pieceSize = 1 << 20
    /// The most that may come by a pipe, in bytes: it is kept in memory.
    static let longestPipe = 64 << 20

    /// - Throws: `refused` for what cannot be read, or is too long for a pipe.
    init(_ path: String, _ terminal: any Terminal) throws(CommandError) {
        name = path
        if path == "-" {
            guard let bytes = terminal.input(limit: Self.longestPipe) else {
                throw CommandError(
                    .refused,
                    "standard input cannot be read, or has more than \(Self.longestPipe >> 20) MiB: name a file")
            }
            (content, size) = (.bytes(bytes), bytes.count)
            return
        }
        do throws(SystemError) {
            if let file = try InputFile(path) {
                (content, size) = (.file(file), file.size)
            } else {
                let bytes = try SmallFile.read(path, limit: Self.longestPipe)
                (content, size) = (.bytes(bytes), bytes.count)
            }
        } catch {
            throw CommandError(.refused, "\(path) cannot be read: \(error)")
        }
    }

    /// Of bytes that are there.
    init(_ bytes: [UInt8], name: String) {
        (content, self.name, size) = (.bytes(bytes), name, bytes.count)
    }

    /// The name without directories, from wherever the import is run.
    var lastName: String { String(name.split(separator: "/").last ?? "") }

    /// Whether it is a file, so that an import of it can be continued.
    var isFile: Bool { if case .file = content { true } else { false } }

    /// The bytes from `offset` on, 1 MiB at most; none at the end.
    /// - Throws: `refused` for a file that cannot be read, or is not as long as it was.
    func piece(at offset: Int) throws(CommandError) -> [UInt8] {
        switch content {
        case .bytes(let bytes):
            return Array(bytes[min(offset, bytes.count)..<min(offset + Self.pieceSize, bytes.count)])
        case .file(let file):
            let piece: [UInt8]
            do throws(SystemError) {
                piece = try file.read(at: offset, upTo: Self.pieceSize)
            } catch {
                throw CommandError(.refused, "\(name) cannot be read: \(error)")
            }
            if piece.isEmpty, offset < size {
                throw CommandError(.refused, "\(name) became shorter while it was read: something else writes to it")
            }
            return piece
        }
    }

    func tooLong(_ limit: Int) -> CommandError {
        CommandError(.refused, "\(name) has more than \(limit) bytes, which no such file has")
    }

    /// All of it.
    /// - Throws: `refused` for more than `limit` bytes.
    func whole(limit: Int) throws(CommandError) -> [UInt8] {
        var bytes: [UInt8] = []
        while true {
            let piece = try piece(at: bytes.count)
            if piece.isEmpty { return bytes }
            bytes += piece
            if bytes.count > limit { throw tooLong(limit) }
        }
    }

    /// A digest by which a changed input is noticed, which is the SHA-256 of the SHA-256 of each MiB, and the number of lines.
    func examined() throws(CommandError) -> (digest: String, lines: Int) {
        var digests: [UInt8] = []
        var (offset, lines) = (0, 0)
        var last: UInt8 = 0x0a
        while true {
            let piece = try piece(at: offset)
            guard let end = piece.last else { break }
            digests += SHA256.digest(piece)
            lines += piece.count { $0 == 0x0a }
            offset += piece.count
            last = end
        }
        return (Hex.encode(SHA256.digest(digests)), lines + (last == 0x0a ? 0 : 1))
    }
}
