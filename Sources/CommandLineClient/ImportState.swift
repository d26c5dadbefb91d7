import ExternalText
import JSON
import Reactor

/// What an import has done.
struct ImportTally: Sendable, Equatable {
    var imported = 0
    var unchanged = 0
    var refused = 0

    /// How many lines or entries have been dealt with.
    var all: Int { imported + unchanged + refused }
}

/// How far an import is, in a file of mode 0600, so that one that was killed goes on where it was.
struct ImportState: Sendable, Equatable {
    /// What is imported, and how. Another one cannot go on.
    struct Order: Sendable, Equatable {
        /// The input's name, size and digest.
        var name: String
        var size: Int
        var digest: String
        var format: String
        var url: String
        var tenant: String
        /// The options that decide about lines.
        var options: [String]
    }

    let order: Order
    var tally = ImportTally()

    private static let limit = 64 << 10

    /// Where it is kept unless another path is named.
    static func path(for input: String) -> String { input + ".import-state" }

    /// What an earlier import has done; nothing where there is no file.
    /// - Throws: `refused` for the file of another import, and for a damaged one.
    static func read(_ path: String, for order: Order) throws(CommandError) -> ImportTally {
        let bytes: [UInt8]
        do throws(SystemError) {
            bytes = try SmallFile.read(path, limit: limit)
        } catch {
            if error.isNoSuchFile { return ImportTally() }
            throw CommandError(.refused, "\(path) cannot be read: \(error)")
        }
        guard let state = ImportState(decoding: bytes) else {
            throw CommandError(
                .refused,
                "\(path) is there, and is not what token-broker import has written: name another file with --state")
        }
        if state.order == order { return state.tally }
        let known = state.order
        let isSameInput = (known.name, known.size, known.digest) == (order.name, order.size, order.digest)
        throw CommandError(
            .refused,
            isSameInput
                ? "an import of \(order.name) with other words is not complete (\(known.format), \(known.url), tenant "
                    + "\(known.tenant)\(known.options.map { " " + $0 }.joined())): complete it, or remove \(path) to begin anew"
                : "\(order.name) is not what it was when its import was begun; remove \(path) to begin anew",
            next: "rm " + ShellWord.quoted(path))
    }

    /// Whether it can be written, which is better known before anything is stored.
    /// - Throws: `refused` where it cannot.
    static func checkPlace(_ path: String) throws(CommandError) {
        do throws(SystemError) {
            // Goes again with the reference.
            _ = try DraftFile(for: path)
        } catch {
            throw unwritable(path, error, .refused)
        }
    }

    private static func unwritable(_ path: String, _ error: SystemError, _ status: ExitStatus) -> CommandError {
        CommandError(status, "\(path) cannot be written: \(error)\n  --state names another place for it")
    }

    /// - Throws: `partly` where it cannot be written: it is when lines were dealt with.
    func write(_ path: String) throws(CommandError) {
        do throws(SystemError) {
            try SmallFile.replace(path, encoded)
        } catch {
            throw Self.unwritable(path, error, .partly)
        }
    }

    var encoded: [UInt8] {
        JSONWriter.object { json in
            json.name("input")
            json.object { json in
                json.member("name", order.name)
                json.member("size", order.size)
                json.member("digest", order.digest)
            }
            json.member("format", order.format)
            json.member("url", order.url)
            json.member("tenant", order.tenant)
            json.member("options", order.options)
            json.member("imported", tally.imported)
            json.member("unchanged", tally.unchanged)
            json.member("refused", tally.refused)
        } + [0x0a]
    }

    init(order: Order, tally: ImportTally = ImportTally()) {
        self.order = order
        self.tally = tally
    }

    init?(decoding bytes: [UInt8]) {
        guard let value = try? JSONValue(parsing: bytes), let input = value["input"] else { return nil }
        func text(_ name: WireText, _ value: JSONValue) -> String? { value[name]?.string?.text }
        func count(_ name: WireText, _ value: JSONValue) -> Int? {
            value[name]?.integer.flatMap { (0...1 << 50).contains($0) ? Int($0) : nil }
        }
        guard let name = text("name", input), let size = count("size", input), let digest = text("digest", input),
            let format = text("format", value), let url = text("url", value), let tenant = text("tenant", value),
            let options = value["options"]?.array?.compactMap({ $0.string?.text }),
            let imported = count("imported", value), let unchanged = count("unchanged", value),
            let refused = count("refused", value)
        else { return nil }
        order = Order(
            name: name, size: size, digest: digest, format: format, url: url, tenant: tenant, options: options)
        tally = ImportTally(imported: imported, unchanged: unchanged, refused: refused)
    }
}

extension ImportState {
    /// Removes the file of an import that is complete.
    static func remove(_ path: String) { SmallFile.remove(path) }
}
