import DevelopmentProvider
import HTTPServer
import Reactor

/// Prints the reason to standard error and exits.
func fail(_ reason: String, status: Int32) -> Never {
    Console.printError("token-broker-provider: \(reason)")
    Console.exit(status)
}

let options: ProviderOptions
do {
    options = try ProviderOptions(arguments: Array(CommandLine.arguments.dropFirst()))
} catch {
    fail(error.description + " --help lists the options.", status: 2)
}
if options.showsHelp {
    Console.print(ProviderOptions.help)
    Console.exit(0)
}

if options.listsProfiles {
    Console.print(ProviderOptions.profiles.joined(separator: "\n"))
    Console.exit(0)
}

// Must run before any thread is started, since threads inherit the signal mask.
TerminationSignal.block()
let provider = DevelopmentProvider(options.configuration)
var configuration = DevelopmentProvider.serverConfiguration(address: options.listen)
let certificate: ProviderCertificate?
do {
    certificate = try options.makeCertificate()
} catch {
    fail(error.description, status: 1)
}
configuration.tls = certificate?.context
let server: Server
do {
    server = try Server(configuration: configuration, handler: provider)
} catch {
    certificate?.removeTemporaryFile()
    fail("Cannot listen on \(options.listen): \(error)", status: 1)
}
let baseURL = options.publicBaseURL ?? BaseURL("\(certificate == nil ? "http" : "https")://\(server.address)")
if let baseURL { provider.configure { $0.baseURL = baseURL } }
Console.print(
    provider.announcement(address: server.address.description, authorityFile: certificate?.authorityFile))

TerminationSignal.wait()
certificate?.removeTemporaryFile()
stop(server)
TerminationSignal.wait()
Console.exit(130)

/// Stops the server in a task that does not use the main thread, because the main thread waits for a second signal. A
/// task of the top level would run on the main thread.
nonisolated func stop(_ server: Server) {
    Task {
        await server.drain(within: .seconds(2))
        await server.close()
        Console.exit(0)
    }
}
