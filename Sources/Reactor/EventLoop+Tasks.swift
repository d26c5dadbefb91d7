/// Tasks may prefer a loop, too.
///
/// A suspended task that prefers none is resumed by way of the threads that all share, even where it goes on in an actor
/// of the loop's: two switches of threads for each wait, which cost more than most of what is waited for. One that
/// prefers the loop never leaves its thread.
extension EventLoop: TaskExecutor {}
