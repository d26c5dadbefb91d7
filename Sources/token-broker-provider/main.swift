internal import DevelopmentProvider
internal import Glibc
internal import HTTPServer
internal import Reactor

/// Ends the process with a line on the error stream.
func fail(_ reason: String, status: CInt) -> Never {
    StandardStream.error.write("token-broker-provider: \(reason)\n")
    exit(status)
}

let options: ProviderOptions
do {
    options = try ProviderOptions(arguments: Array(CommandLine.arguments.dropFirst()))
} catch {
    fail(error.description + " --help lists the options.", status: 2)
}
if options.wantsHelp {
    StandardStream.output.write(ProviderOptions.help)
    exit(0)
}

let signals = TerminationSignals()
let provider = DevelopmentProvider(options.configuration)
let server: Server
do {
    server = try Server(configuration: ServerConfiguration(address: options.listen), handler: provider)
} catch {
    fail("Cannot listen on \(options.listen): \(error)", status: 1)
}
let baseURL = options.publicBaseURL ?? BaseURL("http://\(server.address)")
if let baseURL { provider.configure { $0.baseURL = baseURL } }
StandardStream.output.write(provider.announcement(address: server.address.description) + "\n")

await signals.wait()
await server.drain(within: .seconds(2))
await server.close()
exit(0)
