import Glibc

/// Programs as children of this process: the one place that starts any.
package enum ChildProgram {
    /// Where a standard stream of the program leads.
    package enum Stream {
        /// This process's own.
        case inherited
        case nothing
        case descriptor(CInt)
        /// The path of a file that is made where it is missing, and added to.
        case file(String)
    }

    /// Starts a program. What it was started with is to be waited for with waitpid(2).
    /// - Parameters:
    ///   - arguments: the program, looked for in PATH where it is no path, and what follows it.
    ///   - environment: all of it; nil for this process's own.
    ///   - leadsGroup: whether it is in a process group of its own, so that signals of the terminal pass it by, and what it starts
    ///     can be killed with it.
    package static func start(
        _ arguments: [String], environment: [String: String]? = nil, input: Stream = .nothing,
        output: Stream = .inherited, errors: Stream = .inherited, leadsGroup: Bool = false
    ) throws(SystemError) -> CInt {
        var actions = unsafe posix_spawn_file_actions_t()
        unsafe posix_spawn_file_actions_init(&actions)
        defer { unsafe posix_spawn_file_actions_destroy(&actions) }
        for (number, stream) in zip(CInt(0)..., [input, output, errors]) {
            switch stream {
            case .inherited: break
            case .nothing: unsafe posix_spawn_file_actions_addopen(&actions, number, "/dev/null", O_RDWR, 0)
            // A duplicate does not inherit close-on-exec.
            case .descriptor(let descriptor): unsafe posix_spawn_file_actions_adddup2(&actions, descriptor, number)
            case .file(let path):
                unsafe posix_spawn_file_actions_addopen(&actions, number, path, O_WRONLY | O_CREAT | O_APPEND, 0o644)
            }
        }

        // Threads of this process block signals. A blocked signal stays blocked in a child; there it would make a request
        // to terminate go unheard.
        var attributes = posix_spawnattr_t()
        unsafe posix_spawnattr_init(&attributes)
        defer { unsafe posix_spawnattr_destroy(&attributes) }
        var none = sigset_t()
        var all = sigset_t()
        unsafe sigemptyset(&none)
        unsafe sigfillset(&all)
        unsafe posix_spawnattr_setsigmask(&attributes, &none)
        unsafe posix_spawnattr_setsigdefault(&attributes, &all)
        let flags = POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | (leadsGroup ? POSIX_SPAWN_SETPGROUP : 0)
        unsafe posix_spawnattr_setflags(&attributes, Int16(flags))

        let strings = unsafe cStrings(arguments)
        let variables = unsafe cStrings(environment.map { $0.map { "\($0.key)=\($0.value)" } } ?? [])
        let copies = unsafe strings + variables
        defer { for index in unsafe copies.indices { unsafe free(copies[index]) } }
        var child = pid_t()
        let result =
            environment == nil
            ? unsafe posix_spawnp(&child, arguments[0], &actions, &attributes, strings, environ)
            : unsafe posix_spawnp(&child, arguments[0], &actions, &attributes, strings, variables)
        if result != 0 { throw SystemError("posix_spawn \(arguments[0])", number: result) }
        return child
    }

    private static func cStrings(_ strings: [String]) -> [UnsafeMutablePointer<CChar>?] {
        unsafe strings.map { (string: String) in unsafe strdup(string) } + [nil]
    }
}
