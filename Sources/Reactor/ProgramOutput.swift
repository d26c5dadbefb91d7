import CLinux
import Glibc

/// What a program prints. The call blocks, so use it before an event loop runs or on a blocking thread.
package enum ProgramOutput {
    package enum Failure: Error, Equatable, Sendable, CustomStringConvertible {
        /// The program cannot be started.
        case start(SystemError)
        /// It had not ended in time, and was killed with everything that it had started.
        case timeout(Duration)
        /// It printed more than was allowed, and was killed.
        case tooLong(Int)
        /// It ended with another status than 0.
        case status(Int)
        /// A signal ended it.
        case signal(Int)

        package var description: String {
            switch self {
            case .start(let error): "cannot be started (\(error))"
            case .timeout(let time): "had not ended after \(time.components.seconds) seconds"
            case .tooLong(let limit): "printed more than \(limit) bytes"
            case .status(let status): "ended with status \(status)"
            case .signal(let number): "was ended by signal \(number)"
            }
        }
    }

    /// Runs a program to its end. Its standard input is empty, and its standard error is this process's.
    /// - Parameters:
    ///   - words: its path, or its name if it is in a directory of `PATH`, and its arguments.
    ///   - environment: its variables.
    ///   - limit: the most octets that it may print.
    ///   - time: how long it may take. Then it is killed.
    package static func read(
        _ words: [String], environment: [String: String], limit: Int, within time: Duration
    ) throws(Failure) -> [UInt8] {
        let end = MonotonicInstant.now.advanced(by: time)
        // A program that has started this one with the signal ignored would have the kernel forget how children end.
        signal(SIGCHLD, SIG_DFL)
        var ends: [CInt] = [0, 0]
        do throws(SystemError) {
            try retryingInterrupts("pipe2") { unsafe clinux_pipe(&ends) }
        } catch {
            throw .start(error)
        }
        let output = OwnedDescriptor(adopting: ends[0])
        let process = try start(words, environment, output: OwnedDescriptor(adopting: ends[1]))
        let result: Result<[UInt8], Failure>
        do throws(Failure) {
            result = .success(try read(output, limit, until: end, time))
        } catch {
            result = .failure(error)
            // With all that it has started, which may go on although the program itself has ended.
            kill(-process, SIGKILL)
        }
        let status = try wait(for: process, until: end, time)
        let bytes = try result.get()
        // What WIFSIGNALED, WTERMSIG and WEXITSTATUS of wait(2) tell.
        if status & 0x7f != 0 { throw .signal(Int(status & 0x7f)) }
        let code = Int(status >> 8 & 0xff)
        if code != 0 { throw .status(code) }
        return bytes
    }

    private static func start(
        _ words: [String], _ environment: [String: String], output: consuming OwnedDescriptor
    ) throws(Failure) -> CInt {
        do throws(SystemError) {
            return try ChildProgram.start(
                words, environment: environment, output: .descriptor(output.rawValue), leadsGroup: true)
        } catch {
            throw .start(error)
        }
    }

    /// Waits for the end of a program, and kills it, with all that it has started, when the time is over.
    private static func wait(
        for process: CInt, until end: MonotonicInstant, _ time: Duration
    ) throws(Failure) -> CInt {
        var status: CInt = 0
        var isKilled = false
        while true {
            let ended = unsafe waitpid(process, &status, isKilled ? 0 : WNOHANG)
            if ended == process {
                if isKilled { throw .timeout(time) }
                return status
            }
            if ended == -1, errno != EINTR { throw .start(.last("waitpid")) }
            if isKilled { continue }
            if MonotonicInstant.now < end {
                usleep(1000)
            } else {
                kill(-process, SIGKILL)
                isKilled = true
            }
        }
    }

    private static func read(
        _ output: borrowing OwnedDescriptor, _ limit: Int, until end: MonotonicInstant, _ time: Duration
    ) throws(Failure) -> [UInt8] {
        // One octet more than the limit, to detect a longer output.
        var bytes = [UInt8](repeating: 0, count: limit + 1)
        var filled = 0
        while filled < bytes.count {
            let rest = MonotonicInstant.now.duration(to: end)
            guard rest > .zero else { throw .timeout(time) }
            var readiness = pollfd(fd: output.rawValue, events: Int16(POLLIN), revents: 0)
            let number = output.rawValue
            do throws(SystemError) {
                let milliseconds = CInt(clamping: rest.milliseconds + 1)
                if try retryingInterrupts("poll", { unsafe poll(&readiness, 1, milliseconds) }) == 0 { continue }
                let count = try retryingInterrupts("read") {
                    unsafe bytes.withUnsafeMutableBytes { buffer in
                        unsafe Glibc.read(number, buffer.baseAddress! + filled, buffer.count - filled)
                    }
                }
                if count == 0 { return Array(bytes[..<filled]) }
                filled += count
            } catch {
                throw .start(error)
            }
        }
        throw .tooLong(limit)
    }
}
