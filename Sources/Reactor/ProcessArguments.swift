/// The words with which the process was started.
package enum ProcessArguments {
    /// A word that is no text in UTF-8. Swift replaces what is wrong in it, so that it would name another file.
    package struct Fault: Error, Equatable {
        /// From 1 on, behind the program's name.
        package let position: Int
    }

    /// The words behind the program's name.
    package static func words() throws(Fault) -> [String] {
        var words: [String] = []
        for position in 1..<max(1, Int(CommandLine.argc)) {
            guard let word = unsafe CommandLine.unsafeArgv[position] else { break }
            guard let text = unsafe String(validatingCString: word) else { throw Fault(position: position) }
            words.append(text)
        }
        return words
    }
}
