import Glibc

/// Standard input, output and error.
package enum StandardStreams {
    /// Opens something in the place of those that the process was started without, so that no file or socket gets their numbers, in
    /// which others would write then. Reading from it and writing to it fail, as they would without it. Call this before anything
    /// opens a descriptor.
    package static func fillClosed() {
        for number: CInt in 0...2 where fcntl(number, F_GETFD) == -1 && errno == EBADF {
            // open(2) takes the lowest number that is free.
            _ = unsafe Glibc.open("/dev/null", number == 0 ? O_WRONLY : O_RDONLY)
        }
    }
}
