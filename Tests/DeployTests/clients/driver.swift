// Calls the client for Swift, one command of standard input at a time (see ../clients.py).
import Foundation

/// Standard output is a pipe, so each line is written at once and not when a buffer is full.
func say(_ line: String) {
    FileHandle.standardOutput.write(Data((line + "\n").utf8))
}

@main struct Driver {
    static func main() async throws {
        let (base, key) = (CommandLine.arguments[1], CommandLine.arguments[2])
        var client = TokenBroker(base, apiKey: key)
        var last: Credentials?
        var kept: Credentials?
        while let line = readLine() {
            let words = line.split(separator: " ").map(String.init)
            do {
                switch words[0] {
                case "client":
                    client = TokenBroker(
                        base, apiKey: key, timeout: Double(words[2])!, maxAge: Double(words[1])!)
                    say("ok")
                case "token":
                    let found = try await client.token(words[1], minTTL: Int(words[2])!)
                    last = found
                    say("token \(found.etag) \(found.token)")
                case "keep":
                    kept = last
                    say("ok")
                case "refuse":
                    let tags = try await refuse(client, words[1], kept, Int(words[2])!)
                    say("tokens " + tags.joined(separator: " "))
                case "listen":
                    listen(client)
                    say("ok")
                default: fatalError("unknown command: \(line)")
                }
            } catch let error as BrokerError {
                let code = error.code.isEmpty ? "-" : error.code
                let after = error.retryAfter.map { "\(Int($0))" } ?? "-"
                say("error \(error.status) \(code) \(after) \(error.mustLogIn ? "yes" : "no")")
            }
        }
    }

    static func refuse(
        _ client: TokenBroker, _ storageKey: String, _ kept: Credentials?, _ count: Int
    ) async throws -> [String] {
        try await withThrowingTaskGroup(of: String.self) { group in
            for _ in 0..<count { group.addTask { try await client.token(storageKey, refused: kept).etag } }
            return try await group.reduce(into: []) { tags, tag in tags.append(tag) }
        }
    }

    static func listen(_ client: TokenBroker) {
        Task {
            for try await event in client.events() {
                say("event \(event.id) \(event.name) \(event.storage_key ?? "-")")
            }
        }
    }
}
