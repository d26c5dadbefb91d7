internal import CLinux
internal import Glibc

/// The environment that the process was started with, environ(7).
package enum ProcessEnvironment {
    /// Every variable by its name. Of two with one name the first counts, as it does for getenv(3). Call before other
    /// threads could be changing the environment.
    package static var variables: [String: String] {
        var variables: [String: String] = [:]
        guard var next = unsafe clinux_environment() else { return variables }
        while let entry = unsafe next.pointee {
            let text = unsafe String(cString: entry)
            if let sign = text.firstIndex(of: "="), variables[String(text[..<sign])] == nil {
                variables[String(text[..<sign])] = String(text[text.index(after: sign)...])
            }
            unsafe next += 1
        }
        return variables
    }
}
