internal import Reactor

/// The person's browser.
enum Browser {
    /// Opens an address in the browser of `BROWSER`, else in the desktop's. The browser outlives this program.
    /// - Returns: false where there is no desktop to show it, or no program that opens it.
    static func open(_ url: String, _ invocation: Invocation) -> Bool {
        let environment = invocation.environment
        let chosen = environment.text("BROWSER")
        guard chosen != nil || environment.text("DISPLAY") != nil || environment.text("WAYLAND_DISPLAY") != nil else {
            return false
        }
        // A list of programs, each with `%s` at the address's place, or without.
        let words = (chosen ?? "xdg-open").split(separator: ":").first?.split(separator: " ").map(String.init) ?? []
        guard !words.isEmpty else { return false }
        let arguments =
            words.contains { $0.contains("%s") }
            ? words.map { $0 == "%s" || $0 == "\"%s\"" ? url : $0 } : words + [url]
        do throws(SystemError) {
            _ = try ChildProgram.start(
                arguments, environment: environment, output: .nothing, errors: .nothing, leadsGroup: true)
            return true
        } catch {
            return false
        }
    }
}
