import BrokerTesting
import FoundationEssentials
import Glibc
import Reactor

/// A wall clock of one replica that is off by as much as a file says; see `clock.c`.
///
/// The other clocks and all timers stay right: what passes is measured rightly.
struct ChaosClock: Sendable {
    /// The compiled `clock.c`.
    let library: String
    let file: String
    /// In seconds, before any step.
    let offset: Int

    struct Failure: Error, CustomStringConvertible {
        let description: String
    }

    /// Compiles the library that replicas load. Makes the directory where it is not there.
    /// - Returns: its path.
    static func makeLibrary(in directory: String) async throws -> String {
        let folder = #filePath.split(separator: "/", omittingEmptySubsequences: false).dropLast()
        let source = folder.joined(separator: "/") + "/clock.c"
        let library = directory + "/clock.so"
        try FileManager.default.createDirectory(atPath: directory, withIntermediateDirectories: true)
        let compiler = try await TestProcess.start(
            [
                "clang", "-O2", "-std=gnu17", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", library,
                source,
            ], environment: ["PATH": ProcessInfo.processInfo.environment["PATH"] ?? "/usr/bin"])
        guard await compiler.exitStatus() == 0 else {
            throw Failure(description: "clock.c: " + compiler.timedLines.map(\.text).joined(separator: "\n"))
        }
        return library
    }

    var environment: [String: String] { ["LD_PRELOAD": library, "CHAOS_CLOCK_FILE": file] }

    /// Moves the clock at once. The program has the file in memory: its eight bytes are written in place.
    func set(step seconds: Int) throws {
        var nanoseconds = Int64(offset + seconds) * 1_000_000_000
        let descriptor = unsafe open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0o600)
        guard descriptor >= 0 else { throw Failure(description: "\(file): error \(errno)") }
        defer { Glibc.close(descriptor) }
        guard unsafe pwrite(descriptor, &nanoseconds, 8, 0) == 8 else {
            throw Failure(description: "\(file): error \(errno)")
        }
    }
}
