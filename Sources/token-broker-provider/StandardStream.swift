internal import Glibc

/// The process's output, past the C library's buffers: whoever waits for a line gets it at once, through a pipe, too.
enum StandardStream {
    case output
    case error

    /// Writes the whole of `text`, or what can be written of it: nobody could be told of a failure.
    func write(_ text: String) {
        let descriptor = self == .output ? STDOUT_FILENO : STDERR_FILENO
        var rest = Array(text.utf8)[...]
        while !rest.isEmpty {
            let count = unsafe rest.withUnsafeBytes { unsafe Glibc.write(descriptor, $0.baseAddress, $0.count) }
            if count > 0 {
                rest = rest.dropFirst(count)
            } else if count == 0 || errno != EINTR {
                return
            }
        }
    }
}
