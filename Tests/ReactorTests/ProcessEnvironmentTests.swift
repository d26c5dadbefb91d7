import Glibc
import Reactor
import Testing

@Suite struct `Process environment` {
    @Test func `each variable has the text after the first equals sign as its value`() async {
        // No other thread may read the environment while it changes.
        await #expect(processExitsWith: .success) {
            for (name, value) in [("TB_EMPTY", ""), ("TB_SIGNS", "a=b=c"), ("TB_UMLAUT", "ü")] {
                unsafe setenv(name, value, 1)
            }
            unsafe unsetenv("TB_NONE")
            let variables = ProcessEnvironment.variables
            #expect(variables["TB_EMPTY"] == "")
            #expect(variables["TB_SIGNS"] == "a=b=c")
            #expect(variables["TB_UMLAUT"] == "ü")
            #expect(variables["TB_NONE"] == nil)
            let path = unsafe getenv("PATH").map { unsafe String(cString: $0) }
            #expect(variables["PATH"] == path)
        }
    }

    @Test func `a missing environment counts as an empty one`() async {
        await #expect(processExitsWith: .success) {
            clearenv()
            #expect(ProcessEnvironment.variables.isEmpty)
        }
    }
}
