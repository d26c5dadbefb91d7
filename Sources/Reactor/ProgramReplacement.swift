import Glibc

/// Has another program take this process's place, execvp(3).
package enum ProgramReplacement {
    /// Starts a program in place of this one. It has this process's number, standard streams and directory; signals and
    /// the limit of core dumps are as they were when this process was started.
    /// - Parameters:
    ///   - arguments: the program, looked for in PATH where it is no path, and what follows it.
    ///   - environment: all of it. It replaces this process's own, so nothing else may be at work that reads variables.
    /// - Returns: only where the program cannot be started: `ENOENT` for none of that name.
    package static func execute(_ arguments: [String], environment: [String: String]) -> SystemError {
        for name in ProcessEnvironment.variables.keys where environment[name] == nil { unsafe unsetenv(name) }
        for (name, value) in environment { unsafe setenv(name, value, 1) }
        var words = unsafe arguments.map { (word: String) in unsafe strdup(word) } + [nil]
        TerminationSignal.restore()
        ProcessHardening.restoreCoreLimit()
        unsafe execvp(arguments[0], &words)
        let error = SystemError.last("execvp \(arguments[0])")
        for index in unsafe words.indices { unsafe free(words[index]) }
        return error
    }
}
