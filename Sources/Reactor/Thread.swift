import CLinux
import Glibc

/// Starts named POSIX threads.
package enum Thread {
    private final class Body: Sendable {
        let run: @Sendable () -> Void
        init(_ run: @escaping @Sendable () -> Void) { self.run = run }
    }

    /// A started thread. Call `join` or `detach` exactly once.
    package struct Handle: Sendable {
        fileprivate let thread: pthread_t

        /// Waits until the thread has ended.
        package func join() { pthread_join(thread, nil) }

        /// Lets the thread end without `join`.
        package func detach() { pthread_detach(thread) }
    }

    /// Starts a joinable thread that runs `body`. All signals are blocked on it, because the main thread handles them.
    package static func start(name: String, _ body: @escaping @Sendable () -> Void) throws(SystemError) -> Handle {
        var attributes = pthread_attr_t()
        unsafe pthread_attr_init(&attributes)
        defer { unsafe pthread_attr_destroy(&attributes) }
        var all = sigset_t()
        var before = sigset_t()
        unsafe sigfillset(&all)
        unsafe pthread_sigmask(SIG_SETMASK, &all, &before)
        defer { unsafe pthread_sigmask(SIG_SETMASK, &before, nil) }

        var thread = pthread_t()
        let argument = unsafe Unmanaged.passRetained(Body(body))
        let result = unsafe pthread_create(
            &thread, &attributes,
            { argument in
                unsafe Unmanaged<Body>.fromOpaque(argument!).takeRetainedValue().run()
                return nil
            }, argument.toOpaque())
        if result != 0 {
            unsafe argument.release()
            throw SystemError("pthread_create", number: result)
        }
        // The kernel accepts 15 bytes and refuses a longer name as a whole.
        _ = unsafe clinux_set_thread_name(UInt(thread), String(name.prefix(15)))
        return Handle(thread: thread)
    }
}
