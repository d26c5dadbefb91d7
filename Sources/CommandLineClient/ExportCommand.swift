import ExternalText
import HTTPCodec
import JSON
import Reactor

/// `token-broker export`.
enum ExportCommand {
    static let specification = CommandSpecification(
        "export", "hand over all users' credentials of a tenant, sealed for the key of the receiver",
        discussion: """
            Each line of the result is a JWE that only the owner of the private key can open; its content is a line of
            token-broker import ndjson. This is the only command that hands out refresh tokens, and the broker's audit log has
            it. It asks for the tenant's name once more; --yes is the answer where there is no one to ask.

            --jwk names a file with the receiver's key: EC on P-256, or OKP with X25519. Of a file with a private key only the
            public part is sent. What changes while the export runs may be in it or not, so stop the users of the tenant first.
            """,
        options: [
            .init("jwk", "FILE", "the receiver's key as a JWK; - for standard input"),
            .init(
                "file", "PATH", "write to this new file of mode 0600, completely or not at all; - for standard output"),
            .yes,
        ],
        examples: [
            .init("token-broker export --tenant music --jwk receiver.jwk --file music.sealed", "to a file"),
            .init(
                "token-broker export --tenant music --jwk receiver.jwk --yes | gzip >music.sealed.gz", "to a program"),
        ],
        body: { invocation throws(CommandError) in try await run(invocation) })

    /// The longest key, in bytes.
    private static let longestKey = 64 << 10
    /// What is sent of a key. The private part stays here.
    private static let publicMembers: [WireText] = ["kty", "crv", "x", "y", "kid", "use", "alg"]

    private static func run(_ invocation: Invocation) async throws(CommandError) {
        guard let path = invocation["jwk"] else {
            throw invocation.wrong("--jwk is missing: the receiver's public key")
        }
        if invocation["file"] == "" { throw invocation.wrong("--file names no file") }
        let file = invocation["file"].flatMap { $0 == "-" ? nil : $0 }
        if invocation.printsJSON, file == nil {
            throw invocation.wrong("--json needs --file: without it the sealed lines are on standard output")
        }
        let key = try publicKey(try ImportInput(path, invocation.terminal).whole(limit: longestKey), path)
        if let file, SmallFile.exists(file) {
            throw CommandError(.refused, "\(file) exists already; name a new file")
        }
        let api = try invocation.broker()
        let tenant = try await invocation.requiredTenant(api)
        if !invocation.has("yes") {
            let question = TextTable.shown("All refresh tokens of \(tenant) at \(api.url) leave the broker.")
            try invocation.requirePerson(question)
            let typed = invocation.terminal.line(question + " Type the tenant's name to go on: ")
            guard typed == tenant else { throw CommandError(.refused, "nothing was exported: that is not \(tenant)") }
        }
        let body = JSONWriter.object { json in json.member("jwk", key) }
        var request = BrokerAPI.Request(.post, "/credentials/export", json: body, form: .lines)
        request.limit = .seconds(600)
        let target = try ExportTarget(file, invocation.terminal)
        let end = try await api.stream(request, idleLimit: .seconds(300)) { await target.take($0) }
        let count = try await target.finish(end, api)
        guard let file else {
            invocation.terminal.note("\(Self.users(count)) sealed.")
            return
        }
        if invocation.printsJSON {
            invocation.printLine(
                JSONWriter.object { json in
                    json.member("file", file)
                    json.member("lines", count)
                })
        } else {
            invocation.terminal.note("\(Self.users(count)) sealed in \(file).")
        }
    }

    private static func users(_ count: Int) -> String { count == 1 ? "1 user is" : "\(count) users are" }

    /// The public part of a key.
    /// - Throws: `refused` for a file without one.
    static func publicKey(_ bytes: [UInt8], _ path: String) throws(CommandError) -> JSONValue {
        guard let value = try? JSONValue(parsing: bytes), let members = value.object,
            ["EC", "OKP"].contains(value["kty"]?.string?.text)
        else {
            throw CommandError(.refused, "\(path) is no JWK of an EC key on P-256 or of an X25519 key")
        }
        return .object(members.filter { publicMembers.contains($0.key) })
    }
}

/// Where sealed lines go while they come.
private actor ExportTarget {
    private let path: String?
    private let draft: DraftFile?
    private let terminal: any Terminal
    private var lines = SealedLines()
    private var fault: SystemError?
    /// Whether what has come is something else than sealed lines.
    private var isStrange = false

    /// - Parameter path: of a new file; nil for standard output.
    init(_ path: String?, _ terminal: any Terminal) throws(CommandError) {
        self.path = path
        self.terminal = terminal
        do throws(SystemError) {
            draft = if let path { try DraftFile(for: path) } else { nil }
        } catch {
            throw Self.error(path, error)
        }
    }

    private static func error(_ path: String?, _ fault: SystemError) -> CommandError {
        CommandError(.refused, "\(path ?? "the file") cannot be written: \(fault)")
    }

    /// - Returns: false where no more can be written, or what comes is not sealed.
    func take(_ piece: [UInt8]) -> Bool {
        guard lines.take(piece) else {
            isStrange = true
            return false
        }
        guard let draft else {
            terminal.write(piece)
            return terminal.outputError == nil
        }
        do throws(SystemError) {
            try draft.append(piece)
            return true
        } catch {
            fault = error
            return false
        }
    }

    /// - Returns: how many lines have come.
    /// - Throws: `failed` where these are not all, since what is not complete must not look complete, and where they are not sealed.
    func finish(_ end: BrokerAPI.StreamEnd, _ api: BrokerAPI) throws(CommandError) -> Int {
        if let fault { throw Self.error(path, fault) }
        try terminal.checkOutput()
        if isStrange {
            throw api.stranger(
                "line \(lines.count + 1) of what comes is not sealed" + (path == nil ? "" : "; no file was written"))
        }
        guard end == .ended, lines.isComplete else {
            throw CommandError(
                .failed,
                "the export was cut short after \(lines.count) lines, which are not all"
                    + (path == nil ? "" : "; no file was written"))
        }
        do throws(SystemError) {
            try draft?.complete()
        } catch {
            throw Self.error(path, error)
        }
        return lines.count
    }
}
