import CLinux
import Glibc

/// The environment with which the process was started, environ(7).
package enum ProcessEnvironment {
    /// Every variable by its name. If a name occurs twice, the first value counts, as for getenv(3). Call this before
    /// other threads might change the environment.
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
