import CFuzzing
import FoundationEssentials
import Glibc

/// Gives hostile input to one reader of the project; see `usage`.
@main struct Fuzz {
    private static let usage = """
        usage: fuzz TARGET --mutations N [--seed N] [--failures DIRECTORY] PATH...
               fuzz TARGET [arguments of LLVM's libFuzzer]
               fuzz --targets

        The first form gives the reader each file (of each directory, too), the file grown to the reader's limits, and N inputs
        that are made from the files, the same ones for the same seed (1 unless given). Without --failures, an input at which
        the reader fails is kept in the directory for temporary files. The second form is for a build with libFuzzer
        (Tests/Fuzzing/run). The third prints the names of the targets.
        """

    static func main() {
        let arguments = CommandLine.arguments.dropFirst()
        if arguments == ["--targets"] {
            print(FuzzTarget.allCases.filter { !$0.isFaulty }.map(\.rawValue).joined(separator: " "))
            return
        }
        guard let name = arguments.first, let target = FuzzTarget(rawValue: name) else { end(usage, 2) }
        unsafe FuzzTarget.chosen = target
        if arguments.contains("--mutations") {
            mutate(target, arguments.dropFirst())
        } else {
            guard cfuzzing_has_fuzzer() else { end("fuzz: this build has no libFuzzer\n\n" + usage, 2) }
            // libFuzzer takes the name of the program and its own arguments.
            let given = unsafe CommandLine.unsafeArgv
            unsafe given[1] = given[0]
            exit(
                unsafe cfuzzing_run(CommandLine.argc - 1, given + 1) { start, count in
                    unsafe FuzzTarget.chosen.judge(
                        Array(UnsafeBufferPointer(start: start, count: count)), isFile: false)
                    return 0
                })
        }
    }

    private static func end(_ text: String, _ status: CInt) -> Never {
        let bytes = Array((text + "\n").utf8)
        _ = unsafe write(STDERR_FILENO, bytes, bytes.count)
        exit(status)
    }

    // MARK: Inputs of this program's own

    private static func mutate(_ target: FuzzTarget, _ arguments: ArraySlice<String>) {
        var (count, seed, failures): (Int?, UInt64, String) = (nil, 1, FileManager.default.temporaryDirectory.path)
        var files: [[UInt8]] = []
        var rest = arguments
        func value(of option: String) -> String {
            guard let value = rest.popFirst() else { end("fuzz: \(option) wants a value", 2) }
            return value
        }
        while let argument = rest.popFirst() {
            switch argument {
            case "--mutations":
                count = Int(value(of: argument))
                if count.map({ $0 < 0 }) ?? true { end("fuzz: --mutations wants a number", 2) }
            case "--seed":
                guard let number = UInt64(value(of: argument)) else { end("fuzz: --seed wants a number", 2) }
                seed = number
            case "--failures": failures = value(of: argument)
            default: files += read(argument)
            }
        }
        if files.isEmpty { end("fuzz: name the files to begin with", 2) }
        // The file stays empty unless the reader fails; the name is for a signal handler, which may not make one.
        unsafe cfuzzing_keep_failure(strdup("\(failures)/fuzz-\(target.rawValue)-failure"))
        for file in files { target.judge(file, isFile: true) }
        var mutator = Mutator(seed: seed, files, longest: target.longest)
        for _ in 0..<(count ?? 0) { target.judge(mutator.next(), isFile: false) }
        print("\(target.rawValue): \(files.count) files, \(count ?? 0) inputs made from them")
    }

    /// The content of a file, or of each file of a directory.
    private static func read(_ path: String) -> [[UInt8]] {
        var isDirectory = false
        guard FileManager.default.fileExists(atPath: path, isDirectory: &isDirectory) else {
            end("fuzz: there is no \(path)", 2)
        }
        let paths: [String]
        if isDirectory {
            paths = ((try? FileManager.default.contentsOfDirectory(atPath: path)) ?? []).sorted().map {
                "\(path)/\($0)"
            }
        } else {
            paths = [path]
        }
        return paths.map { path in
            guard let content = FileManager.default.contents(atPath: path) else {
                end("fuzz: \(path) cannot be read", 2)
            }
            return Array(content)
        }
    }
}
