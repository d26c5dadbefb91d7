import JSON
import Reactor

/// The Python process that runs an authorization server of another project and plays its user's browser
/// (`glewlwyd/glewlwyd.py`, `servers/server.py`), spoken to in lines of JSON.
///
/// Its calls block, so it lives on a thread of its own. The process ends when the dialogue does: with `end()`, when
/// the actor is let go of, and when the test process dies in whatever way.
actor ServerProcess {
    private nonisolated let thread: BlockingThread
    private let dialogue: DialogueProcess

    nonisolated var unownedExecutor: UnownedSerialExecutor { unsafe thread.asUnownedSerialExecutor() }

    /// Starts the process; nothing has been read from it yet.
    init(arguments: [String]) throws {
        dialogue = try DialogueProcess(arguments)
        thread = try BlockingThread(name: "server")
    }

    deinit { thread.shutDown() }

    /// Has the server stopped and its directory removed, and returns when that is done.
    func end() { dialogue.end() }

    /// Sends one line and returns the answer to it.
    func exchange(_ line: [UInt8], within limit: Duration) throws -> JSONValue {
        try dialogue.write(String(decoding: line, as: UTF8.self))
        return try readAnswer(within: limit)
    }

    /// The next answer. One that tells of an error is thrown as such.
    func readAnswer(within limit: Duration) throws -> JSONValue {
        guard let line = try dialogue.readLine(within: limit) else {
            throw ServerFailure("the process ended; see standard error")
        }
        let answer = try JSONValue(parsing: Array(line.utf8))
        if let error = answer["error"]?.text { throw ServerFailure(error) }
        return answer
    }
}
