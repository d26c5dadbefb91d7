import Reactor

/// The browser of the person who has started the program.
enum Browser {
    /// Opens a page by `xdg-open`, which begins its work while this program goes on.
    /// - Parameter url: of http or https; no other address is opened, since it may come from another program.
    /// - Returns: false where there is no desktop and `BROWSER` is not set, where `--no-browser` stands on the command line, or where
    ///   there is no `xdg-open`. The address is to be printed then; print it in any case, for a browser that does not come up.
    static func open(_ url: String, _ invocation: Invocation) -> Bool {
        guard !invocation.has("no-browser"), url.hasPrefix("https://") || url.hasPrefix("http://"),
            ["DISPLAY", "WAYLAND_DISPLAY", "BROWSER"].contains(where: { invocation.environment.text($0) != nil })
        else { return false }
        do throws(SystemError) {
            _ = try ChildProgram.start(
                ["xdg-open", url], environment: ChildEnvironment.variables(of: invocation.environment),
                output: .nothing, errors: .nothing, leadsGroup: true)
            return true
        } catch {
            return false
        }
    }
}
